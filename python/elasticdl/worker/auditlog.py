"""What a member writes for the auditor: one file per member, one line per fact.

The format is in `elasticdl/audit/__init__.py`, in words; no code is shared, so that one's mistakes are not the other's. Lines reach the
kernel before the fact they announce (one `write` each, no buffer of ours), which is what a killed process can't lose; they are not
synced, because what is proven is exactly-once under killed processes, not under lost power. So a process that writes a line that the disk
does not take waits with the fact, and continues when there is room.
"""

from __future__ import annotations

import logging
import os
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from elasticdl.control.protocol.view import MemberId, View
from elasticdl.errors import Unwritable
from elasticdl.files.permissions import guarded
from elasticdl.worker.events import Contribution

_log = logging.getLogger(__name__)

_PATIENCE_SECONDS = 10.0
"""How long a disk may take nothing; others may wait for this process meanwhile, and must not take it for one that hangs."""
_RETRY_SECONDS = 0.2

Answer = TypeVar("Answer")


class _Log:
    """One process's file, `NAME-MEMBERID.audit` in the audit's directory."""

    def __init__(self, directory: Path, name: str, member: MemberId, tell: Callable[[str], object]) -> None:
        """Create the file; it must not exist. `tell` is called when the disk takes nothing, and this process waits.

        Raises Unwritable, as all that writes here does, when that lasts too long.
        """
        self._directory = directory
        self._tell = tell
        path = directory / f"{name}-{member}.audit"
        self._file = self._patiently(lambda: open(path, "xb", buffering=0, opener=guarded))  # noqa: SIM115
        self._checksum = 0
        self._pending = bytearray()
        self._add(f"elasticdl-audit 1 {member} {name}")
        self._hand_over()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _add(self, text: str) -> None:
        line = text.encode()
        self._checksum = zlib.crc32(line, self._checksum)
        self._pending += b"%s %08x\n" % (line, self._checksum)

    def _hand_over(self) -> None:
        while self._pending:
            # What was not taken stays first in line, so the file has no gap however this ends.
            del self._pending[: self._patiently(lambda: os.write(self._file.fileno(), self._pending))]

    def _patiently(self, act: Callable[[], Answer]) -> Answer:
        """Do something with the disk, again and again while that fails."""
        until = None
        while True:
            try:
                return act()
            except FileExistsError:
                raise  # of another process, whose proof it is
            except OSError as error:
                failure = Unwritable(
                    f"the audit in {self._directory} can't be written",
                    error,
                    "start the job again, with an empty --audit directory",
                )
            if until is None:
                until = time.monotonic() + _PATIENCE_SECONDS
                _log.warning("%s", failure.what)
                self._tell(f"{failure.what}; it waits {_PATIENCE_SECONDS:.0f} s for that to be mended")
            elif time.monotonic() >= until:
                raise failure
            time.sleep(_RETRY_SECONDS)


class AuditLog(_Log):
    """What a member of a synchronous group writes."""

    def base(self, view: View) -> None:
        """Say that a view was installed and which state it starts from."""
        members = ",".join(peer.id for peer in view.members)
        self._add(f"base {view.id} {view.base.step} {view.base.view} {members}")
        self._hand_over()

    def contributed(self, view: int, step: int, epoch: int, chunks: Sequence[Contribution]) -> None:
        """Say what the contribution contains; before its first byte is given away."""
        for chunk in chunks:
            if chunk.records:
                self._add(
                    f"contributed {view} {step} {chunk.lane} {epoch} {chunk.task} {chunk.chunk} {chunk.records} {chunk.bad}"
                )
        self._hand_over()

    def committed(self, view: int, step: int, records: int, *, applied: bool = True) -> None:
        """Say that a step is committed, with the trailer's sum of records, and whether it changes the model; before it does."""
        self._add(f"committed {view} {step} {records} {int(applied)}")
        self._hand_over()


class PsAuditLog(_Log):
    """What a worker with parameter servers writes."""

    def chunk(
        self,
        number: int,
        chunk: int,
        epoch: int,
        task: int,
        records: int,
        bad: int,
        slots: Iterable[int],
        *,
        idle: bool = False,
    ) -> None:
        """Say what a chunk is, which slots it touches, and whether it changes nothing in them; before the first byte of it is pushed."""
        mask = 0
        for slot in slots:
            mask |= 1 << slot
        kind = "idle" if idle else "chunk"
        self._add(f"{kind} {number} {chunk} {epoch} {task} {records} {bad} {mask:x}")
        self._hand_over()
