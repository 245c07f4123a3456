"""What the program of a custom training loop says of its data: the first worker's word is the job's, and settings follow from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import Data, FoundShards
from elasticdl.control.protocol.view import MemberId
from elasticdl.data.plan.ledger import Permutation
from elasticdl.data.plan.loopplan import LoopPlan
from elasticdl.data.plan.order import dealing_of, schedule_of, with_plan
from elasticdl.data.plan.shard import Position
from elasticdl.errors import BadData
from elasticdl.master.core.events import ConnectionOpened, Refuse
from elasticdl.master.core.records import FailedRecord, ShardsRecord
from elasticdl.master.running.allreduce import settings
from elasticdl.spec.edge import build, from_arguments
from elasticdl.spec.jobspec import JobSpec
from tests.master.grouprig import SHARDS, Control

PLAN = LoopPlan(100, 8, 2, shuffle=True, global_batch_size=32, max_step=20, seed=5)
FOUND = FoundShards(PLAN.shards(), (), PLAN)


def spec(**more: Any) -> JobSpec:
    return build(from_arguments({"job_command": "python train.py", "num_workers": 2, **more}))


class Loop(Control):
    """The master of a job with a custom training loop."""

    def __init__(self, *records: Any) -> None:
        made = settings(spec(), None)
        super().__init__(
            *records, plan=made.plan, policy_lanes=made.policy_lanes, for_loop=made.for_loop, output=None
        )

    def meet(self, name: str) -> None:
        self.give(ConnectionOpened(ord(name), MemberId(name), f"worker-{ord(name)}-0"))


def test_data_batches_and_steps_are_what_the_first_worker_says() -> None:
    control = Loop()
    control.meet("a")
    control.say("a", FOUND)
    assert control.journal[-1] == ShardsRecord(PLAN.shards(), (), PLAN)
    assert control.told("a") == [Data(PLAN.shards(), (), PLAN)]
    control.join("b")
    control.wait(60)  # the first worker does not come
    assert control.view.position == Position(0, 0, 4, 0)  # 32 records in batches of 8
    schedule = control.master.schedule
    assert schedule is not None
    assert (schedule.num_epochs, schedule.max_step) == (2, 20)
    assert [control.master.settings.policy_lanes(members) for members in (1, 3)] == [4, 4]


def test_the_next_master_takes_the_plan_from_the_journal() -> None:
    control = Loop()
    control.meet("a")
    control.say("a", FOUND)
    control.join("b")
    control.wait(60)
    later = Loop(*control.journal)
    assert later.view == control.view
    assert later.master.settings.policy_lanes(1) == 4
    later.meet("c")
    assert later.told("c") == [Data(PLAN.shards(), (), PLAN)]


@pytest.mark.parametrize("begun", [False, True])
def test_a_worker_with_another_plan_ends_the_job(begun: bool) -> None:
    control = Loop()
    control.hold = not begun
    control.meet("a")
    control.say("a", FOUND)
    if begun:
        control.say("a", FOUND)  # once more, as after a new connection
        control.join("b")
    other = replace(PLAN, batch_size=16, seed=6)
    control.meet("c")
    control.hold = False
    control.say("c", FoundShards(other.shards(), (), other))
    if not begun:
        assert control.master.give_up is not None
        assert control.master.give_up.kind == "bad-input"
        return
    failed = control.journal[-1]
    assert isinstance(failed, FailedRecord)
    assert (failed.kind, failed.worker) == ("bad-input", "worker-99-0")
    assert "batch size (8 and 16), seed (5 and 6)" in failed.reason


def test_a_plan_without_records_ends_the_job() -> None:
    control = Loop()
    control.meet("a")
    empty = replace(PLAN, records=0)
    control.say("a", FoundShards(empty.shards(), (), empty))
    failed = control.journal[-1]
    assert isinstance(failed, FailedRecord)
    assert failed.kind == "bad-input"


@pytest.mark.parametrize(
    "found",
    [
        FoundShards(SHARDS),
        FoundShards(SHARDS, (), PLAN),
        FoundShards(PLAN.shards(), SHARDS, PLAN),
        FoundShards(replace(PLAN, batch_size=0).shards(), (), replace(PLAN, batch_size=0)),
        FoundShards(PLAN.shards(), (), replace(PLAN, num_epochs=-1)),
    ],
)
def test_what_no_program_says_is_refused(found: FoundShards) -> None:
    control = Loop()
    control.meet("a")
    control.say("a", found)
    assert any(isinstance(said, Refuse) for said in control.said)
    assert not any(isinstance(record, ShardsRecord) for record in control.journal)


def test_a_job_with_a_model_file_takes_no_plan() -> None:
    control = Control()
    control.give(ConnectionOpened(1, MemberId("a"), "worker-0-0"))
    control.give(ConnectionOpened(ord("b"), MemberId("b"), "worker-1-0"))
    control.say("b", FOUND)
    assert any(isinstance(said, Refuse) for said in control.said)


def test_a_journal_of_another_kind_of_job_is_refused() -> None:
    with pytest.raises(BadData, match="model file"):
        Control(ShardsRecord(PLAN.shards(), (), PLAN))
    with pytest.raises(BadData, match="plan"):
        Loop(ShardsRecord(SHARDS))


@pytest.mark.parametrize("plan", [PLAN, replace(PLAN, shuffle=False, num_epochs=0, global_batch_size=0)])
def test_master_and_workers_find_the_same_order(plan: LoopPlan) -> None:
    made = with_plan(spec(), plan)
    masters, workers = schedule_of(made, plan.shards(), ()), plan.schedule()
    position, lanes = masters.start(plan.lanes(2)), plan.lanes(2)
    assert position == workers.start(lanes)
    for _ in range(30):
        assert [masters.task(position, lane) for lane in range(position.lanes)] == [
            workers.task(position, lane) for lane in range(position.lanes)
        ]
        if masters.ended(position, 0):
            break
        position = masters.advance(position, lanes)
        assert workers.has(position)
    assert (masters.num_epochs, masters.max_step) == (workers.num_epochs, workers.max_step)


def test_a_checkpoint_tells_the_order_of_records() -> None:
    mine, ordered = (
        dealing_of(with_plan(spec(), plan), plan.shards()) for plan in (PLAN, replace(PLAN, shuffle=False))
    )
    assert list(mine.differences(ordered)) == ["shuffle (True and False)"]
    assert mine.by_record
    assert [mine.ledger().task(1, place).id for place in range(13)] == list(range(13))
    assert sorted(Permutation(100, 5, 0)(place) for place in range(100)) == list(range(100))


def test_settings_of_model_files_stay() -> None:
    plain = build(from_arguments({"model_def": "m.f", "training_data": "data"}))
    assert with_plan(plain, None) is plain
    assert settings(plain, Path("/snapshots")).for_loop is None
