"""`elasticdl export`: a checkpoint of parameter servers becomes a model, or Parquet, without servers and within bounded memory."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from elasticdl.catalog.catalog import Catalog
from elasticdl.checkpoint import layout as checkpoints
from elasticdl.checkpoint.manifest import Manifest
from elasticdl.checkpoint.parquet import write_parquet
from elasticdl.checkpoint.saved import Saved
from elasticdl.errors import BadData
from elasticdl.files.output import made_beside
from elasticdl.spec.edge import check_output
from elasticdl.spec.framework import check_output_name
from elasticdl.spec.jobspec import JobSpec
from elasticdl.worker.contract.framework import find_framework


def export_tables(checkpoint: str, output: str) -> None:
    """Write tables and variables of a checkpoint, or of the newest in a directory, as Parquet. Raises BadInput or OSError."""
    manifest = _read(checkpoint)
    check_output(output, directory=True)
    catalog = Catalog.from_json(manifest.model)
    with made_beside(output, "learnt") as folder, _room(folder) as room:
        saved = Saved(manifest, Path(room), {})
        _check(catalog, saved, checkpoint)
        values = [saved.values[number] for number in range(len(catalog.variables))]
        write_parquet(folder, catalog, values, saved)


def export_model(checkpoint: str, spec: JobSpec) -> None:
    """Write the model of a checkpoint as a job with these settings would have. Raises BadInput or OSError."""
    manifest = _read(checkpoint)
    framework = find_framework(spec)
    form = check_output_name(spec, framework)
    check_output(spec.output, directory=not form.suffix)
    catalog = Catalog.from_json(manifest.model)
    framework.import_library(Path(os.devnull))  # this process has no log
    model = framework.restored(framework.load(spec), catalog, spec.embedding_threshold)
    target = Path(spec.output)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _room(target) as room:
        saved = Saved(manifest, Path(room), model.rows())
        _check(catalog, saved, checkpoint)
        model.export(spec.output, form.name, saved.values, saved)


def _read(checkpoint: str) -> Manifest:
    return checkpoints.read(checkpoints.locate(Path(checkpoint), "CHECKPOINT"))


def _room(beside: Path) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix=f".{beside.name}.", dir=beside.parent)


def _check(catalog: Catalog, saved: Saved, checkpoint: str) -> None:
    missing = [one.name for number, one in enumerate(catalog.variables) if number not in saved.values]
    if missing:
        raise BadData(
            f"{checkpoint}: the checkpoint has no value of {', '.join(missing)}: nothing had been trained"
        )
