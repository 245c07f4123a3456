"""Audit directories as a job would leave them, written by the words of `audit.py`'s docstring and by nothing else."""

from __future__ import annotations

import json
import random
import zlib
from dataclasses import dataclass, field
from pathlib import Path


def seal(body: dict[str, object]) -> str:
    """Add the checksum of `manifest` and `finished`."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    return json.dumps({**body, "checksum": f"{zlib.crc32(text):08x}"})


def chain(lines: list[str]) -> bytes:
    """Give every line its running checksum."""
    checksum, out = 0, []
    for line in lines:
        checksum = zlib.crc32(line.encode(), checksum)
        out.append(f"{line} {checksum:08x}\n")
    return "".join(out).encode()


def unchain(data: bytes) -> list[str]:
    """Return the whole lines without their checksums."""
    return [line.rpartition(" ")[0] for line in data.decode().splitlines()]


@dataclass
class Member:
    id: str
    name: str
    lines: list[str]
    state: tuple[int, int] | None = None
    holds: set[int] = field(default_factory=set)
    cut: bytes = b""

    def file(self, directory: Path) -> Path:
        return directory / f"{self.name}-{self.id}.audit"


@dataclass
class History:
    """A finished job, disturbed by a seeded series of deaths, joins, aborts and partial successes."""

    seed: int
    directory: Path
    stop_early: bool = False
    disturb: float = 0.4
    leaves_out: bool = False
    members: list[Member] = field(default_factory=list)
    dead: list[Member] = field(default_factory=list)
    lineage: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        rng = self.rng
        self.minibatch = rng.choice([1, 3, 8])
        self.per_task = self.minibatch * rng.choice([1, 2, 3])
        self.shards = [
            [f"s{i}", rng.choice([0, 10]), rng.choice([0, 1, 5, 17, 40])] for i in range(rng.randint(1, 3))
        ]
        if not any(count for _, _, count in self.shards):
            self.shards[0][2] = 7
        self.epochs = rng.randint(1, 2)
        self.view, self.step, self.state_view = 0, 0, 1
        self.snapshot: tuple[int, int] = (0, 0)
        self.steps = self._all_steps()
        self.end = rng.randint(0, len(self.steps)) if self.stop_early else len(self.steps)
        self.idle = {step for step in range(1, self.end + 1) if self.leaves_out and rng.random() < 0.2}
        self._serial = 0

    def bad(self, task: int, chunk: int, records: int) -> int:
        """Return how many records of a chunk are corrupt: the same for every reader."""
        return min(records, (task + chunk) % 3) if self.leaves_out else 0

    @property
    def everybody(self) -> list[Member]:
        return self.dead + self.members

    def tasks(self) -> list[tuple[int, int]]:
        """Return (task, records) of an epoch."""
        sizes = [
            min(self.per_task, int(count) - at)
            for _, _, count in self.shards
            for at in range(0, int(count), self.per_task)
        ]
        return list(enumerate(sizes))

    def _all_steps(self) -> list[list[tuple[int, int, int, int]]]:
        """Return per step the chunks (epoch, task, chunk, records), one per lane."""
        steps = []
        for epoch in range(self.epochs):
            order = self.tasks()
            self.rng.shuffle(order)
            while order:
                wave = [order.pop() for _ in range(min(len(order), self.rng.randint(1, 3)))]
                for chunk in range(max(-(-records // self.minibatch) for _, records in wave)):
                    left = [
                        (task, max(0, min(self.minibatch, records - chunk * self.minibatch)))
                        for task, records in wave
                    ]
                    steps.append([(epoch, task, chunk, records) for task, records in left])
        return steps

    def write(self) -> History:
        for _ in range(self.rng.randint(1, 3)):
            self._join()
        self._next_view((0, 1))
        while self.step < self.end:
            self._attempt()
        self._next_view((self.step, self.lineage.get(self.step, 1)))
        body: dict[str, object] = {
            "format": 1,
            "shards": self.shards,
            "seed": self.seed,
            "records_per_task": self.per_task,
        }
        body |= {"minibatch_size": self.minibatch, "num_epochs": self.epochs}
        (self.directory / "manifest").write_text(seal(body))
        self.write_finished()
        for member in self.everybody:
            member.file(self.directory).write_bytes(chain(member.lines) + member.cut)
        return self

    def write_finished(self, **changes: object) -> None:
        body: dict[str, object] = {"format": 1, "view": self.view, "step": self.step}
        body |= {"state_view": self.lineage.get(self.step, 1), "complete": self.step == len(self.steps)}
        (self.directory / "finished").write_text(seal(body | changes))

    def _join(self) -> None:
        self._serial += 1
        member = Member(f"{self.rng.getrandbits(128):032x}", f"worker-{self._serial}-1", [])
        member.lines.append(f"elasticdl-audit 1 {member.id} {member.name}")
        self.members.append(member)

    def _die(self, member: Member) -> None:
        self.members.remove(member)
        self.dead.append(member)
        if self.rng.random() < 0.5:
            line = chain([*member.lines, "contributed 1 1 0 0 0 0 1 0"])[len(chain(member.lines)) :]
            member.cut = line[: self.rng.randrange(1, len(line))]

    def _next_view(self, base: tuple[int, int]) -> None:
        self.view += 1
        self.step = base[0]
        for step in [step for step in self.lineage if step > base[0]]:
            del self.lineage[step]
        names = ",".join(member.id for member in self.members)
        for member in self.members:
            if member.state != base:
                member.holds = set()
            member.state = base
            member.lines.append(f"base {self.view} {base[0]} {base[1]} {names}")

    def _contribute(self, member: Member, step: int) -> None:
        for lane in sorted(member.holds):
            epoch, task, chunk, records = self.steps[step - 1][lane]
            member.lines.append(
                f"contributed {self.view} {step} {lane} {epoch} {task} {chunk} {records} {self.bad(task, chunk, records)}"
            )

    def _commit(self, member: Member, step: int) -> None:
        total = sum(records for *_, records in self.steps[step - 1])
        member.lines.append(f"committed {self.view} {step} {total} {int(step not in self.idle)}")
        member.state, member.holds = (step, self.view), set()

    def _attempt(self) -> None:
        rng, step = self.rng, self.step + 1
        before = (self.step, self.lineage.get(self.step, 1))
        free = set(range(len(self.steps[step - 1]))) - set().union(*(member.holds for member in self.members))
        for lane in sorted(free):
            rng.choice(self.members).holds.add(lane)
        calm = rng.random() >= self.disturb
        contributing = (
            self.members
            if calm or rng.random() < 0.6
            else rng.sample(self.members, rng.randrange(len(self.members)))
        )
        for member in contributing:
            self._contribute(member, step)
        if len(contributing) < len(self.members):
            committing: list[Member] = []
        else:
            committing = (
                list(self.members) if calm else rng.sample(self.members, rng.randint(0, len(self.members)))
            )
        for member in committing:
            self._commit(member, step)
        if calm:
            self.step, self.lineage[step] = step, self.view
            if rng.random() < 0.2:
                self.snapshot = (step, self.view)
            if rng.random() < 0.1:
                self._join()
                self._next_view((step, self.view))
            return
        for member in rng.sample(self.members, rng.randint(0, len(self.members))):
            self._die(member)
        if rng.random() < 0.3 or not self.members:
            survivors = bool(self.members)
            self._join()
            if not survivors:
                self._next_view(self.snapshot if self.snapshot[0] else (0, self.view + 1))
                return
        if any(member in committing for member in self.members):
            self.lineage[step] = self.view
            self._next_view((step, self.view))
        else:
            self._next_view(before)


def histories(seed: int, directory: Path, **options: object) -> History:
    """Write one seeded history."""
    return History(seed, directory, **options).write()  # type: ignore[arg-type]
