"""Callbacks that run in the member that writes, and nowhere else: what they write or send is to be there once.

The member that writes next opens files when it has something to write, and continues the one of CSVLogger. It may run a hook that
another member has run already, if that was lost at about that moment.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from elasticdl.keras.internals import begin_counting, flush_events
from elasticdl.keras.library import callbacks_of

_OPENING = "on_train_begin"
"""The hook in which files are opened; run that early, another member's file would be begun anew."""
_LINES = ("on_epoch_end", "on_train_end")
"""The hooks in which CSVLogger needs its file: at the end of training also without a line, as in `fit`."""


@dataclass(frozen=True, slots=True)
class Call:
    """A hook that is to be run.

    Attributes:
        hook: its name.
        place: number of the epoch or batch, if the hook has one.
        logs: what is known.
        step: committed steps.
        epochs: that have ended, with the one of which the hook says so.
    """

    hook: str
    place: tuple[int, ...]
    logs: Mapping[str, float]
    step: int
    epochs: int


def is_writer_only(callback: Any) -> bool:
    """Tell whether a callback runs in the member that writes, and nowhere else."""
    kinds = callbacks_of(callback)
    return isinstance(callback, kinds.CSVLogger | kinds.TensorBoard | kinds.RemoteMonitor)


def run(callback: Any, call: Call, model: Any, *, again: bool) -> None:
    """Run a hook in the member that writes; `again`: a former writer may have run it."""
    kinds = callbacks_of(callback)
    match callback:
        case kinds.CSVLogger():
            if call.hook == _OPENING or (again and _has_line(callback, call)):
                return
            if call.hook in _LINES and callback.csv_file is None:
                _open(callback, call)
        case kinds.TensorBoard() if callback.model is None:
            if call.hook in (_OPENING, "on_train_end"):
                return
            callback.set_model(model)
            callback.on_train_begin({})
            begin_counting(callback, call.step)
    getattr(callback, call.hook)(*call.place, dict(call.logs))
    if isinstance(callback, kinds.TensorBoard):
        # what its writers hold back would be lost with this process
        flush_events(callback)


def close(callback: Any) -> None:
    """Close the files of a callback that another one takes the place of."""
    if isinstance(callback, callbacks_of(callback).TensorBoard) and callback.model is not None:
        callback.on_train_end({})


def _open(callback: Any, call: Call) -> None:
    """Open the log file; the first line of the job begins the file, as in `fit`."""
    if call.epochs > (
        call.hook == "on_epoch_end"
    ):  # another member, or an earlier life of this one, has written
        callback.append = True
    callback.on_train_begin({})


def _has_line(callback: Any, call: Call) -> bool:
    """Tell whether the end of an epoch is the last line of the log file."""
    if call.hook != "on_epoch_end":
        return False
    try:
        with open(callback.filename, newline="") as file:
            lines = list(csv.DictReader(file, delimiter=callback.sep))
    except FileNotFoundError:
        return False
    wanted = {"epoch": call.place[0], **call.logs}
    return bool(lines) and all(
        lines[-1].get(name, str(value)) == str(value) for name, value in wanted.items()
    )


@contextmanager
def spoken(callback: Any, writing: bool) -> Iterator[None]:
    """Let what callbacks print of files and progress be in the log of the member that writes: a bar there is a line for each epoch."""
    kinds = callbacks_of(callback)
    match callback:
        case kinds.ProgbarLogger():
            callback.verbose = 2 if writing else 0
            if callback.progbar is not None:
                callback.progbar.verbose = callback.verbose
            yield
        case kinds.ModelCheckpoint():
            verbose = callback.verbose
            callback.verbose = verbose if writing else 0
            yield
            callback.verbose = verbose
        case _:
            yield
