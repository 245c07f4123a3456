"""The machine of a worker with parameter servers, literally: times and events in, instructions out."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest

from elasticdl.cluster.cluster import EVICTED, RELEASED
from elasticdl.control.protocol.messages import (
    Acknowledged,
    Barrier,
    Evaluated,
    Evicted,
    Exported,
    Finished,
    GateOpen,
    Note,
    ProgramFailed,
    Released,
    TaskKind,
    TaskLeased,
    TaskResult,
)
from elasticdl.control.protocol.psmessages import (
    BarrierPassed,
    Enroll,
    FoundMetrics,
    FoundModel,
    Holding,
    Leased,
    Leave,
    Model,
    Placed,
    RevokeTask,
    Settled,
    TaskDone,
    Unreached,
    Watermark,
    WriteResult,
)
from elasticdl.control.protocol.view import MemberId, StateId, ViewId
from elasticdl.data.plan.evaluation import EvaluationPlan
from elasticdl.data.plan.ledger import Ledger
from elasticdl.data.plan.shard import Shard
from elasticdl.data.plan.tasks import TaskOrder
from elasticdl.data.plan.waves import WHOLE, Waves
from elasticdl.worker.contract.allreduce import GateLogs
from elasticdl.worker.contract.ps import Gradients, PsBatch
from elasticdl.worker.events import (
    ChunkEvaluated,
    ComputeMetrics,
    Connected,
    DrainRequested,
    Exit,
    MetricsComputed,
    ProgramError,
    Received,
    Send,
    Tick,
    WorkCancelled,
)
from elasticdl.worker.ps.events import (
    Asked,
    AwaitEnd,
    AwaitRows,
    Compute,
    Computed,
    Confirm,
    Done,
    EndTraining,
    EvaluateChunk,
    Export,
    Fetch,
    Fetched,
    FetchEvaluated,
    Forget,
    GiveUp,
    Learn,
    Leaving,
    Line,
    Log,
    PassBarrier,
    Passed,
    Pull,
    PullRows,
    PullVariables,
    Push,
    PushEnded,
    PushFirstValues,
    RowsCame,
    Started,
    StillWaiting,
    UseLast,
    Work,
    WriteLine,
    Written,
)
from elasticdl.worker.ps.machine import PsMember, PsMemberSettings
from elasticdl.worker.ps.pacing import Pacing

CHUNKS = 3
SHARD = Shard("data", 0, 12 * CHUNKS)
BATCH = PsBatch(1, (), None)
SLOTS = frozenset({1, 2})
ROWS = RowsCame([], frozenset(), ())
GRADIENTS = Gradients(0.5, [], [])
NOT_YET = StillWaiting(())
EVALUATION = EvaluationPlan((Shard("held out", 0, 4),), 1, 0, True, 2)
"""Two tasks of two minibatches."""
BARRIER = StateId(6, ViewId(0))
VALUES = (("val_loss", 0.5),)


def placed(roll_back: int = 0) -> Placed:
    return Placed((0,), ("unix:/ps",), (), roll_back, "", None, 12)


class Rig:
    """A machine, a clock, and one that does its work when a test says so."""

    def __init__(
        self,
        wave: int = 0,
        skips_nan: bool = False,
        resumed: bool = False,
        evaluation: EvaluationPlan | None = None,
        follows: bool = False,
    ) -> None:
        order = TaskOrder(Ledger((SHARD,), CHUNKS, 1, 0, shuffle=False), 1, 0, wave or 1, evaluation)
        pacing = Pacing(order, Waves(order) if wave else None, 0)
        metrics = "" if evaluation is None else "metrics"
        settings = PsMemberSettings(
            "catalog",
            acts_at_end=True,
            skips_nan=skips_nan,
            resumed=resumed,
            evaluation=evaluation,
            metrics=metrics,
            follows=follows,
        )
        self.machine = PsMember(MemberId("m"), "worker-0-0", order, pacing, settings)
        self.now = 0.0
        self.work: Any = None
        self.tickets = 0
        self.did: list[Any] = []
        self.last: list[Any] = []
        """What the last outcome led to."""
        self.feed(Started(), Received(placed()))

    def feed(self, *events: Any) -> list[Any]:
        """Give events; return what they led to, work included."""
        said: list[Any] = []
        for event in events:
            instructions = self.machine.handle(self.now, event)
            work = [one for one in instructions if isinstance(one, get_args(Work))]
            assert len(work) <= 1, "one piece of work at a time"
            if work:
                assert self.work is None, f"{self.work} is outstanding"
                assert instructions[-1] is work[0], "work comes last"
                self.work = work[0]
            said += instructions
        return said

    def hear(self, *messages: Any) -> list[Any]:
        return self.feed(*map(Received, messages))

    def say(self, *messages: Any) -> list[Any]:
        """Hear messages; return what is answered."""
        return [one.message for one in self.hear(*messages) if isinstance(one, Send)]

    def end(self, outcome: Any) -> list[Any]:
        """End the outstanding work."""
        assert self.work is not None
        self.did.append(self.work)
        self.work = None
        self.last = self.feed(outcome)
        return self.last

    def asked(self) -> list[Any]:
        self.tickets += 1
        return self.end(Asked(self.tickets))

    def until(self, *kinds: type) -> Any:
        """Let all work succeed until there is one of a kind, or none; return it."""
        while self.work is not None and not isinstance(self.work, kinds):
            match self.work:
                case Fetch() | FetchEvaluated():
                    self.end(Fetched(1, 0, BATCH, SLOTS))
                case EvaluateChunk(state, task, chunk):
                    self.end(ChunkEvaluated(state, task, chunk, b"body" if chunk else None))
                case ComputeMetrics(state):
                    self.end(MetricsComputed(state, VALUES))
                case Pull() | PullRows() | PullVariables() | Push() | PushFirstValues():
                    self.asked()
                case AwaitRows():
                    self.end(ROWS)
                case Compute():
                    self.end(Computed(GRADIENTS, True))
                case AwaitEnd():
                    self.end(PushEnded("settled"))
                case WriteLine() | UseLast() | EndTraining():
                    self.end(Done())
                case _:
                    return self.work
        return self.work

    def done(self, kind: type) -> list[Any]:
        return [one for one in self.did if isinstance(one, kind)]


def stamps(works: list[Any]) -> list[tuple[int, int]]:
    return [(work.chunk.task, work.chunk.chunk) for work in works]


# ------------------------------------------------------------------ tasks and chunks


def test_a_task_is_trained_chunk_by_chunk_each_pushed_under_its_stamp() -> None:
    rig = Rig()
    rig.hear(Leased(4, 0, 0))
    assert rig.until() is None
    assert stamps(rig.done(Compute)) == stamps(rig.done(Push)) == [(4, 0), (4, 1), (4, 2)]


def test_rows_of_the_next_chunk_travel_with_the_push_of_the_one_before() -> None:
    rig = Rig()
    rig.hear(Leased(4, 0, 0))
    assert rig.until() is None
    # The first two come in messages of their own: nothing is computed yet.
    assert [one.wanted.chunk.chunk for one in rig.done(Pull)] == [0, 1]
    assert [None if one.wanted is None else one.wanted.chunk.chunk for one in rig.done(Push)] == [
        2,
        None,
        None,
    ]


def test_chunks_that_follow_are_expected_four_ahead() -> None:
    rig = Rig()
    rig.hear(Leased(4, 1, 0), Leased(7, 0, 0))
    assert rig.work == Fetch(((0, 4, 1), (0, 4, 2)))
    rig.until(Compute)
    (_, second) = rig.done(Fetch)
    assert second == Fetch(((0, 4, 2), (0, 7, 0), (0, 7, 1), (0, 7, 2)))


def test_two_chunks_at_most_are_pushed_and_not_settled() -> None:
    rig = Rig()
    rig.hear(Leased(4, 0, 0), Leased(5, 0, 0))
    unsettled: list[int] = []
    while True:
        work = rig.until(Push, AwaitEnd)
        if isinstance(work, Push):
            assert len(unsettled) < 2
            rig.asked()
            unsettled.append(rig.tickets)
        elif isinstance(work, AwaitEnd) and work.seconds == 0.0:
            rig.end(NOT_YET)
        elif isinstance(work, AwaitEnd):
            assert work.ticket == unsettled.pop(0)
            rig.end(PushEnded("settled"))
        else:
            break
    assert len(rig.done(Push)) == 2 * CHUNKS
    assert not unsettled


def test_the_audit_hears_of_a_chunk_and_its_slots_with_its_first_push() -> None:
    rig = Rig()
    rig.hear(Leased(4, 2, 0))
    push = rig.until(Push)
    assert push.line == Line(4, 2, 0, 4, 1, 0, SLOTS)


@pytest.mark.parametrize("resumed", [False, True])
def test_a_chunk_that_all_slots_hold_is_passed_over(resumed: bool) -> None:
    rig = Rig(resumed=resumed)
    rig.hear(Leased(4, 2, 0))
    rig.until(AwaitRows)
    rig.end(RowsCame([], SLOTS | {9}, ()))
    assert rig.until() is None
    assert not rig.done(Compute)
    assert [one.line.slots for one in rig.done(WriteLine)] == ([SLOTS] if resumed else [])


def test_a_chunk_without_examples_asks_servers_for_nothing_and_its_task_is_done() -> None:
    rig = Rig()
    rig.hear(Leased(4, 2, 0))
    said = rig.end(Fetched(1, 1, PsBatch(0, (), None), frozenset()))
    assert said == [WriteLine(Line(4, 2, 0, 4, 1, 1, frozenset()))]
    assert rig.end(Done()) == [Send(TaskDone(4, 0, None))]


def test_done_is_repeated_until_the_watermark_passes_it() -> None:
    rig = Rig()
    rig.hear(Leased(4, 2, 0))
    rig.until()
    assert rig.feed(Tick()) == [Send(TaskDone(4, 0))]
    rig.hear(Watermark(5, 0, ()))
    assert rig.feed(Tick()) == []


def test_a_watermark_and_a_revocation_take_tasks_away() -> None:
    rig = Rig()
    rig.hear(Leased(3, 1, 0))
    rig.hear(Leased(4, 0, 0), Leased(5, 0, 0), Watermark(4, 0, ()), RevokeTask(5, 0))
    (enroll,) = [
        one.message
        for one in rig.feed(Connected())
        if isinstance(one, Send) and isinstance(one.message, Enroll)
    ]
    assert enroll.holds == (Holding(4, 0),)


def test_progress_is_told_now_and_then_and_the_end_of_a_task_at_once() -> None:
    rig = Rig()
    rig.now = 10.0
    rig.hear(Leased(4, 0, 0), Leased(5, 0, 0))
    told: list[Any] = []
    while rig.until(AwaitEnd) is not None:
        rig.now += 0.15
        said = rig.end(PushEnded("settled"))
        told += [one.message for one in said if isinstance(one, Send)]
    loss = GRADIENTS.loss
    assert told == [
        Settled(4, 1, 0, loss), TaskDone(4, 0, loss), Settled(5, 2, 0, loss), TaskDone(5, 0, loss),
    ]  # fmt: skip


# ------------------------------------------------------------------ what servers answer


def test_servers_that_can_not_be_reached_are_told_to_the_master_and_waited_for() -> None:
    rig = Rig()
    rig.hear(Leased(4, 2, 0))
    waiting = rig.until(AwaitRows)
    assert rig.end(StillWaiting((3, 5))) == [Send(Unreached((3, 5))), waiting]


def test_variables_without_a_value_get_their_first_one_and_come_again() -> None:
    rig = Rig()
    rig.hear(Leased(4, 2, 0))
    rig.until(AwaitRows)
    assert rig.end(RowsCame([], frozenset(), (1,))) == [PushFirstValues((1,), 0, 0)]
    assert rig.until(PullVariables) == PullVariables((1,))
    rig.until(Compute)
    assert stamps([rig.work]) == [(4, 2)]


def test_a_stale_chunk_is_computed_again_until_no_part_is_and_has_one_line() -> None:
    rig = Rig()
    rig.hear(Leased(4, 2, 0))
    for _ in range(2):
        rig.until(AwaitEnd)
        rig.end(PushEnded("stale"))
        assert rig.until(Pull).wanted.again
    assert rig.until() is None
    assert stamps(rig.done(Push)) == [(4, 2)] * 3
    assert [one.line is None for one in rig.done(Push)] == [False, True, True]


def test_a_stale_chunk_that_is_no_number_now_adds_nothing_under_its_stamp() -> None:
    rig = Rig(skips_nan=True)
    rig.hear(Leased(4, 2, 0))
    rig.until(AwaitEnd)
    rig.end(PushEnded("stale"))
    rig.until(Compute)
    rig.end(Computed(GRADIENTS, False))
    assert rig.until() is None
    assert [one.is_nothing for one in rig.done(Push)] == [False, True]


# ------------------------------------------------------------------ roll-backs


def test_after_a_roll_back_nothing_of_before_is_waited_for() -> None:
    rig = Rig()
    rig.hear(Leased(4, 0, 0))
    rig.until(AwaitRows)
    assert rig.hear(placed(1)) == [Learn(placed(1))]
    assert rig.end(NOT_YET) == [Forget()]
    assert rig.say(Leased(4, 0, 0)) == []
    assert rig.work is None, "a lease of before counts for nothing"
    rig.hear(Leased(4, 0, 1))
    assert rig.until(Push).chunk.roll_back == 1


def test_a_push_that_was_rolled_back_makes_the_loop_begin_again() -> None:
    rig = Rig()
    rig.hear(Leased(4, 2, 0))
    rig.until(AwaitEnd)
    assert rig.end(PushEnded("rolled back"))[0] == Forget()
    assert stamps([rig.until(Push)]) == [(4, 2)]


def test_what_is_computed_is_not_pushed_along_with_rows_for_a_later_roll_back() -> None:
    rig = Rig()
    rig.hear(Leased(4, 1, 0))
    rig.until(Compute)
    rig.hear(placed(1), Leased(6, 0, 1))
    assert rig.end(Computed(GRADIENTS, True)) == [Forget(), Fetch(((0, 6, 0), (0, 6, 1), (0, 6, 2)))]


# ------------------------------------------------------------------ steps of several gradients


def test_a_chunk_of_an_earlier_step_comes_first() -> None:
    """A5: the worker would wait for itself."""
    rig = Rig(wave=2)
    assert rig.hear(Leased(2, 1, 0))[0] == Confirm(0, 0, ((2, 1),))
    rig.until(AwaitRows)
    rig.hear(Leased(3, 0, 0))
    assert rig.end(NOT_YET)[0] == Forget()
    rig.until(Compute)
    assert stamps([rig.work]) == [(3, 0)]


def test_in_steps_chunks_of_a_task_are_settled_in_turn() -> None:
    rig = Rig(wave=2)
    rig.hear(Leased(2, 0, 0))
    rig.until(Push)
    rig.asked()
    while rig.until(AwaitEnd, Push) == AwaitEnd(rig.tickets, 0.0):
        rig.end(NOT_YET)
    assert isinstance(rig.work, AwaitEnd)
    assert rig.work.seconds > 0
    rig.until(Push)
    assert rig.work.confirms == 2


def test_a_stale_chunk_is_computed_again_while_the_rows_of_the_next_step_wait_for_it() -> None:
    rig = Rig(wave=2)
    rig.hear(Leased(2, 0, 0))
    rig.until(Push)
    assert stamps([rig.work]) == [(2, 0)]
    rig.asked()
    while rig.until(AwaitRows, AwaitEnd) == AwaitEnd(rig.tickets, 0.0):
        rig.end(NOT_YET)
    rig.end(NOT_YET)
    assert rig.work == AwaitEnd(rig.tickets, 0.0)
    rig.end(PushEnded("stale"))
    wanted = rig.until(Pull).wanted
    assert (wanted.chunk.chunk, wanted.need, wanted.again) == (0, (CHUNKS, 0, 2, WHOLE), True)
    rig.until(Push)
    assert (rig.work.chunk.chunk, rig.work.confirms) == (0, 1)


def test_a_step_has_the_share_of_its_records_and_waits_for_the_steps_before() -> None:
    rig = Rig(wave=2)
    rig.hear(Leased(2, 1, 0))
    assert rig.until(Pull).wanted.need == (CHUNKS + 1, 2, 4, 1)
    push = rig.until(Push)
    assert (push.step, push.share) == (CHUNKS + 1, 0.5)


# ------------------------------------------------------------------ errors of the program


def test_gradients_that_are_no_numbers_fail_the_job_or_are_passed_over() -> None:
    rig = Rig()
    rig.hear(Leased(4, 2, 0))
    rig.until(Compute)
    (said,) = rig.end(Computed(GRADIENTS, False))
    assert (said.message.kind, said.message.step) == ("nan", 1)
    assert "among the records 14 to 14 of data" in said.message.traceback
    assert rig.hear(Leased(5, 0, 0)) == []
    end = Exit(1, "its program has failed")
    assert rig.hear(Acknowledged("failed")) == [Leaving(end), end]


def test_gradients_that_are_no_numbers_may_be_passed_over() -> None:
    """Their stamp is in all slots: who computes the chunk again may see other weights, and finds it done."""
    rig = Rig(skips_nan=True)
    rig.hear(Leased(4, 2, 0))
    rig.until(Compute)
    (note, push) = rig.end(Computed(GRADIENTS, False))
    assert isinstance(note.message, Note)
    assert push.is_nothing
    assert push.line == Line(4, 2, 0, 4, 1, 0, SLOTS, idle=True)
    rig.until(AwaitEnd)
    assert rig.end(PushEnded("settled")) == [Send(TaskDone(4, 0, None))]


def test_what_some_slots_hold_already_and_is_no_number_now_is_pushed_to_the_others() -> None:
    rig = Rig(wave=2, skips_nan=True)
    rig.hear(Leased(2, 2, 0))
    rig.until(AwaitRows)
    rig.end(RowsCame([], frozenset({1}), ()))
    rig.end(Computed(GRADIENTS, False))
    push = rig.until(Push)
    assert (push.is_nothing, push.confirms) == (True, WHOLE)


def test_what_the_program_raises_goes_to_the_master_and_nothing_more_is_begun() -> None:
    rig = Rig()
    rig.hear(Leased(4, 0, 0))
    failed = ProgramFailed("program", "KeyError at x", "", "why", 0)
    assert rig.end(ProgramError("program", "KeyError at x", "", "why")) == [Send(failed)]
    assert rig.hear(Leased(5, 0, 0)) == []
    assert Send(failed) in rig.feed(Connected()), "it is said again to the next master"
    assert rig.hear(Acknowledged("failed"))[-1] == Exit(1, "its program has failed")


def test_another_model_than_the_job_s_is_bad_input() -> None:
    rig = Rig()
    (failed,) = rig.say(Model("another catalog"))
    assert failed.kind == "bad-input"
    assert FoundModel("catalog") not in [getattr(one, "message", None) for one in rig.feed(Connected())]


# ------------------------------------------------------------------ leaving


def test_who_drains_settles_what_is_pushed_and_says_what_it_has() -> None:
    rig = Rig()
    rig.hear(Leased(4, 0, 0))
    rig.until(Compute)
    rig.feed(DrainRequested())
    assert rig.until() is None
    # The chunk whose rows had come already is the last one.
    assert stamps(rig.done(Push)) == [(4, 0), (4, 1)]
    (leave,) = [
        one.message for one in rig.feed(Connected()) if isinstance(getattr(one, "message", None), Leave)
    ]
    assert leave == Leave((), 0)
    end = Exit(RELEASED, "bye")
    assert rig.hear(Released("bye")) == [Leaving(end), end]


def test_a_worker_that_leaves_says_once_how_far_its_tasks_are() -> None:
    rig = Rig()
    rig.hear(Leased(4, 0, 0))
    rig.feed(DrainRequested())
    rig.until(AwaitEnd)
    assert rig.end(PushEnded("settled")) == [Send(Leave((Holding(4, 1),), 0))]
    assert rig.feed(Tick()) == []


def test_a_verdict_is_passed_on_at_once_and_ends_the_work_when_it_is_looked_up_from() -> None:
    rig = Rig()
    rig.hear(Leased(4, 0, 0))
    rig.until(AwaitRows)
    end = Exit(EVICTED, "silent")
    assert rig.hear(Evicted("silent")) == [Leaving(end)]
    assert rig.end(NOT_YET) == [end]


def test_the_heart_tells_own_work_from_waiting() -> None:
    rig = Rig()
    assert rig.machine.beat == (0, 0, 0)
    rig.hear(Leased(4, 2, 0))
    assert rig.machine.beat == (0, 0, 1)
    rig.until(AwaitRows)
    assert rig.machine.beat == (0, 0, 0)
    rig.end(ROWS)
    assert rig.machine.beat == (0, 0, 1)
    rig.until(AwaitEnd)
    assert rig.machine.beat == (0, 1, 2)


# ------------------------------------------------------------------ the result


def test_the_result_is_written_once_training_has_ended_and_is_said_until_it_is_answered() -> None:
    rig = Rig()
    rig.hear(WriteResult(7, 2))
    assert rig.until(Export) == Export(7, 2, 0, None)
    assert [type(one) for one in rig.did] == [PullVariables, AwaitRows, UseLast, EndTraining]
    (said,) = rig.end(Written("there", "digest"))
    assert isinstance(said.message, Exported)
    assert said in rig.feed(Connected())


def test_a_result_is_given_up_when_the_job_is_rolled_back_and_is_another_life_s_then() -> None:
    rig = Rig()
    rig.hear(WriteResult(7, 1))
    rig.until(Export)
    assert rig.feed(StillWaiting((3,))) == [Send(Unreached((3,)))]
    rig.hear(placed(1))
    assert rig.feed(NOT_YET) == [GiveUp()]
    assert rig.end(WorkCancelled()) == [Forget()]
    leaving, end = rig.hear(WriteResult(9, 2))
    assert isinstance(leaving, Leaving)
    assert end.code == EVICTED


def test_a_callback_that_fails_after_the_result_is_there_is_logged() -> None:
    rig = Rig()
    assert rig.hear(Finished("done"))[-1] == EndTraining(0, False)
    log, end = rig.end(ProgramError("program", "x", "", "why"))
    assert isinstance(log, Log)
    assert log.warning
    assert end == Exit(0, "done")


def test_numbers_pass_through_untouched() -> None:
    """What is awaited is what is computed with, and what is computed is what is pushed."""
    rig = Rig()
    rig.hear(Leased(4, 2, 0))
    rig.until(AwaitRows)
    rows = [np.zeros(2, np.float32)]
    rig.end(RowsCame(rows, frozenset(), ()))
    assert rig.work.rows is rows
    gradients = Gradients(1.0, rows, rows)
    rig.end(Computed(gradients, True))
    assert rig.until(Push).gradients is gradients


# ------------------------------------------------------------------ evaluation


def task(number: int, state: StateId = BARRIER) -> TaskLeased:
    return TaskLeased(TaskKind.EVALUATE, state, number, b"")


@pytest.mark.parametrize("wave", [0, 4])
def test_a_task_is_evaluated_with_what_servers_have_and_nothing_is_pushed(wave: int) -> None:
    rig = Rig(wave, evaluation=EVALUATION)
    said = rig.say(task(1))
    assert rig.until(EvaluateChunk) == EvaluateChunk(BARRIER, 1, 0, BATCH, [])
    need = rig.done(PullVariables)[0].need
    assert (need is None) == (not wave)
    assert rig.done(PullRows) == 2 * [PullRows(BATCH, need)]
    assert rig.until() is None
    assert said == []
    assert [(one.task, one.chunk) for one in rig.done(EvaluateChunk)] == [(1, 0), (1, 1)]
    assert rig.done(Push) == rig.done(Pull) == []
    # The rows of the next minibatch are on their way while this one is evaluated.
    assert rig.did.index(rig.done(PullRows)[1]) < rig.did.index(rig.done(EvaluateChunk)[0])
    assert [one.message for one in rig.last if isinstance(one, Send)] == [TaskResult(BARRIER, 1, b"body")]


def test_the_next_task_is_evaluated_without_a_word_of_the_master_and_expected_before() -> None:
    rig = Rig(evaluation=EVALUATION)
    rig.hear(task(1), task(0))
    rig.until()
    fetched = [(one.task, one.chunk, one.following) for one in rig.done(FetchEvaluated)]
    assert fetched == [(1, 0, 0), (1, 1, 0), (0, 0, None), (0, 1, None)]
    assert [(one.task, one.chunk) for one in rig.done(EvaluateChunk)] == [(1, 0), (1, 1), (0, 0), (0, 1)]
    assert rig.say(task(1), task(0)) == [TaskResult(BARRIER, 1, b"body"), TaskResult(BARRIER, 0, b"body")]


def test_variables_are_pulled_once_for_a_barrier_unless_the_worker_trains_meanwhile() -> None:
    rig = Rig(evaluation=EVALUATION)
    for number, trains in ((0, False), (1, False), (0, True)):
        if trains:
            rig.hear(Leased(4, 0, 0))
            rig.until()
        rig.hear(task(number, BARRIER if not trains else StateId(8, ViewId(0))))
        rig.until()
    assert len(rig.done(PullVariables)) == 2
    assert len(rig.done(EvaluateChunk)) == 6
    rig.hear(task(1, StateId(8, ViewId(0))))
    rig.until()
    rig.hear(Leased(5, 0, 0))
    rig.until()
    assert len(rig.done(PullVariables)) == 2
    rig.hear(task(0, StateId(9, ViewId(0))))
    rig.until()
    assert len(rig.done(PullVariables)) == 3


def test_results_and_metrics_are_said_on_each_connection_until_the_barrier_opens() -> None:
    rig = Rig(evaluation=EVALUATION)
    rig.hear(task(0))
    rig.until()
    rig.hear(TaskLeased(TaskKind.METRICS, BARRIER, 0, b"sums"))
    assert rig.work == ComputeMetrics(BARRIER, b"sums")
    rig.until()
    mine = [TaskResult(BARRIER, 0, b"body"), Evaluated(BARRIER, VALUES)]
    said = [one.message for one in rig.feed(Connected()) if isinstance(one, Send)]
    assert [type(one) for one in said[:3]] == [FoundModel, Enroll, FoundMetrics]
    assert said[3:] == mine
    assert rig.say(GateOpen(StateId(3, ViewId(0)), VALUES)) == []  # one that was passed before
    assert rig.say(task(0)) == mine[:1]
    assert rig.work is None
    rig.hear(GateOpen(BARRIER, VALUES))
    assert [one.message for one in rig.feed(Connected()) if isinstance(one, Send)][3:] == []


@pytest.mark.parametrize("what", ["opened", "drained", "rolled back", "lost"])
def test_an_evaluation_that_nobody_waits_for_is_given_up(what: str) -> None:
    rig = Rig(evaluation=EVALUATION)
    rig.hear(task(0))
    rig.until(EvaluateChunk)
    match what:
        case "opened":
            rig.hear(GateOpen(BARRIER, VALUES))
        case "drained":
            rig.feed(DrainRequested())
        case "rolled back":
            rig.hear(placed(1))
        case "lost":
            rig.hear(Evicted("it is left out"))
    said = rig.end(ChunkEvaluated(BARRIER, 0, 0, None))
    if what == "lost":
        assert said[-1] == Exit(EVICTED, "it is left out")
        return
    assert Forget() in said
    assert rig.work is None
    rig.hear(
        task(0, {"rolled back": StateId(6, ViewId(1)), "opened": StateId(9, ViewId(0))}.get(what, BARRIER))
    )
    assert isinstance(rig.work, PullVariables) == (what != "drained")


def test_a_lease_of_before_a_roll_back_or_of_a_barrier_that_is_open_means_nothing() -> None:
    rig = Rig(evaluation=EVALUATION)
    rig.hear(GateOpen(BARRIER, VALUES), task(0))
    assert rig.work is None
    rig.hear(placed(1), task(1))
    assert rig.work is None
    rig.hear(task(0, StateId(6, ViewId(1))))
    assert rig.work is not None


def test_an_evaluation_is_progress() -> None:
    rig = Rig(evaluation=EVALUATION)
    rig.hear(task(0))
    rig.until(EvaluateChunk)
    before = rig.machine.beat
    assert before[2] % 2 == 1
    rig.end(ChunkEvaluated(BARRIER, 0, 0, None))
    rig.until(EvaluateChunk)
    assert rig.machine.beat[2] == before[2] + 2
    assert rig.machine.beat[1] == before[1]


# ---------------------------------------------------------------------- callbacks


def gate(step: int, of: int = 0, roll_back: int = 0, ended: bool = False) -> GateOpen:
    """Return what opens the barrier after so many steps, evaluated in the roll-back `of`."""
    return GateOpen(StateId(step, ViewId(of)), VALUES, Barrier(roll_back, 0, ended))


def logs(step: int, ended: bool = False) -> GateLogs:
    return GateLogs(step, 0, VALUES, ended, None)


def test_callbacks_pass_a_barrier_before_anything_beyond_is_begun() -> None:
    rig = Rig(follows=True)
    rig.hear(gate(6), gate(12, ended=True), Leased(4, 0, 0))
    assert rig.work == PassBarrier(logs(6), anew=False)
    assert not any(isinstance(one, Send) for one in rig.end(Passed(None)))
    assert rig.work == PassBarrier(logs(12, ended=True), anew=False)
    assert Send(BarrierPassed(StateId(12, ViewId(0)), "")) in rig.end(Passed(None))
    assert isinstance(rig.work, Fetch)
    rig.hear(gate(18), Leased(5, 0, 0))
    assert isinstance(rig.until(PassBarrier), PassBarrier)
    assert [one.chunk.task for one in rig.done(Compute)] == [4], "the one that was begun is computed"
    assert rig.work == PassBarrier(logs(18), anew=False)


def test_a_worker_that_joins_passes_what_was_before_one_by_one_and_shows_that_it_goes_on() -> None:
    rig = Rig(follows=True)
    rig.hear(gate(6), gate(12), gate(18), Leased(6, 0, 0))
    seen = []
    for step in (6, 12, 18):
        assert rig.work == PassBarrier(logs(step), anew=False)
        seen.append(rig.machine.beat[2])
        said = [one for one in rig.end(Passed(None)) if isinstance(one, Send)]
    assert seen == sorted(set(seen))
    assert said == [Send(BarrierPassed(StateId(18, ViewId(0)), ""))]
    assert isinstance(rig.work, Fetch)


def test_a_worker_says_on_each_connection_what_its_callbacks_have_passed_and_want() -> None:
    rig = Rig(follows=True)
    rig.hear(gate(6))
    rig.end(Passed("enough"))
    assert rig.work is None
    said = [one.message for one in rig.feed(Connected()) if isinstance(one, Send)]
    assert [one.follows for one in said if isinstance(one, Enroll)] == [True]
    assert BarrierPassed(StateId(6, ViewId(0)), "enough") in said
    assert rig.say(gate(6)) == []  # another master says it again
    assert rig.work is None


def test_after_a_roll_back_callbacks_begin_anew_unless_nothing_is_forgotten() -> None:
    rig = Rig(follows=True)
    rig.hear(gate(6), gate(12))
    rig.end(Passed(None))
    rig.end(Passed(None))
    rig.hear(placed(1))
    assert rig.work == PassBarrier(None, anew=True)
    rig.hear(gate(12), gate(6, roll_back=1))  # the first is of before
    rig.end(Passed(None))
    assert rig.work == PassBarrier(logs(6), anew=False)
    assert Send(BarrierPassed(StateId(6, ViewId(0)), "")) in rig.end(Passed(None))
    rig.hear(gate(12, of=1, roll_back=1))
    assert rig.work == PassBarrier(logs(12), anew=False)


def test_what_a_roll_back_has_not_forgotten_is_said_once_more() -> None:
    """The master waits for it again, and a worker that was at work meanwhile has nothing to pass."""
    rig = Rig(follows=True)
    rig.hear(gate(6), gate(12))
    rig.end(Passed(None))
    rig.end(Passed(None))
    rig.hear(Leased(4, 0, 0))
    rig.until(Compute)
    assert rig.say(placed(1), gate(6, roll_back=1)) == []
    assert rig.say(gate(12, roll_back=1)) == [BarrierPassed(StateId(12, ViewId(0)), "")]
    rig.hear(Leased(4, 0, 1))
    assert isinstance(rig.until(Fetch), Fetch), "callbacks are not begun anew"


def test_a_worker_whose_callbacks_follow_nothing_passes_nothing() -> None:
    rig = Rig()
    rig.hear(gate(6), Leased(4, 0, 0))
    assert isinstance(rig.work, Fetch)
    said = [one.message for one in rig.feed(Connected()) if isinstance(one, Send)]
    assert not any(isinstance(one, BarrierPassed) for one in said)


def test_the_result_is_written_after_the_last_barrier() -> None:
    rig = Rig(follows=True)
    rig.hear(gate(6), WriteResult(6, 1))
    assert isinstance(rig.work, PassBarrier)
    rig.end(Passed("enough"))
    assert isinstance(rig.work, PullVariables)


def test_a_callback_that_raises_at_a_barrier_is_a_program_error() -> None:
    rig = Rig(follows=True)
    rig.hear(gate(6), Leased(4, 0, 0))
    said = rig.end(ProgramError("program", "ValueError at m.py:3", "", "traceback"))
    assert any(isinstance(one, Send) and isinstance(one.message, ProgramFailed) for one in said)
    assert rig.work is None
