"""A master of a synchronous job by hand: time and events in, instructions out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import (
    Cut,
    NextView,
    Register,
    Report,
    Saved,
)
from elasticdl.control.protocol.status import EventKind
from elasticdl.control.protocol.view import MemberId, StateId, View, ViewId
from elasticdl.data.plan.ledger import Ledger
from elasticdl.data.plan.schedule import Schedule
from elasticdl.data.plan.shard import Position, Shard
from elasticdl.files.output import unpublished_path
from elasticdl.master.allreduce.machine import AllReduceMaster, Settings
from elasticdl.master.core.events import (
    Announce,
    Append,
    Appended,
    ConnectionOpened,
    DataFound,
    Heard,
    Instruction,
    JournalRead,
    Tell,
    Tick,
)
from elasticdl.master.core.records import (
    Record,
    SnapshotRecord,
)

SHARDS = (Shard("s", 0, 32),)
SCHEDULE = Schedule(Ledger(SHARDS, 2, 1, 0, shuffle=False), num_epochs=1, max_step=0)
START = SCHEDULE.start(2)
MIDDLE = SCHEDULE.advance(START, 2)
S0, S1 = StateId(0, 1), StateId(1, 1)
OUTPUT = Path("/results/model.keras")
RESULT = unpublished_path(OUTPUT, 1, 1)
SNAPSHOT = "/snapshots/checkpoint-1/manifest.json"


def settings(**changes: Any) -> Settings:
    plain = Settings(
        workers=2,
        minimum=1,
        relaunches=1,
        plan=lambda *_: SCHEDULE,
        policy_lanes=lambda _: 2,
        output=OUTPUT,
        snapshots=Path(SNAPSHOT).parents[1],
    )
    return replace(plain, **changes)


class Control:
    """A master under control: time moves by hand, the journal takes everything at once unless it is held."""

    def __init__(self, *records: Record, **changes: Any) -> None:
        self.master = AllReduceMaster(settings(**changes))
        self.now = 100.0
        self.journal: list[Record] = list(records)
        self.hold = False
        self.said: list[Instruction] = []
        self.give(JournalRead(tuple(records), len(records)))

    def give(self, *events: Any) -> list[Instruction]:
        """Give events; return all that they led to."""
        self.said = []
        for event in events:
            self.master, said = self.master.handle(self.now, event)
            self._carry_out(said)
        return self.said

    def _carry_out(self, said: tuple[Instruction, ...]) -> None:
        self.said += said
        for instruction in said:
            if isinstance(instruction, Append) and not self.hold:
                assert instruction.number == len(self.journal) + 1
                self.journal.append(instruction.record)
                self.master, more = self.master.handle(self.now, Appended(instruction.record))
                self._carry_out(more)

    def wait(self, seconds: float) -> list[Instruction]:
        self.now += seconds
        return self.give(Tick())

    def wait_awake(self, seconds: int) -> list[Instruction]:
        """Let time pass, with a tick each second."""
        return [instruction for _ in range(seconds) for instruction in self.wait(1)]

    def join(self, *names: str, draining: bool = False) -> None:
        for name in names:
            connection = ord(name)
            report = Report(ViewId(0), ViewId(0), None, None, frozenset(), draining)
            self.give(ConnectionOpened(connection, MemberId(name), f"worker-{connection}-0"))
            self.say(name, Register(MemberId(name), f"worker-{connection}-0", f"unix:{name}", 0, report))

    def come_back(
        self, name: str, connection: int, sealed: int, state: StateId | None, draining: bool = False
    ) -> list[Instruction]:
        """A member of an earlier life of the master connects."""
        who = f"worker-{ord(name)}-0"
        opened = ConnectionOpened(connection, MemberId(name), who)
        return self.give(
            opened,
            Heard(
                connection, Register(MemberId(name), who, f"unix:{name}", 1, report(sealed, state, draining))
            ),
        )

    def say(self, name: str, message: Any) -> list[Instruction]:
        return self.give(Heard(ord(name), message))

    def seal(
        self, name: str, state: StateId | None = S1, draining: bool = False, holds: Any = ()
    ) -> list[Instruction]:
        assert self.master.view is not None
        return self.say(
            name, NextView(replace(report(self.master.view.id, state, draining), holds=frozenset(holds)))
        )

    def told(self, name: str) -> list[Any]:
        return [i.message for i in self.said if isinstance(i, Tell) and i.connection == ord(name)]

    def announced(self, kind: EventKind) -> list[Announce]:
        return [i for i in self.said if isinstance(i, Announce) and i.kind == kind]

    @property
    def view(self) -> View:
        assert self.master.view is not None
        return self.master.view

    @property
    def members(self) -> list[str]:
        return [peer.id for peer in self.view.members]


def report(sealed: int, state: StateId | None = S1, draining: bool = False) -> Report:
    position = {0: START, 1: MIDDLE}.get(state.step, Position(1, 0, 0, 0)) if state else None
    return Report(ViewId(sealed), ViewId(sealed), state, position, frozenset(), draining)


def name(letter: str) -> str:
    return f"worker-{ord(letter)}-0"


def group(*letters: str, **changes: Any) -> Control:
    """A master whose first view has these members."""
    control = Control(workers=len(letters), **changes)
    control.give(DataFound(SHARDS))
    control.join(*letters)
    assert control.members == list(letters)
    return control


def part(rank: int = 0, members: int = 1, view: int = 1) -> Saved:
    """Return what a member says of its part of the state of step 1."""
    cut = Cut(ViewId(view), S1, False)
    path = f"/snapshots/.checkpoint-step-1-view-{view}.draft/part-{rank}"
    return Saved(cut, MIDDLE, path, rank, 1, members, 7, "head")


FIRST = Cut(ViewId(1), S1, False)
RECORD = SnapshotRecord(ViewId(1), S1, MIDDLE, SNAPSHOT, 1)
