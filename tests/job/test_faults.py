"""Jobs whose processes are killed, stopped, drained and added while they train: they go on, and the audit is clean."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from elasticdl.audit import audit
from elasticdl.cluster.local.place import find
from elasticdl.control.protocol.profiling import Missing, Recorded
from elasticdl.control.protocol.status import EventKind, JobEvent, JobStatus, WorkerStatus
from elasticdl.control.transport.client import JobClient
from elasticdl.errors import BadSetting, MasterAway

from .conftest import Job, Start
from .profiles import ask_for_profile, profiled, steps_in

ZOO = Path(__file__).parent / "zoo"
EPOCHS = 40
"""320 steps, which take their time until the faults are done."""


@pytest.fixture
def begin(start: Start, iris: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return functools.partial(
        start,
        environment={"GO": str(tmp_path / "go"), "STUCK": str(tmp_path / "stuck")},
        model_zoo=ZOO,
        model_def="paced.custom_model",
        training_data=iris / "train",
        num_workers=2,
        num_epochs=EPOCHS,
        minibatch_size=8,
        num_minibatches_per_task=1,
        global_batch_size=16,
        audit=tmp_path / "audit",
        output=tmp_path / "iris.npz",
        witness_seconds=2,
        spare_process=True,
    )


@pytest.fixture
def long_job(begin: Start) -> Job:
    return begin()


def seen(job: Job) -> Iterator[JobStatus | JobEvent]:
    """What the job shows, from all its masters, until it ends."""
    since = 0.0
    while job.process.poll() is None:
        try:
            place = find("test")  # an earlier job of this name at first, maybe
            with JobClient(place.control_address, place.token()) as client:
                for item in client.watch(since):
                    if isinstance(item, JobEvent):
                        since = item.time
                    yield item
        except (BadSetting, MasterAway):
            wait_a_moment(job)


def recovered(job: Job, member: str) -> None:
    """Wait until the job has told that it continues after the loss of a member."""
    for item in seen(job):
        if isinstance(item, JobEvent) and (item.kind, item.worker) == ("recovered", member):
            return
    pytest.fail("the job ended before it told of the recovery")


def wait_a_moment(job: Job) -> None:
    """Wait for the job's end or a tenth of a second: another process's next connection has no event."""
    try:
        job.process.wait(0.1)
    except Exception:
        return


def training(status: JobStatus) -> list[WorkerStatus]:
    able = ("training", "evaluating")
    return [worker for worker in status.workers if worker.state in able and worker.pid is not None]


def at_step(job: Job, step: int, act: Callable[[JobStatus], bool]) -> None:
    """Act once on a status at or after a step at which at least two workers train."""
    for item in seen(job):
        if isinstance(item, JobStatus) and item.step >= step and len(training(item)) >= 2 and act(item):
            return
    pytest.fail("the job ended before the fault")


def check(job: Job, directory: Path) -> dict[str, object]:
    (directory / "go").touch()
    result = job.wait().succeeded()
    report = audit(directory / "audit")
    assert [epoch.counted for epoch in report.epochs] == [120] * EPOCHS
    assert any((directory / name).exists() for name in ("iris.npz", "iris.keras"))
    return result.summary


def kill(worker: WorkerStatus, number: int = signal.SIGKILL) -> bool:
    assert worker.pid is not None
    os.kill(worker.pid, number)
    return True


def scale(workers: int) -> Callable[[JobStatus], bool]:
    """Return what asks the job for so many workers."""

    def act(_: JobStatus) -> bool:
        place = find("test")
        with JobClient(place.control_address, place.token()) as client:
            client.scale(workers)
        return True

    return act


def joins(job: Job, count: int) -> None:
    """Wait until so many workers have joined since the job began."""
    names: set[str] = set()
    for item in seen(job):
        if isinstance(item, JobEvent) and item.kind == EventKind.JOINED:
            names.add(item.worker)
        if len(names) == count:
            return
    pytest.fail(f"the job ended before {count} workers had joined")


def test_all_workers_killed_at_once_resume_from_the_last_snapshot(begin: Start, tmp_path: Path) -> None:
    """The snapshot of step 35 is the only one; the next would be seconds later."""
    job = begin(checkpoint_steps=35)
    at_step(job, 40, lambda status: all(kill(worker) for worker in training(status)))
    summary = check(job, tmp_path)
    assert 5 <= summary["redone_steps"] < 35


def test_a_worker_that_answers_but_hangs_in_its_input_is_replaced(begin: Start, tmp_path: Path) -> None:
    job = begin(model_def="stuck.custom_model", stall_seconds=3)

    def hang(_: JobStatus) -> bool:
        (tmp_path / "stuck").touch()
        return True

    at_step(job, 10, hang)
    evicted = None
    for item in seen(job):
        if isinstance(item, JobEvent) and item.kind == EventKind.EVICTED:
            evicted = item
        if evicted is not None and isinstance(item, JobStatus) and len(training(item)) >= 2:
            break
    assert evicted is not None
    assert "makes no progress" in evicted.text
    summary = check(job, tmp_path)
    assert summary["members"]["lost"] == 1
    assert summary["members"]["joined"] >= 3


def held(directory: Path, *names: str) -> dict[str, str]:
    """Return the environment in which these processes wait when they would register: nothing ends their start but what is done to them."""
    places = {"GO": str(directory / "go"), "HELD": " ".join(names), "HELD_AT": str(directory)}
    return {**places, "PYTHONPATH": str(Path(__file__).parent / "surroundings")}


def stop_held(job: Job, directory: Path, name: str) -> None:
    """Stop a process that is held."""
    while not (found := list(directory.glob(f"{name}.*"))):
        assert job.process.poll() is None, f"the job ended before {name} had started"
        wait_a_moment(job)
    os.kill(int(found[0].suffix[1:]), signal.SIGSTOP)


def replaced(job: Job, *names: str) -> dict[str, str]:
    """Wait until processes that hang while they start are replaced, and those after them have joined; return why."""
    why: dict[str, str] = {}
    following = {f"{name[:-1]}{int(name[-1]) + 1}" for name in names}
    for item in seen(job):
        if isinstance(item, JobEvent) and item.kind == EventKind.REPLACED:
            why[item.worker] = item.text
        elif isinstance(item, JobEvent) and item.kind == EventKind.JOINED:
            following.discard(item.worker)
        if why.keys() == set(names) and not following:
            return why
    pytest.fail(f"the job ended before {', '.join(names)} were replaced")


def test_killed_and_hung_workers_cost_nothing_but_their_chunks(begin: Start, tmp_path: Path) -> None:
    """The last one of the group, whose next life hangs while it starts; the first one of those that train with the next; a stopped one.

    Gradients travel as bfloat16 here.
    """
    job = begin(environment=held(tmp_path, "worker-1-2"), gradient_dtype="bfloat16")
    at_step(job, 10, lambda status: kill(training(status)[-1]))
    stop_held(job, tmp_path, "worker-1-2")
    why = replaced(job, "worker-1-2")["worker-1-2"]
    assert why.startswith("worker-1-2 is killed while it starts: its heartbeats are missing for 2.")
    at_step(job, 12, lambda status: kill(training(status)[0]))
    joins(job, 4)
    at_step(job, 14, lambda status: kill(training(status)[-1], signal.SIGSTOP))
    summary = check(job, tmp_path)
    assert summary["members"]["lost"] == 3
    assert summary["members"]["joined"] in (4, 5), "the last one may come too late"
    assert len(summary["recoveries"]) == 3


def test_a_job_is_profiled_also_while_a_worker_is_killed(long_job: Job, tmp_path: Path) -> None:
    workers: dict[str, WorkerStatus] = {}

    def look(status: JobStatus) -> bool:
        workers.update((worker.name, worker) for worker in training(status))
        return True

    at_step(long_job, 3, look)
    path = tmp_path / "profile.json"
    said = profiled(path, "--steps=4")
    assert said == f"wrote 8 steps of 2 workers to {path}\n"
    steps = steps_in(path)
    assert {name: len(found) for name, found in steps.items()} == {"worker-0-1": 4, "worker-1-1": 4}
    for found in steps.values():
        assert all({"ring", "apply"} <= one for one in found)
        # the last step of an epoch has data for one of them only
        assert sum({"read", "compute"} <= one for one in found) >= 3

    place, most = find("test"), 100  # more than there are while another command starts, on any machine
    with JobClient(place.control_address, place.token()) as client:
        profile = client.profile(most)
        first = next(profile)
        assert isinstance(first, Recorded)
        second = ask_for_profile()
        assert (second.returncode, "is being profiled already" in second.stderr) == (2, True)
        kill(workers[first.worker])
        (tmp_path / "go").touch()  # the others' remaining steps need not take their time
        rest = list(profile)
    (missing,) = (one for one in rest if isinstance(one, Missing))
    assert missing.text.startswith(f"{first.worker} has recorded ")
    assert missing.text.endswith(f" of {most} steps, then it ended")
    others = [one for one in rest if isinstance(one, Recorded) and one.worker != first.worker]
    assert len(others) == most
    summary = check(long_job, tmp_path)
    assert summary["members"]["lost"] == 1


def test_drained_workers_leave_without_a_trace_one_returns_as_a_new_one_and_one_was_added(
    long_job: Job, tmp_path: Path
) -> None:
    """One is asked to leave by SIGTERM, the other one by the job's scale; the master is killed before and between."""

    def kill_master(_: JobStatus) -> bool:
        for process in psutil.Process(long_job.process.pid).children():
            if "elasticdl.job.master" in process.cmdline():
                process.kill()
                return True
        return False

    at_step(long_job, 3, kill_master)
    at_step(long_job, 10, lambda status: kill(training(status)[-1], signal.SIGTERM))
    joins(long_job, 3)
    at_step(long_job, 11, kill_master)
    at_step(long_job, 11, scale(3))
    for item in seen(long_job):
        if isinstance(item, JobStatus) and len(training(item)) == 3:
            break
    at_step(long_job, 12, scale(2))
    summary = check(long_job, tmp_path)
    assert summary["members"]["drained"] == 2
    assert summary["members"]["lost"] == 0
    assert summary["redone_steps"] == 0


def test_interrupted_once_the_job_exports_what_there_is(long_job: Job, tmp_path: Path) -> None:
    at_step(long_job, 10, lambda _: long_job.process.send_signal(signal.SIGINT) is None)
    result = long_job.wait()
    assert result.code == 130, result.err + result.logs
    assert result.summary["status"] == "interrupted"
    assert (tmp_path / "iris.npz").exists()
    assert not audit(tmp_path / "audit").epochs[-1].complete


def test_a_job_stopped_when_nothing_is_left_keeps_the_earlier_output(
    start: Start, iris: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All workers die before the first snapshot, and the job is stopped before others have trained anything."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    earlier = tmp_path / "iris.npz"
    earlier.write_bytes(b"of last week")
    job = start(
        environment={"GO": str(tmp_path / "go")},
        model_zoo=ZOO,
        model_def="paced.custom_model",
        training_data=iris / "train",
        num_workers=2,
        minibatch_size=1,
        num_minibatches_per_task=1,
        global_batch_size=2,
        output=earlier,
    )
    at_step(job, 3, lambda status: sum(kill(worker) for worker in training(status)) == 2)
    job.process.send_signal(signal.SIGINT)
    result = job.wait()
    assert (result.code, result.summary["status"], result.summary["steps"]) == (130, "interrupted", 0)
    assert "nothing was trained" in result.summary["reason"]
    assert earlier.read_bytes() == b"of last week"
