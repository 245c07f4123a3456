"""How the processes of a job open its data: master and workers alike, so that they find the same records.

Not for readers of the model file, which only workers run.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.control.transport.keys import Key, derive
from elasticdl.errors import BadData, BadInput
from elasticdl.files.drafts import replace_file
from elasticdl.files.permissions import PRIVATE
from elasticdl.files.predictions import mark_of, marked_draft_of
from elasticdl.spec.jobspec import JobKind

if TYPE_CHECKING:
    from elasticdl.cluster.local.place import JobPlace, Place
    from elasticdl.data.readers.reader import BadRecords, Reader
    from elasticdl.spec.jobspec import JobSpec

_MARK = "mark"
"""File in the folder of a job that has lost its launcher."""
MOST_IN_PODS = 32 << 20
"""Bytes of a table that each pod makes for itself if there is no place for it that all of them see."""


def open_job_data(
    place: Place,
    spec: JobSpec,
    origin: str,
    bad_records: BadRecords | None = None,
    progress: Callable[[int, int], None] | None = None,
    note: Callable[[str, bool], object] = lambda text, waits: None,
    alive: Callable[[], object] = lambda: None,
) -> Reader:
    """Open training or validation data; `note` and `alive`: as of `Patience`. Raises BadData, BadSetting or StorageAway."""
    from elasticdl.data.plan.order import records_per_task
    from elasticdl.data.readers.madetables import MadeTables
    from elasticdl.data.readers.patience import Patience
    from elasticdl.data.readers.recordfiles import open_reader

    folder = place.path / "data"
    if spec.data_cache:
        tables = MadeTables(_cached(place, spec))
    else:
        tables = MadeTables(folder, 0 if place.identity is None else MOST_IN_PODS)
    patience = Patience(spec.storage_seconds, note, alive)
    per_task = records_per_task(spec)
    return open_reader(
        origin, spec.data_reader_params, folder, bad_records, progress, per_task, tables, patience
    )


def predictions_draft(place: Place, spec: JobSpec, job_key: bytes) -> Path | None:
    """Return where the files of tasks, as those of predictions, lie until the job is done; None if none are written.

    Those of a table lie where other tables of the job do, as the database may be anywhere.
    """
    return _predictions_draft(place, spec, mark_of(job_key))


def _predictions_draft(place: Place, spec: JobSpec, mark: str) -> Path | None:
    if spec.kind not in (JobKind.PREDICT, JobKind.PROCESS) or not spec.output:
        return None
    if spec.output_table is None:
        return marked_draft_of(Path(spec.output), mark)
    return (_cached(place, spec) if spec.data_cache else place.path) / "predictions"


def remove_tables(place: Place, spec: JobSpec) -> None:
    """Remove what a job that has ended has made of its data, and what killed loaders have left; its own folder stays as it is."""
    _remove_tables(place, spec, mark_of(derive(place.token(), Key.DATA)))


def _remove_tables(place: Place, spec: JobSpec, mark: str) -> None:
    if spec.data_cache:
        shutil.rmtree(_cached(place, spec), ignore_errors=True)
    if (table := spec.output_table) is not None and table.file:
        shutil.rmtree(marked_draft_of(Path(table.file), mark), ignore_errors=True)


def leave_mark(place: JobPlace) -> None:
    """Keep by what name `remove_leftovers` finds unfinished files of tasks: the token goes with the job's last process. Raises OSError."""
    replace_file(place.path / _MARK, mark_of(place.key(Key.DATA)), PRIVATE)


def remove_leftovers(place: JobPlace) -> None:
    """Remove the unfinished files of tasks of a job whose launcher was killed; one that ended by itself has none."""
    if place.has_token():  # its master was killed with the launcher
        mark = mark_of(place.key(Key.DATA))
    elif (kept := place.path / _MARK).exists():
        mark = kept.read_text()
    else:
        return
    try:
        spec = place.spec()
    except BadInput:
        return  # of another release, which knows what it made
    if (draft := _predictions_draft(place, spec, mark)) is not None:
        shutil.rmtree(place.directory / draft, ignore_errors=True)
    _remove_tables(place, spec, mark)


def _cached(place: Place, spec: JobSpec) -> Path:
    # The name is unique among the jobs that there are, not among all that there were.
    return Path(spec.data_cache) / f"{place.name}-{place.submitted_at:.0f}"


def check_columns(training: Reader, validation: Reader) -> None:
    """Check that `feed` can read validation data as it reads training data. Raises BadData.

    Columns of numbers may differ in their types, and rows of strings, which are read by position, in their names; what is there besides
    in validation data is of no matter.
    """
    one, other = (
        dict(getattr(reader.metadata, "column_dtypes", {}) or {}) for reader in (training, validation)
    )
    if bool(one) != bool(other):
        has, lacks = ("training_data", "validation_data") if one else ("validation_data", "training_data")
        raise BadData(
            f"{has} has the columns {_shown(tuple(one or other))}, and {lacks} has none; both need to be of one kind"
        )
    if {*one.values(), *other.values()} <= {"string"}:
        if len(one) == len(other):
            return
        raise BadData(
            f"training_data has {len(one)} columns, {_shown(tuple(one))}, and validation_data {len(other)}, {_shown(tuple(other))}; both "
            "need the same columns"
        )
    for name, dtype in one.items():
        if name not in other or _sort(dtype) != _sort(other[name]):
            raise BadData(
                f"the column {name!r} of training_data is {dtype}, and in validation_data it is {other.get(name, 'missing')}; both need "
                "the same columns"
            )


def _sort(dtype: str) -> str:
    """Return what a column has, whatever the type of its numbers."""
    kind, bracket, rest = dtype.partition("[")
    return (kind if kind in ("string", "binary") else "number") + bracket + (rest if "][" in dtype else "")


def check_classes(training: Reader, validation: Reader) -> None:
    """Check that numbers of classes mean the same in training and validation data. Raises BadData."""
    one, other = (getattr(reader.metadata, "class_names", ()) for reader in (training, validation))
    if one != other:
        raise BadData(
            f"training_data has the classes {_shown(one)}, and validation_data {_shown(other)}; say which number is which class with "
            f'--data_reader_params="classes={list(one or other)!r}"'
        )


def _shown(names: tuple[str, ...]) -> str:
    return ", ".join(names[:20]) + (" …" if len(names) > 20 else "") or "of numbers"
