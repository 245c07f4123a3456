"""Looking inside checkpoints: the lines of `elasticdl checkpoint list` and `show`.

They only read. What a checkpoint is, and whether it is whole, is known to `checkpoint/layout.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from elasticdl.catalog.catalog import Catalog
from elasticdl.checkpoint import layout as checkpoints
from elasticdl.checkpoint.comparing import compare, rows_by_table
from elasticdl.checkpoint.group import GroupManifest
from elasticdl.checkpoint.manifest import NAME, Manifest
from elasticdl.control.protocol.status import count_of
from elasticdl.data.plan.schedule import Schedule
from elasticdl.data.plan.tasks import TaskOrder
from elasticdl.errors import BadData, BadSetting

_WHOLE = "whole: all checksums hold"


def listed(directory: Path) -> list[str]:
    """Return a line for each checkpoint of a directory, the oldest first. Raises BadSetting if there is none.

    Whether files are there and as long as they should be is looked at; their content is not.
    """
    try:
        if (directory / NAME).exists():
            raise BadSetting(f"{directory} is a checkpoint itself; `elasticdl checkpoint show` looks inside")
        if not directory.exists():
            raise BadSetting(f"{directory} does not exist; name a directory of checkpoints")
        numbers = checkpoints.numbers(directory)
    except OSError as error:
        raise BadSetting(f"{directory} can't be read: {error.strerror}") from None
    if not numbers:
        raise BadSetting(f"there are no checkpoints in {directory}")
    rows = [_row(checkpoints.folder_of(directory, number)) for number in numbers]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return [
        "  ".join([*(f"{text:<{width}}" for text, width in zip(row, widths, strict=False)), row[-1]])
        for row in rows
    ]


def shown(path: Path) -> Iterator[str]:
    """Yield lines about a checkpoint, or the newest of a directory; the last one after all of it was read and compared with its checksums.

    Raises BadSetting if there is none, BadData if it is damaged, after what is known of it.
    """
    folder = checkpoints.locate(path, "the path")
    manifest = checkpoints.read_any(folder)
    rows = [
        ("checkpoint", str(folder)),
        ("number", f"{manifest.number}"),
        ("written", f"{_time(manifest)} by the job {manifest.job}"),
        ("position", _position(manifest)),
        ("to be resumed with", _resumable(manifest)),
        ("size", f"{_size(checkpoints.size_of(manifest))} in {count_of(len(manifest.sizes()), 'file')}"),
    ]
    if isinstance(manifest, GroupManifest):
        yield from _group(manifest, rows)
    else:
        yield from _servers(manifest, rows)


def _group(manifest: GroupManifest, rows: list[tuple[str, str]]) -> Iterator[str]:
    """Yield lines about a checkpoint of a synchronous job; the last one when all of it was read."""
    rows = [*rows, *_arrays(manifest)]
    if manifest.best is not None:
        when = "here" if manifest.is_best else f"at step {manifest.best.step:,}"
        rows.insert(6, ("best metric", f"{manifest.best.value:g}, {when}"))
    width = max(len(label) for label, _ in rows)
    for label, text in rows:
        yield f"{label:<{width}}  {text}"
    compare(manifest)
    yield f"{'state':<{width}}  {_WHOLE}"


def _arrays(manifest: GroupManifest) -> Iterator[tuple[str, str]]:
    """Yield what the state's arrays are; their description is the framework's, of which the name and the shape are for people."""
    arrays = manifest.meta.get("arrays")
    for array in arrays if isinstance(arrays, list) else ():
        if isinstance(array, dict) and isinstance(array.get("shape"), list):
            shape = " × ".join(str(size) for size in array["shape"]) or "one number"
            yield f"array {array.get('name')}", f"{shape}, {array.get('dtype')}"


def _servers(manifest: Manifest, rows: list[tuple[str, str]]) -> Iterator[str]:
    """Yield lines about a checkpoint of servers; the last one when all of it was read."""
    catalog = Catalog.from_json(manifest.model)
    rows = [*rows, *_model(catalog)]
    tables = [f"table {table.name}" for table in catalog.tables]
    width = max(map(len, (*tables, *(label for label, _ in rows))))
    for label, text in rows:
        yield f"{label:<{width}}  {text}"
    counts = rows_by_table(manifest)
    for number, (label, table) in enumerate(zip(tables, catalog.tables, strict=True)):
        yield f"{label:<{width}}  {counts[number]:,} rows of {table.width:,}"
    yield f"{'state':<{width}}  {_WHOLE}"


def _row(folder: Path) -> tuple[str, str, str, str, str]:
    try:
        manifest = checkpoints.read_any(folder)
        position = _position(manifest)
    except BadData as error:
        return folder.name, "", "", "", f"can't be used: {error}"
    size = _size(checkpoints.size_of(manifest))
    best = ", the best when it was written" if manifest.is_best else ""
    return folder.name, _time(manifest), position, size, f"all files are there{best}"


def _time(manifest: Manifest | GroupManifest) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(manifest.written_at))


def _position(manifest: Manifest | GroupManifest) -> str:
    return _step(manifest) if isinstance(manifest, GroupManifest) else _tasks(manifest)


def _step(manifest: GroupManifest) -> str:
    """Return how far a group has come. Raises BadData for a position that its data does not have."""
    schedule = Schedule(manifest.dealing.ledger(), 0, 0)
    position = manifest.position
    has_ended = position.lanes == 0 and manifest.is_between_epochs
    if not has_ended and not schedule.has(position):
        raise BadData(f"it is at {position}, where its data has nothing")
    records = position.epoch * schedule.ledger.num_records
    if not has_ended:
        records += schedule.records_done(position)
    done = f"{manifest.state.step:,} {'step' if manifest.state.step == 1 else 'steps'}"
    return f"{done}, {count_of(position.epoch, 'epoch')}, {records:,} records"


def _tasks(manifest: Manifest) -> str:
    ledger = manifest.dealing.ledger()
    order = TaskOrder(ledger, 0, 0)
    records = order.records_before(manifest.low) + sum(map(order.records, manifest.above))
    epochs, tasks = divmod(manifest.low, ledger.num_tasks)
    beyond = f" and {len(manifest.above)} beyond" if manifest.above else ""
    within = f" and {tasks:,} of {ledger.num_tasks:,} tasks" if tasks else ""
    return f"{count_of(epochs, 'epoch')}{within}{beyond}, {records:,} records{_begun(manifest, order)}"


def _begun(manifest: Manifest, order: TaskOrder) -> str:
    """Return what slots hold of tasks that are not done."""
    if not manifest.begun:
        return ""
    chunks = sum(chunks for _, chunks in manifest.begun)
    size = order.ledger.minibatch_size
    records = sum(min(chunks * size, order.records(task)) for task, chunks in manifest.begun)
    return f" and {records:,} in {chunks:,} {'minibatch' if chunks == 1 else 'minibatches'} of tasks that are not done"


def _resumable(manifest: Manifest | GroupManifest) -> str:
    if isinstance(manifest, GroupManifest):
        takes_any = manifest.is_between_epochs
    else:
        takes_any = manifest.is_between_tasks and manifest.low % manifest.dealing.ledger().num_tasks == 0
    if takes_any:
        return "any data"
    dealing = manifest.dealing
    shuffled = "shuffled" if dealing.shuffle else "not shuffled"
    return (
        f"the same {count_of(len(dealing.shards), 'shard')} with {dealing.ledger().num_records:,} records, {shuffled}, "
        f"seed {dealing.seed}, minibatches of {dealing.minibatch_size:,} and tasks of {dealing.records_per_task:,} records"
        + (f", steps of {dealing.grads_to_wait:,} gradients" if dealing.grads_to_wait else "")
    )


def _model(catalog: Catalog) -> Iterator[tuple[str, str]]:
    numbers = ", ".join(f"{name} {value:g}" for name, value in catalog.rule.parameters.items())
    decay = f", weight decay {catalog.rule.weight_decay:g}" if catalog.rule.weight_decay else ""
    yield "optimizer", catalog.rule.name + (f" ({numbers})" if numbers else "") + decay
    for variable in catalog.variables:
        yield f"variable {variable.name}", " × ".join(f"{size:,}" for size in variable.shape) or "one number"


def _size(count: int) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:,.0f} {unit}"
        count //= 1000
    return f"{count:,} TB"
