"""All mistakes, and where to look for each."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from tests.simulation.mistakes.checkpoints import (
    BeginsAnew,
    CheckpointNamedOnce,
    FinishBeforeCheckpoint,
    GivenUpPublished,
    ManifestEarly,
    PartsOfAnotherView,
    UnfencedSnapshot,
)
from tests.simulation.mistakes.ends import (
    CrashIsFailure,
    EndNoCas,
    FailedAfterFinished,
    FinishOnReport,
    OldExportAfterStop,
    ReleaseByWord,
    ReleaseEarly,
    RenameOnce,
    RenameOnReport,
    RestartIgnoresFailed,
    StopBesideJournal,
    StopInMemory,
    StopNotFinal,
    StopOnce,
    UnfencedFinish,
    VerdictToldFirst,
)
from tests.simulation.mistakes.gates import (
    ExportBeforeGate,
    GateIgnored,
    GateSkippedByHealee,
    LocalMetrics,
    MetricsAfterStop,
    MetricsByStep,
    MetricsNoCas,
    MetricsNotHealed,
    MetricsToldFirst,
    NextReplacesFirst,
    ResultsByStep,
    ResultsSaidOnce,
    ZerosAtGate,
)
from tests.simulation.mistakes.members import (
    AbortIsFailure,
    AuditAll,
    AuditByCommitters,
    AuditHealed,
    DonorGoesOn,
    KeepAccumulator,
    KeepStateAfterEviction,
    NoFloor,
    NoSeal,
    RetryInView,
    RingOfTheLiving,
    StaleAccumulator,
)
from tests.simulation.mistakes.views import (
    DrainLeavesAtOnce,
    EvictAll,
    NoCas,
    NoStop,
    NotAllReports,
    OldWorkMayHang,
    PublishFirst,
)
from tests.simulation.oracle import Violation
from tests.simulation.plan import Plan
from tests.simulation.world import World

MISTAKES: tuple[type[World], ...] = (
    NoSeal, NotAllReports, EvictAll, RingOfTheLiving, PublishFirst, NoCas, NoFloor, KeepAccumulator, StaleAccumulator,
    RetryInView, DonorGoesOn, KeepStateAfterEviction, UnfencedFinish, FinishOnReport,
    AuditByCommitters, AuditHealed, DrainLeavesAtOnce, NoStop, OldWorkMayHang, StopInMemory, StopBesideJournal, StopNotFinal, StopOnce,
    ReleaseEarly, ReleaseByWord, OldExportAfterStop, AuditAll, FailedAfterFinished, EndNoCas, RestartIgnoresFailed,
    CrashIsFailure, AbortIsFailure, VerdictToldFirst, RenameOnReport, RenameOnce,
    GateIgnored, GateSkippedByHealee, ZerosAtGate, MetricsToldFirst, MetricsNoCas, MetricsByStep, MetricsAfterStop, ResultsByStep,
    ResultsSaidOnce, NextReplacesFirst, ExportBeforeGate, LocalMetrics, MetricsNotHealed,
    ManifestEarly, PartsOfAnotherView, UnfencedSnapshot, GivenUpPublished, CheckpointNamedOnce, FinishBeforeCheckpoint, BeginsAnew,
)  # fmt: skip


@dataclass(frozen=True)
class Focus:
    """Which plans make a mistake likely to show: the most of each fault; the seed chooses how many."""

    most: dict[str, int]
    workers: tuple[int, ...] = (2, 3)
    joins: int = 1
    spans: tuple[int, ...] = (60, 120, 200)
    pace: tuple[tuple[str, float], ...] = ()
    gates: tuple[int, ...] = (0,)
    lasting: bool = False

    def plan(self, seed: int) -> Plan:
        rng = random.Random(f"focus {seed}")
        plan = Plan(
            workers=rng.choice(self.workers),
            joins=rng.randint(0, self.joins),
            lanes=rng.choice((None, 2, 3)),
            tasks=rng.choice((3, 4)),
            chunks=rng.choice((1, 2, 3)),
            checkpoint_steps=1,
            span=rng.choice(self.spans),
            pace=self.pace,
        )
        plan = replace(plan, **{name: rng.randint(min(1, most), most) for name, most in self.most.items()})
        return replace(plan, gates=rng.choice(self.gates), lasting=self.lasting)


_SLOW_RINGS = (("ring", 20.0), ("message", 0.3), ("wait status", 0.3), ("disk", 0.3))
_SLOW_STEPS = (("compute", 20.0), ("start", 0.3))
_STOP = Focus({"stops": 1, "kills": 2, "pauses": 1, "master_kills": 2}, spans=(40, 80))
_END = Focus({"errors_at_end": 1, "second_masters": 1, "master_kills_at_end": 1})
FOCUS: dict[str, Focus] = {
    "NoSeal": Focus({"kills": 4}, workers=(3, 4), pace=_SLOW_RINGS),
    "EvictAll": Focus({"partitions": 3}, workers=(1,), joins=2, spans=(40, 80), pace=_SLOW_STEPS),
    "NoCas": Focus({"second_masters": 2, "kills": 2, "drains": 1, "disconnects": 2}),
    "NoFloor": Focus({"kills": 4, "glitches": 3}, workers=(3, 4), pace=_SLOW_STEPS),
    "RetryInView": Focus({"glitches": 3}),
    "KeepStateAfterEviction": Focus({"partitions": 3, "kills": 2}, spans=(60, 120), pace=_SLOW_STEPS),
    "ManifestEarly": Focus({"part_faults": 1}),
    "PartsOfAnotherView": Focus({"part_faults": 3, "kills": 2}),
    "UnfencedSnapshot": Focus({"part_faults": 3, "kills": 3}, workers=(2,), pace=(("file", 4.0),)),
    "GivenUpPublished": Focus({"part_faults": 3, "kills": 2}),
    "CheckpointNamedOnce": Focus({"part_faults": 2, "master_kills": 3, "kills": 2}),
    "FinishBeforeCheckpoint": Focus({}, lasting=True),
    "BeginsAnew": Focus({"kills": 1, "resumed": 3}),
    "UnfencedFinish": Focus({"export_faults": 2}),
    "DrainLeavesAtOnce": Focus({"drains": 2, "glitches": 3}, workers=(3,)),
    "OldWorkMayHang": Focus({"stuck": 1, "kills": 2}, workers=(3,)),
    "StopInMemory": _STOP,
    "StopBesideJournal": Focus(
        {"stops": 1, "second_masters": 2, "kills": 2, "disconnects": 2}, spans=(60, 100)
    ),
    "StopNotFinal": _STOP,
    "StopOnce": _STOP,
    "ReleaseEarly": Focus({"stops": 1}, spans=(40, 80)),
    "ReleaseByWord": Focus(
        {"stops": 1, "final_drains": 2, "second_masters": 2, "disconnects": 3}, workers=(2,), spans=(60, 100)
    ),
    "OldExportAfterStop": Focus({"stops": 1, "export_faults": 3}, spans=(60, 100)),
    "AuditAll": _STOP,
    "FailedAfterFinished": _END,
    "EndNoCas": _END,
    "RestartIgnoresFailed": Focus({"errors": 1, "master_kills_at_end": 1}, spans=(60,)),
    "VerdictToldFirst": Focus({"errors": 2}),
    "GateIgnored": Focus({}, gates=(1, 2)),
    "GateSkippedByHealee": Focus({"kills": 1}, joins=2, gates=(1,)),
    "ZerosAtGate": Focus({}, joins=2, gates=(1,)),
    "MetricsToldFirst": Focus({"master_kills": 1}, gates=(1,)),
    "MetricsNoCas": Focus({"second_masters": 2, "gate_faults": 2}, gates=(1,)),
    "MetricsByStep": Focus({"kills": 3, "glitches": 3}, workers=(3, 4), gates=(1,), pace=_SLOW_RINGS),
    "MetricsAfterStop": Focus({"stops": 1}, spans=(40, 80), gates=(1, 2)),
    "ResultsByStep": Focus({"kills": 4, "glitches": 3}, workers=(3, 4), gates=(1,), pace=_SLOW_RINGS),
    "ResultsSaidOnce": Focus({"master_kills": 3, "gate_faults": 2}, gates=(1,)),
    "NextReplacesFirst": Focus({}, workers=(1,), gates=(1,)),
    "ExportBeforeGate": Focus({}, gates=(2,)),
    "LocalMetrics": Focus({}, gates=(2,)),
    "MetricsNotHealed": Focus({"kills": 1}, joins=2, gates=(1,)),
}


def focus_of(world: type[World]) -> Focus:
    """Return where to look for a mistake."""
    return FOCUS.get(world.__name__, Focus({"kills": 3, "pauses": 2, "glitches": 2, "master_kills": 1}))


def find(world: type[World], schedules: int) -> tuple[int, str] | None:
    """Return the seed of the first schedule that shows the mistake, and how; None if none of them does."""
    focus = focus_of(world)
    for seed in range(schedules):
        try:
            world(seed, focus.plan(seed)).run()
        except Violation as violation:
            return seed, str(violation)
    return None
