"""`elasticdl export`: a checkpoint becomes a model, or what servers had becomes Parquet, without a job.

Tables of servers may be larger than memory; the state of a group is not, as every worker has it.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from elasticdl.catalog.catalog import Catalog
from elasticdl.checkpoint import layout as checkpoints
from elasticdl.checkpoint.choosing import newest_whole
from elasticdl.checkpoint.group import GroupManifest, read_state
from elasticdl.checkpoint.manifest import NAME, Manifest
from elasticdl.checkpoint.parquet import write_parquet
from elasticdl.checkpoint.saved import Saved, check_values
from elasticdl.errors import BadData, BadSetting
from elasticdl.files.output import made_beside
from elasticdl.spec.edge import check_output
from elasticdl.spec.framework import check_output_name
from elasticdl.spec.jobspec import JobSpec
from elasticdl.worker.contract.framework import Framework, find_framework
from elasticdl.worker.contract.trained import GroupState


def check_of_model_file(folder: Path) -> None:
    """Refuse a checkpoint of a program with a custom training loop, which only that program understands. Raises BadSetting."""
    with contextlib.suppress(BadData):  # what is damaged is passed over, and said to be
        manifest = checkpoints.read_any(folder)
        if manifest.dealing.by_record:
            raise BadSetting(
                f"CHECKPOINT: {folder} is of a program with a custom training loop, which writes its result itself, by job.result(write): "
                f"go on from there with `elasticdl run --checkpoint_dir_for_init={folder} --output=RESULT -- python train.py`"
            )


def export_tables(checkpoint: str, output: str) -> str:
    """Write tables and variables of a checkpoint, or of the newest in a directory, as Parquet; return what is said of damaged ones.

    Raises BadInput or OSError.
    """
    folder, manifest, passed_over = newest_whole(checkpoint, checkpoints.read, "CHECKPOINT")
    check_output(output, directory=True)
    catalog = Catalog.from_json(manifest.model)
    with made_beside(output, "learnt") as made, _room(made) as room:
        saved = Saved(manifest, Path(room), {})
        check_values(catalog, saved.values, str(folder))
        values = [saved.values[number] for number in range(len(catalog.variables))]
        write_parquet(made, catalog, values, saved)
    return passed_over


def export_model(checkpoint: str, spec: JobSpec) -> str:
    """Write the model of a checkpoint as a job with these settings would have; return what is said of damaged ones.

    Raises BadInput or OSError.
    """
    folder, manifest, passed_over = newest_whole(checkpoint, checkpoints.read_any, "CHECKPOINT")
    framework = find_framework(spec)
    form = check_output_name(spec, framework)
    check_output(spec.output, directory=not form.suffix)
    framework.import_library(Path(os.devnull))  # this process has no log
    if isinstance(manifest, GroupManifest):
        state = GroupState(folder, read_state(folder / NAME).image)
        framework.export_state(framework.load(spec), spec, state, spec.output, form.name)
    else:
        _export_saved(framework, spec, manifest, form.name, str(folder))
    return passed_over


def _export_saved(
    framework: Framework, spec: JobSpec, manifest: Manifest, kind: str, checkpoint: str
) -> None:
    catalog = Catalog.from_json(manifest.model)
    model = framework.restored(framework.load(spec), catalog, spec.embedding_threshold)
    target = Path(spec.output)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _room(target) as room:
        saved = Saved(manifest, Path(room), model.rows())
        check_values(catalog, saved.values, checkpoint)
        model.export(spec.output, kind, saved.values, saved)


def _room(beside: Path) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix=f".{beside.name}.", dir=beside.parent)
