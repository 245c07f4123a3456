"""The files of a member's parts of saved states: written one after the other on a thread of their own, read when no member has a state."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from elasticdl._core import crc32c
from elasticdl.checkpoint.group import digest_of, read_state, write_head, write_part
from elasticdl.checkpoint.layout import group_draft_of, make_draft
from elasticdl.checkpoint.stateimage import State
from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import Saved
from elasticdl.control.protocol.view import StateId
from elasticdl.data.plan.shard import Position
from elasticdl.errors import BadData
from elasticdl.worker.events import TakePart

_Part = tuple[TakePart, int, int, npt.NDArray[np.uint8], bytes]


class PartWriter:
    """Writes parts, while training continues."""

    def __init__(self, directory: Path | None, written: Callable[[Saved], None]) -> None:
        """Write below a directory, and tell `written` of each part; without a directory none is given."""
        self._directory = directory
        self._written = written
        self._queue: queue.SimpleQueue[_Part | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def write(
        self, take: TakePart, first: int, size: int, content: npt.NDArray[np.uint8], head: bytes
    ) -> None:
        """Have a part written: `content` are the bytes from `first` on, of `size`; `head` is what the state has beside them."""
        self._queue.put((take, first, size, content, head))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="snapshots", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Write no more than what was given already, without waiting for it."""
        self._queue.put(None)

    def _run(self) -> None:
        while (part := self._queue.get()) is not None:
            self._written(self._write(*part))

    def _write(
        self, take: TakePart, first: int, size: int, content: npt.NDArray[np.uint8], head: bytes
    ) -> Saved:
        assert self._directory is not None, "nothing is saved without a directory"
        cut = take.cut
        folder = group_draft_of(self._directory, cut.view, cut.state.step, passed=cut.passed)
        path = folder / f"part-{take.rank}"
        saved = Saved(
            cut, take.position, str(path), first, content.nbytes, size, crc32c(content.data), digest_of(head)
        )
        try:
            make_draft(folder)
            write_part(path, content.data)
            if take.rank == 0:
                write_head(folder, head)
        except OSError as error:
            # training is worth more than a snapshot: the next one may fit
            return replace(saved, error=f"{path} can't be written: {error.strerror or error}")
        return saved


def read_saved(path: Path, state: StateId, position: Position) -> State:
    """Read the state of the manifest at `path`, which this job calls `state` and has at `position`.

    Raises BadData if it is damaged, or of another state: that of an earlier job has its step only.
    """
    found = read_state(path)
    expected = found.id if state.view else StateId(found.id.step, 0)
    if state != expected:
        raise BadData(f"{path}: it holds the state {found.id}, and {state} is needed")
    return replace(found, id=state, position=position)
