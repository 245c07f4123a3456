"""A peer that holds the token and says what is not so: of a job's progress nothing is believed beyond what the master says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from elasticdl._core import Batch, Listener, ParameterClient, ParameterServer
from elasticdl.audit import audit
from elasticdl.catalog.catalog import Catalog, Initial, InitialKind, Rule, Table
from elasticdl.control.protocol.view import MemberId
from elasticdl.control.transport.keys import data_key
from elasticdl.data.plan.shard import Shard
from elasticdl.data.plan.waves import WHOLE
from elasticdl.master.core import auditmark
from elasticdl.worker.auditlog import PsAuditLog

TOKEN = b"0123456789abcdef0123456789abcdef"
SECONDS = 20.0
SLOTS, ROWS, WIDTH, TASKS = 8, 40, 3, 100
BEGUN = 6
"""Tasks that workers may have."""
MOST = (1 << 63) - 1
Need = tuple[int, int, int, int]
NOTHING: Need = (0, 0, 0, 0)


class Job:
    """A server, and clients that are as far as they say."""

    def __init__(self, accumulates: bool) -> None:
        table = Table("table", WIDTH, Initial(InitialKind.CONSTANT, 0.0, 0.0))
        catalog = Catalog(3, [table], [], Rule("sgd", {"momentum": 0.0, "nesterov": 0.0}), SLOTS)
        self.core = catalog.core().with_policy(False, None, None, accumulates)
        self.server = ParameterServer(Listener("tcp:127.0.0.1:0"), 0, TOKEN, self.core)
        self.entries = [(slot, 1, 1, 0, None, 0) for slot in range(SLOTS)]
        self.server.learn({}, self.entries, 0, TASKS)
        self.accumulates = accumulates
        self.server.limit(0, 0, (), 2 * BEGUN if accumulates else 0, BEGUN)
        self.server.know({"worker"})

    def client(self, roll_back: int = 0, name: str = "worker") -> ParameterClient:
        client = ParameterClient(name, data_key(TOKEN), self.core)
        client.learn({0: self.server.address}, self.entries, roll_back)
        return client

    def push(self, client: ParameterClient, task: int, low: int = 0, roll_back: int = 0) -> int:
        rows = np.ones((ROWS, WIDTH), np.float32)
        head = ((task, 0), low, roll_back, 1.0, task)
        return client.push(head, [(Batch(self.core, 0, np.arange(ROWS)), rows, False)], [])

    def held(self, client: ParameterClient, chunk: tuple[int, int], need: Need = NOTHING) -> list[int]:
        """Return the slots that hold a chunk, as a client learns it."""
        found = client.rows(client.pull(chunk, [Batch(self.core, 0, np.arange(ROWS))], [], need), SECONDS)
        assert found is not None
        return sorted(found[2])

    def tell(self, client: ParameterClient, tasks: list[tuple[int, int]], need: Need = NOTHING) -> None:
        """Confirm tasks by a client, and wait until the server has heard it: it answers what comes after."""
        client.confirm(0, 0, tasks)
        assert client.rows(client.pull(None, [Batch(self.core, 0, np.arange(ROWS))], [], need), SECONDS)

    def applied(self) -> int:
        """Return the pushes that slots hold."""
        return sum(pushes for _, _, pushes, _ in self.server.accounts())


@pytest.fixture(params=[False, True], ids=["as they come", "step by step"])
def job(request: pytest.FixtureRequest) -> Iterator[Job]:
    found = Job(request.param)
    yield found
    found.server.close()


@pytest.mark.parametrize(
    ("task", "low", "roll_back"), [(0, MOST, 0), (0, TASKS + 1, 0), (0, 0, MOST), (0, 1, 1), (MOST - 1, 0, 0)]
)
def test_a_push_from_nowhere(job: Job, task: int, low: int, roll_back: int) -> None:
    with closing(job.client(roll_back)) as confused, closing(job.client()) as worker:
        refused = job.push(confused, task, low, roll_back)
        assert worker.settled(job.push(worker, 0), SECONDS) == "settled"
        assert worker.settled(job.push(worker, 1), SECONDS) == "settled"
        assert confused.settled(refused, 0.2) is None
        assert job.applied() == 2 * SLOTS
    assert job.server.complete() == (0, 0)


@pytest.mark.parametrize(
    ("roll_back", "low", "task"), [(MOST, 0, 0), (1, 0, 0), (0, MOST, 0), (0, 0, MOST - 1)]
)
def test_progress_from_nowhere(job: Job, roll_back: int, low: int, task: int) -> None:
    with closing(job.client(roll_back)) as confused, closing(job.client()) as worker:
        confused.confirm(roll_back, low, [(task, 1)])
        # What is confirmed travels with the next question, and is not answered before it is taken in.
        confused.rows(confused.pull(None, [Batch(job.core, 0, np.arange(ROWS))], []), 0.5)
        assert worker.settled(job.push(worker, 0), SECONDS) == "settled"
        assert job.applied() == SLOTS
        for chunk in {(9, 0), (task, 0)} - {(0, 0)}:
            assert job.held(worker, chunk) == []
    assert job.server.complete() == (0, 0)


def test_a_task_that_nobody_has_computed(job: Job) -> None:
    with closing(job.client()) as confused, closing(job.client()) as worker:
        # One that the job has, and where steps are of several also one that workers may have.
        job.tell(confused, [(2, WHOLE)])
        assert job.held(worker, (2, 0)) == []
        assert worker.settled(job.push(worker, 2), SECONDS) == "settled"
        assert job.held(worker, (2, 0)) == list(range(SLOTS))
        assert job.applied() == SLOTS
    assert job.server.complete() == (0, 0)


@pytest.mark.parametrize("job", [True], ids=["step by step"], indirect=True)
def test_a_task_that_no_worker_may_have(job: Job) -> None:
    """Where steps are of several, confirmations and needs beyond the tasks that workers may have are nothing."""
    with closing(job.client()) as confused, closing(job.client()) as worker:
        confused.confirm(0, 0, [(BEGUN, WHOLE)])
        asked = confused.pull(None, [Batch(job.core, 0, np.arange(ROWS))], [], (1, BEGUN, BEGUN + 1, WHOLE))
        assert confused.rows(asked, 0.3) is None
        assert job.server.complete() == (0, 0)
        job.server.limit(0, 0, (), 2 * BEGUN, BEGUN + 1)
        # Now it counts: the client says it once more, and that is as good as any worker's word.
        assert confused.rows(asked, SECONDS) is not None
        assert job.server.complete() == (0, 1)
        assert job.held(worker, (0, 0), (1, BEGUN, BEGUN + 1, WHOLE)) == []


def test_nothing_is_left_out_for_a_confused_word(job: Job, tmp_path: Path) -> None:
    """Where steps are of several, a server believes a worker that a step is past; what it holds, its slots alone say."""
    with closing(job.client()) as confused, closing(job.client()) as worker:
        job.tell(confused, [(0, WHOLE)], (1, 0, 1, WHOLE) if job.accumulates else NOTHING)
        chunks = [task for task in range(BEGUN) if job.held(worker, (task, 0)) == []]
        assert chunks == list(range(BEGUN))
        auditmark.write_manifest(
            tmp_path,
            [Shard("data", 0, BEGUN)],
            seed=1,
            records_per_task=1,
            minibatch_size=1,
            num_epochs=1,
            has_servers=True,
            again=False,
        )
        log = PsAuditLog(tmp_path, "worker-0-1", MemberId("0" * 32), print)
        for task in chunks:
            log.chunk(task, 0, 0, task, 1, 0, range(SLOTS))
            assert worker.settled(job.push(worker, task), SECONDS) == "settled"
        log.close()
        accounts = [(slot, pushes, total) for slot, _, pushes, total in job.server.accounts()]
        auditmark.write_accounts(tmp_path, accounts)
        auditmark.write_finished(tmp_path, view=0, step=BEGUN, state_view=1, complete=True)
        assert audit(tmp_path).trained == BEGUN


def test_a_watermark_closes_no_task_that_the_master_has_not_called_done(job: Job) -> None:
    with closing(job.client()) as confused, closing(job.client()) as worker:
        assert confused.settled(job.push(confused, TASKS - 1, TASKS), SECONDS) == "settled"
        confused.confirm(0, TASKS, [])
        confused.rows(confused.pull(None, [Batch(job.core, 0, np.arange(ROWS))], []), 0.5)
        assert worker.settled(job.push(worker, 0), SECONDS) == "settled"
        assert job.applied() == 2 * SLOTS
        found = worker.rows(worker.pull((1, 0), [Batch(job.core, 0, np.arange(ROWS))], []), SECONDS)
        assert found is not None
        assert found[2] == []
        # As soon as the master says so, it does.
        job.server.limit(0, 2, (), 2, BEGUN)
        assert worker.settled(job.push(worker, 1, 2), SECONDS) == "settled"
        assert job.applied() == 2 * SLOTS


def test_rows_of_a_step_come_as_soon_as_the_master_says_what_is_done(job: Job) -> None:
    with closing(job.client()) as worker:
        ticket = worker.pull(None, [Batch(job.core, 0, np.arange(ROWS))], [], (1, 0, 2, 1))
        assert worker.rows(ticket, 0.2) is None
        job.server.limit(0, 1, (1,), 2, 2)
        assert worker.rows(ticket, SECONDS) is not None


def test_a_worker_waits_until_the_master_has_named_it(job: Job) -> None:
    with closing(job.client(name="another")) as another:
        ticket = job.push(another, 0)
        assert another.settled(ticket, 0.3) is None
        assert job.applied() == 0
        job.server.know({"worker", "another"})
        assert another.settled(ticket, SECONDS) == "settled"
    assert job.applied() == SLOTS
    assert job.server.refused == 0


def test_steps_from_nowhere(job: Job) -> None:
    with closing(job.client()) as confused, closing(job.client()) as worker:
        batch = Batch(job.core, 0, np.arange(ROWS))
        # By its own word what the steps need is settled.
        confused.confirm(0, 0, [(TASKS, 1)])
        ticket = confused.pull(None, [batch], [], (MOST, TASKS, TASKS + 1, 1))
        assert confused.rows(ticket, 0.5) is None
        assert worker.settled(job.push(worker, 0), SECONDS) == "settled"
        assert worker.rows(worker.pull(None, [batch], []), SECONDS) is not None
    assert job.server.complete() == (0, 0)
