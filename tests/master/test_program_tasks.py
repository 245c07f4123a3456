"""The master of a program that processes records: what they are is the first worker's word."""

from __future__ import annotations

import pytest

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import AtGate, Data, FoundShards, MemberMessage, TaskKind
from elasticdl.control.protocol.psmessages import Enroll
from elasticdl.control.protocol.tasking import NO_VIEW, STATE
from elasticdl.control.protocol.view import MemberId
from elasticdl.data.plan.loopplan import LoopPlan
from elasticdl.data.plan.programtasks import MOST
from elasticdl.data.plan.shard import Shard
from elasticdl.master.core import events
from elasticdl.master.core.records import EpochRecord, FailedRecord, Record, ShardsRecord
from elasticdl.master.running.tasking import settings
from elasticdl.master.tasking.machine import TaskMaster
from elasticdl.spec.edge import build, from_arguments
from tests.master.test_tasking import Job

SHARDS = (Shard("a.csv", 0, 5), Shard("b.csv", 0, 4))
PLAN = LoopPlan(9, 2, 1, shuffle=False)
FOUND = FoundShards(SHARDS, (), PLAN)


class Program(Job):
    """The master of such a job."""

    def __init__(self, *records: Record) -> None:
        super().__init__(TaskKind.PROCESS, records=records or (EpochRecord(1),))

    def __post_init__(self) -> None:
        spec = build(from_arguments({"job_command": "python process.py", "work": "tasks"}))
        self.master = TaskMaster(settings(spec, None, None))
        self.said: list[events.Instruction] = []
        self.give(events.JournalRead(self.records, len(self.records)))

    def join(self, number: int, found: MemberMessage = FOUND) -> None:
        member = MemberId(f"m{number}")
        self.give(events.ConnectionOpened(number, member, f"worker-{number}-1"))
        self.hear(number, found)
        self.hear(number, Enroll(member, f"worker-{number}-1", "", 0, None, (), 0, False))
        self.hear(number, AtGate(NO_VIEW, STATE, ""))

    @property
    def records_written(self) -> list[Record]:
        return [one.record for one in self.said if isinstance(one, events.Append)]


def test_records_and_tasks_are_those_of_the_first_worker() -> None:
    job = Program()
    job.join(1)
    assert ShardsRecord(SHARDS, (), PLAN) in job.records_written
    assert Data(SHARDS, (), PLAN) in job.told(1)
    assert job.master.plan is not None
    assert [job.master.plan.num_task_records(task) for task in range(5)] == [2, 2, 1, 2, 2]
    assert job.leased(1) == [0, 1]
    later = Program(EpochRecord(1), ShardsRecord(SHARDS, (), PLAN))
    assert later.master.plan is not None
    assert later.master.plan.num_tasks == 5


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (FoundShards(SHARDS, (), replace(PLAN, batch_size=3)), "records per task (2 and 3)"),
        (FoundShards(SHARDS[:1], (), replace(PLAN, records=5)), "records (9 and 5)"),
        (FoundShards((Shard("c.csv", 0, 9),), (), PLAN), "other files, or other records in them"),
    ],
)
def test_a_worker_that_processes_something_else_ends_the_job(found: FoundShards, words: str) -> None:
    job = Program()
    job.join(1)
    job.join(2, found)
    failed = job.records_written[-1]
    assert isinstance(failed, FailedRecord)
    assert (failed.kind, failed.worker) == ("bad-input", "worker-2-1")
    assert words in failed.reason


def test_too_many_tasks_end_the_job() -> None:
    job = Program()
    plan = LoopPlan(MOST + 1, 1, 1, shuffle=False)
    job.join(1, FoundShards(plan.shards(), (), plan))
    failed = job.records_written[-1]
    assert isinstance(failed, FailedRecord)
    assert "use records_per_task=2 or more" in failed.reason


@pytest.mark.parametrize(
    "lie",
    [
        FoundShards(SHARDS),
        FoundShards(SHARDS, SHARDS, PLAN),
        FoundShards(SHARDS, (), replace(PLAN, records=8)),
        FoundShards(SHARDS, (), replace(PLAN, batch_size=0)),
    ],
)
def test_what_no_program_can_say_is_refused(lie: FoundShards) -> None:
    job = Program()
    job.join(1, lie)
    assert any(isinstance(one, events.Refuse) for one in job.said)
    assert job.master.plan is None
