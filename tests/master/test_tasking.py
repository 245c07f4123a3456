"""The master of jobs of tasks: what can't be said is refused, and who hangs is replaced."""

from __future__ import annotations

import dataclasses

import pytest

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import (
    AtGate,
    Evaluated,
    Exported,
    Finished,
    MasterMessage,
    MemberMessage,
    ProgramFailed,
    Register,
    Released,
    Report,
    TaskKind,
    TaskLeased,
    TaskResult,
    UseCheckpoint,
)
from elasticdl.control.protocol.psmessages import Enroll, Enrolled, FoundModel, Holding, Leave, Settled
from elasticdl.control.protocol.status import EventKind, JobEvent
from elasticdl.control.protocol.tasking import NO_VIEW, STATE
from elasticdl.control.protocol.view import MemberId, StateId, ViewId
from elasticdl.data.plan.onepass import OnePass
from elasticdl.data.plan.shard import Shard
from elasticdl.master.core import events
from elasticdl.master.core.records import (
    CheckpointRecord,
    EpochRecord,
    ErrorRecord,
    EvaluatedRecord,
    FailedRecord,
    FinishedRecord,
    Record,
    ShardsRecord,
)
from elasticdl.master.core.witnesses import Times
from elasticdl.master.processes.observed import Processes
from elasticdl.master.processes.replicas import ReplicaSet
from elasticdl.master.reporting.history import EventHistory, HistoryEvent
from elasticdl.master.reporting.taskstatusview import TaskStatusView
from elasticdl.master.running.context import Past
from elasticdl.master.running.tasking import TaskStrategy
from elasticdl.master.tasking.machine import Settings, TaskMaster
from elasticdl.spec.edge import build, from_arguments
from elasticdl.spec.jobspec import JobKind

SHARDS = (Shard("data", 0, 6),)


@dataclasses.dataclass
class Job:
    """A master, its journal and what it has said."""

    kind: TaskKind
    now: float = 0.0
    table: str = ""
    checkpoint: str = ""
    records: tuple[Record, ...] = (EpochRecord(1), ShardsRecord(SHARDS, ()))

    def __post_init__(self) -> None:
        def size(metrics: str) -> int:
            if metrics != "a sum":
                raise ValueError("no metrics")
            return 8

        settings = Settings(
            workers=2,
            minimum=1,
            relaunches=1,
            plan=lambda shards, validation: OnePass(shards, 2, 1),
            times=Times(),
            task=self.kind,
            add_up=lambda metrics, results: b"".join(results)[:8],
            result_size=size,
            draft="parts",
            table=self.table,
            checkpoint=self.checkpoint,
        )
        self.master = TaskMaster(settings)
        self.said: list[events.Instruction] = []
        self.give(events.JournalRead(self.records, len(self.records)))

    def give(self, event: events.Event) -> list[events.Instruction]:
        self.master, out = self.master.handle(self.now, event)
        self.said += out
        for one in out:
            if isinstance(one, events.Append):
                self.give(events.Appended(one.record))
        return list(out)

    def join(self, number: int) -> None:
        member = MemberId(f"m{number}")
        self.give(events.ConnectionOpened(number, member, f"worker-{number}-1"))
        self.hear(number, Enroll(member, f"worker-{number}-1", "", 0, None, (), 0, False))
        self.hear(number, AtGate(NO_VIEW, STATE, "a sum" if self.kind == TaskKind.EVALUATE else ""))

    def hear(self, number: int, message: MemberMessage) -> list[events.Instruction]:
        return self.give(events.Heard(number, message))

    def told(self, number: int) -> list[MasterMessage]:
        return [one.message for one in self.said if isinstance(one, events.Tell) and one.connection == number]

    def leased(self, number: int) -> list[int]:
        return [
            one.task for one in self.told(number) if isinstance(one, TaskLeased) and one.kind == self.kind
        ]


def for_people(kind: JobKind) -> TaskStrategy:
    """Return what shows such a job to people."""
    data, output = "validation_data", {}
    if kind is JobKind.PREDICT:
        data, output = "prediction_data", {"output": "p"}
    given = {"model_def": "m.f", data: "d", "trained_model": "m.keras", **output}
    return TaskStrategy(build(from_arguments(given), kind), "job", None, Past((), 0, (), (), ()))


@pytest.fixture
def job() -> Job:
    made = Job(TaskKind.EVALUATE)
    made.join(1)
    return made


ERROR = ProgramFailed("program", "KeyError at model.py", "", "KeyError: 'c' (line 3 of model.py)")
FIRST_ERROR = FailedRecord(
    "worker-1-1 failed before the first task was done: KeyError: 'c' (line 3 of model.py)",
    "program",
    "worker-1-1",
    ERROR.traceback,
)


def appended(told: list[events.Instruction]) -> list[Record]:
    return [one.record for one in told if isinstance(one, events.Append)]


def test_a_program_error_before_the_first_task_fails_the_job_which_says_so() -> None:
    job = Job(TaskKind.EVALUATE, records=())
    job.give(events.DataFound(SHARDS, ()))
    job.join(1)
    assert appended(job.hear(1, ERROR)) == [FIRST_ERROR]


@pytest.mark.parametrize("kind", [TaskKind.EVALUATE, TaskKind.PREDICT])
def test_another_master_fails_no_job_of_which_somebody_may_have_done_a_task(kind: TaskKind) -> None:
    later = Job(kind)
    later.join(1)
    assert appended(later.hear(1, ERROR)) == []
    later.join(2)
    assert appended(later.hear(2, TaskResult(STATE, 0, bytes(8) if kind == TaskKind.EVALUATE else b""))) == [
        ErrorRecord("worker-1-1", "KeyError at model.py")
    ]


def test_another_master_waits_for_a_first_task_no_longer_than_a_connection_takes(job: Job) -> None:
    job.now = 60.0
    assert appended(job.hear(1, ERROR)) == []
    job.now += Times().alone / 2
    assert appended(job.hear(1, ERROR)) == [], "it is said again until it is answered"
    job.now += Times().alone / 2
    assert appended(job.give(events.Tick())) == [FIRST_ERROR]


def test_an_error_that_was_forgiven_came_after_a_first_task() -> None:
    records = (EpochRecord(1), ShardsRecord(SHARDS, ()), ErrorRecord("worker-0-1", "another one"))
    later = Job(TaskKind.EVALUATE, records=records)
    later.join(1)
    assert appended(later.hear(1, ERROR)) == [ErrorRecord("worker-1-1", "KeyError at model.py")]


@pytest.mark.parametrize("kind", ["bad-input", "nan", "storage"])
def test_another_master_fails_a_job_at_once_of_which_nobody_could_do_more(job: Job, kind: str) -> None:
    (record,) = appended(job.hear(1, replace(ERROR, kind=kind)))
    assert isinstance(record, FailedRecord)


def test_each_worker_gets_a_task_and_the_next_one_and_the_metrics_come_last(job: Job) -> None:
    assert job.leased(1) == [0, 1], "as many are left as there are to be workers"
    job.join(2)
    assert any(isinstance(one, Enrolled) for one in job.told(1))
    assert (job.leased(1), job.leased(2)) == ([0, 1], [2])
    job.now = 1.0
    job.hear(2, TaskResult(STATE, 2, bytes(8)))
    job.hear(1, TaskResult(STATE, 1, bytes(8)))
    assert (job.leased(1), job.leased(2)) == ([0, 1], [2])
    assert not [one for one in job.told(2) if isinstance(one, TaskLeased) and one.kind == TaskKind.METRICS]
    job.hear(1, TaskResult(STATE, 0, b"12345678"))
    makers = [
        n for n in (1, 2) for one in job.told(n) if isinstance(one, TaskLeased) and one.body == b"12345678"
    ]
    assert makers == [1]
    job.hear(1, Evaluated(STATE, (("val_loss", 0.5),)))
    assert job.master.journal.evaluated[STATE].values == (("val_loss", 0.5),)
    assert all(isinstance(job.told(n)[-1], Finished) for n in (1, 2))
    assert any(isinstance(one, events.Publish) for one in job.said)


def test_every_worker_hears_of_the_checkpoint_that_is_journalled() -> None:
    job = Job(TaskKind.PREDICT, checkpoint="/c/checkpoint-3/manifest.json")
    member = MemberId("m1")
    job.give(events.ConnectionOpened(1, member, "worker-1-1"))
    assert UseCheckpoint("/c/checkpoint-3/manifest.json") in job.told(1), (
        "its model is built before it enrolls"
    )
    assert job.leased(1) == []
    job.hear(1, Enroll(member, "worker-1-1", "", 0, None, (), 0, False))
    assert sum(isinstance(one, UseCheckpoint) for one in job.told(1)) == 1
    # Another one may be the newest when a master begins again.
    journal = (*job.records, CheckpointRecord("/c/checkpoint-3/manifest.json"))
    later = Job(TaskKind.PREDICT, checkpoint="/c/checkpoint-4/manifest.json", records=journal)
    later.join(1)
    assert UseCheckpoint("/c/checkpoint-3/manifest.json") in later.told(1)
    assert later.leased(1) == [0, 1]


REPORT = Report(ViewId(0), ViewId(0), None, None, frozenset(), False)
FORGED: tuple[MemberMessage, ...] = (
    Enroll(MemberId("m1"), "worker-1-1", "", 0, 3, (), 0, False),
    Enroll(MemberId("m1"), "worker-1-1", "", 0, None, (), 2, False),
    Register(MemberId("m1"), "worker-1-1", "unix:/x", 0, REPORT),
    AtGate(NO_VIEW, StateId(1, ViewId(0)), "a sum"),
    AtGate(ViewId(1), STATE, "a sum"),
    AtGate(NO_VIEW, STATE, "nonsense"),
    AtGate(NO_VIEW, STATE, ""),
    TaskResult(StateId(1, ViewId(0)), 0, bytes(8)),
    TaskResult(STATE, 3, bytes(8)),
    TaskResult(STATE, -1, bytes(8)),
    TaskResult(STATE, 0, bytes(7)),
    TaskResult(STATE, 0, b""),
    Evaluated(StateId(1, ViewId(0)), ()),
    Exported(ViewId(0), STATE, "", "x"),
    Settled(0, 0, 0, None),
    FoundModel("{}"),
)


@pytest.mark.parametrize("message", FORGED, ids=lambda one: type(one).__name__)
def test_what_no_worker_can_say_is_refused_and_changes_nothing(job: Job, message: MemberMessage) -> None:
    before = job.master
    out = job.hear(1, message)
    assert [type(one) for one in out if not isinstance(one, events.Tell)] == [events.Refuse]
    assert job.master.tasks == before.tasks
    assert job.master.journal == before.journal


def test_a_prediction_has_no_body_and_no_metrics() -> None:
    for message in (TaskResult(STATE, 0, b"x"), Evaluated(STATE, ()), AtGate(NO_VIEW, STATE, "a sum")):
        job = Job(TaskKind.PREDICT)
        job.join(1)
        assert any(isinstance(one, events.Refuse) for one in job.hear(1, message))


def test_metrics_before_all_results_are_there_count_for_nothing(job: Job) -> None:
    job.hear(1, Evaluated(STATE, (("val_loss", 0.5),)))
    assert not job.master.journal.evaluated


def test_a_silent_worker_is_killed_and_its_tasks_are_leased_again(job: Job) -> None:
    assert job.leased(1) == [0, 1]
    job.now = 4.0
    job.join(2)
    job.give(events.Beat(MemberId("m2"), 0, 0, 0, 0.0))
    assert not [one for one in job.give(events.Tick()) if isinstance(one, events.Kill)]
    job.now = 7.0
    killed = [one.worker for one in job.give(events.Tick()) if isinstance(one, events.Kill)]
    assert killed == ["worker-1-1"]
    job.hear(2, TaskResult(STATE, 2, bytes(8)))
    job.hear(2, TaskResult(STATE, 0, bytes(8)))
    assert job.leased(2) == [2, 0, 1]


def test_a_worker_that_beats_and_does_nothing_is_killed(job: Job) -> None:
    for second in range(1, 62):
        job.now = float(second)
        job.give(events.Beat(MemberId("m1"), 0, 0, 0, 0.0))
        killed = [one.reason for one in job.give(events.Tick()) if isinstance(one, events.Kill)]
        assert killed == (["it makes no progress"] if second == 60 else [])


def test_a_worker_that_leaves_is_released_and_its_tasks_are_leased_to_another(job: Job) -> None:
    job.join(2)
    job.hear(1, Leave((), 0))
    assert isinstance(job.told(1)[-1], Released)
    assert job.leased(2) == [2, 0]
    job.hear(2, TaskResult(STATE, 2, bytes(8)))
    assert job.leased(2) == [2, 0], "the last one is for who has nothing"
    job.hear(2, TaskResult(STATE, 0, bytes(8)))
    assert job.leased(2) == [2, 0, 1]


def test_another_master_takes_what_workers_say_they_have_done(job: Job) -> None:
    later = Job(TaskKind.EVALUATE)
    later.give(events.ConnectionOpened(1, MemberId("m1"), "worker-1-1"))
    later.hear(1, Enroll(MemberId("m1"), "worker-1-1", "", 1, None, (), 0, False))
    later.hear(1, AtGate(NO_VIEW, STATE, "a sum"))
    for task in range(3):
        later.hear(1, TaskResult(STATE, task, bytes(8)))
    assert later.told(1)[-1] == TaskLeased(TaskKind.METRICS, STATE, 0, bytes(8))


@pytest.mark.parametrize("kind", [TaskKind.EVALUATE, TaskKind.PREDICT])
def test_a_worker_may_be_ready_before_another_master_has_found_the_data(kind: TaskKind) -> None:
    """A simulated job waited for ever for the first worker: seed 13130 of 100,000, the master killed before it had read the data."""
    later = Job(kind, records=(EpochRecord(1),))
    later.join(1)
    assert later.leased(1) == []
    later.give(events.DataFound(SHARDS, ()))
    assert later.leased(1) == [0, 1]


# ---------------------------------------------------------------------- a load into a table

LOAD = TaskLeased(TaskKind.LOAD, STATE, 3, b"")


@pytest.fixture
def loading() -> Job:
    """A prediction with two workers, of which the first is to load what both have written."""
    job = Job(TaskKind.PREDICT, table="a table")
    job.now = Times().alone  # nobody says any more that a master before has leased the load
    job.join(1)
    job.join(2)
    for task in range(3):
        assert LOAD not in job.told(1) + job.told(2)
        job.hear(1 + task % 2, TaskResult(STATE, task, b""))
    return job


def test_one_worker_loads_when_all_tasks_are_done_and_the_job_ends_when_it_has(loading: Job) -> None:
    loading.now = 50.0
    for number in (1, 2):
        loading.give(events.Beat(MemberId(f"m{number}"), 0, 0, number, 0.0))
    loading.give(events.Tick())
    assert (loading.told(1).count(LOAD), loading.told(2).count(LOAD)) == (1, 0), "there is no second one"
    assert loading.master.journal.terminal is None
    loading.hear(1, TaskResult(STATE, 3, b""))
    assert loading.master.journal.terminal == FinishedRecord(NO_VIEW, STATE, "parts")
    assert all(isinstance(loading.told(number)[-1], Finished) for number in (1, 2))


def test_a_job_waits_for_its_database_when_the_one_that_loads_does(loading: Job) -> None:
    given = {"model_def": "m.f", "prediction_data": "d", "trained_model": "m.keras", "output": "p"}
    spec = build(from_arguments(given), JobKind.PREDICT)
    history = EventHistory(0.0)
    view = TaskStatusView(spec, loading.master, history, ReplicaSet(2, 1), Processes())
    assert view.status("job", loading.now).reason == "all tasks are done, and are loaded into a table"
    waiting = JobEvent(1.0, EventKind.WAITING, "worker-1-1", 0, 0, "waiting for a table")
    history.tell(HistoryEvent(waiting))
    status = view.status("job", loading.now)
    assert (status.state, status.reason) == ("waiting", "worker-1-1 is waiting for a table")


def test_a_load_belongs_to_its_worker_also_when_its_connection_breaks(loading: Job) -> None:
    loading.give(events.ConnectionLost(1))
    loading.give(events.Tick())
    assert LOAD not in loading.told(2)
    loading.join(1)
    assert (loading.told(1).count(LOAD), loading.told(2).count(LOAD)) == (2, 0)


@pytest.mark.parametrize(
    "gone",
    [events.WorkerEnded("worker-1-1", "killed"), events.Heard(1, Leave((), 0))],
    ids=["it has ended", "it leaves"],
)
def test_another_worker_loads_when_the_first_one_goes(loading: Job, gone: events.Event) -> None:
    loading.give(gone)
    assert loading.told(2).count(LOAD) == 1
    assert loading.master.journal.terminal is None


def test_another_master_believes_who_has_loaded_and_leases_nothing_any_more() -> None:
    later = Job(TaskKind.PREDICT, table="a table")
    later.join(1)
    later.hear(1, TaskResult(STATE, 3, b""))
    assert later.master.journal.terminal == FinishedRecord(NO_VIEW, STATE, "parts")
    assert LOAD not in later.told(1)


@pytest.mark.parametrize(
    "told", [(), (0,), (0, 1, 2)], ids=["nothing else", "a task before it", "all tasks before it"]
)
def test_all_records_are_done_when_their_rows_are_loaded_whoever_has_told_so(told: tuple[int, ...]) -> None:
    """Who did the tasks may tell another master later than who loads them: one summary named no record of 120."""
    later, shown = Job(TaskKind.PREDICT, table="a table"), EventHistory(0.0)
    later.join(1)
    strategy = for_people(JobKind.PREDICT)
    for task, done in [*zip(told, (2, 4, 6), strict=False), (3, 6), (1, 6)]:
        before, message = later.master, TaskResult(STATE, task, b"")
        later.hear(1, message)
        strategy.show_message(before, later.master, message, shown)
        assert shown.records == done
    assert later.master.tasks_done == 3
    assert strategy.figures(later.master, shown)["records_predicted"] == 6


@pytest.mark.parametrize(
    ("kind", "end"),
    [
        (JobKind.PREDICT, [FinishedRecord(NO_VIEW, STATE, "parts")]),
        (JobKind.EVALUATE, [EvaluatedRecord(STATE, (("accuracy", 0.5),), 1.0)]),
    ],
    ids=["predicted", "evaluated"],
)
def test_all_records_are_done_when_a_master_before_has_journalled_the_end(
    kind: JobKind, end: list[Record]
) -> None:
    records = (EpochRecord(1), ShardsRecord(SHARDS, ()), *end)
    later, shown = Job(TaskKind(kind.value), records=records), EventHistory(0.0)
    strategy = for_people(kind)
    strategy.show_position(later.master, shown)
    assert strategy.figures(later.master, shown)[f"records_{later.master.done_word}"] == 6
    assert later.master.tasks_done == 3


def test_another_master_waits_for_the_worker_that_loads() -> None:
    """Longer than a connection takes, and no longer; then it is that worker's load."""
    later = Job(TaskKind.PREDICT, table="a table")
    later.join(1)
    for task in range(3):
        later.hear(1, TaskResult(STATE, task, b""))
    assert LOAD not in later.told(1)
    loader = MemberId("m2")
    later.give(events.ConnectionOpened(2, loader, "worker-2-1"))
    later.hear(2, Enroll(loader, "worker-2-1", "", 0, None, (Holding(3, 0),), 0, False))
    later.hear(2, AtGate(NO_VIEW, STATE, ""))
    later.now = Times().alone
    for number in (1, 2):
        later.give(events.Beat(MemberId(f"m{number}"), 0, 0, number, 0.0))
    later.give(events.Tick())
    assert (later.told(1).count(LOAD), later.told(2).count(LOAD)) == (0, 1)


@pytest.mark.parametrize("table", ["", "a table"])
def test_nobody_holds_anything_but_the_load(table: str) -> None:
    job = Job(TaskKind.PREDICT, table=table)
    member = MemberId("m1")
    job.give(events.ConnectionOpened(1, member, "worker-1-1"))
    out = job.hear(1, Enroll(member, "worker-1-1", "", 0, None, (Holding(2, 0),), 0, False))
    assert any(isinstance(one, events.Refuse) for one in out)


def test_files_are_not_loaded() -> None:
    job = Job(TaskKind.PREDICT)
    job.join(1)
    assert any(isinstance(one, events.Refuse) for one in job.hear(1, TaskResult(STATE, 3, b"")))
