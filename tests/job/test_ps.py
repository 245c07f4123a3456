"""Jobs with parameter servers, whose processes are killed while they train: every record is in the model exactly once."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from elasticdl.audit import audit
from elasticdl.cluster.local.place import find
from elasticdl.control.protocol.status import EventKind, JobEvent, JobStatus
from elasticdl.control.transport.client import JobClient
from elasticdl.errors import AuditFailed, BadSetting

from .conftest import EPOCHS, IDS, RECORDS, WIDTH, Job, SmallDisk, Start
from .profiles import profiled, steps_in
from .test_faults import at_step, held, joins, kill, replaced, seen, stop_held, training


@pytest.fixture
def begin(plain: Start, tmp_path: Path) -> Start:
    made = {"audit": tmp_path / "audit", "output": tmp_path / "tallied.npz"}
    return functools.partial(plain, spare_process=True, **made)


def result_in(directory: Path) -> tuple[np.ndarray, float]:
    """Return the rows of the table and the sum of all, as they were written."""
    made = np.load(directory / "tallied.npz")
    return made["rows"], made["total"].item()


def check(job: Job, directory: Path, ids: np.ndarray) -> dict[str, object]:
    """Let the job end, and compare its result with what the data says."""
    (directory / "go").touch()
    result = job.wait().succeeded()
    rows, total = result_in(directory)
    expected = np.bincount(ids, minlength=IDS).astype(np.float32) * EPOCHS
    np.testing.assert_array_equal(rows, np.repeat(expected[:, None], WIDTH, 1))
    assert total == RECORDS * EPOCHS
    report = audit(directory / "audit")
    assert report.complete
    assert report.slots == 1024
    assert report.records == report.trained == RECORDS * EPOCHS
    return result.summary


def test_every_record_is_in_the_model_once_and_training_ends_once_in_every_worker(
    begin: Start, ids: np.ndarray, tmp_path: Path
) -> None:
    job = begin(
        callbacks="ended.callbacks", environment={"GO": str(tmp_path / "go"), "ENDINGS": str(tmp_path)}
    )
    at_step(job, 20, lambda status: True)
    summary = check(job, tmp_path, ids)
    assert summary["records_trained"] == RECORDS * EPOCHS
    assert summary["steps"] == 250
    assert summary["roll_backs"] == 0
    endings = [path.read_text() for path in tmp_path.glob("*.ended")]
    assert sorted(endings) == ["ended\n", "ended, and wrote\n"]


def processes(status: JobStatus, role: str) -> list[int]:
    """Return the pids of those of a role that are at work."""
    able = [one for one in status.workers if one.state in ("training", "evaluating", "serving")]
    return [one.pid for one in able if one.name.startswith(role) and one.pid is not None]


def at(job: Job, step: int, act: Callable[[JobStatus], object]) -> None:
    """Act once on a status at or after a step."""
    for item in seen(job):
        if isinstance(item, JobStatus) and item.step >= step:
            act(item)
            return
    pytest.fail("the job ended before the fault")


def test_the_master_a_worker_and_a_server_are_killed_one_after_the_other_and_nothing_is_lost(
    begin: Start, tmp_path: Path, ids: np.ndarray
) -> None:
    """The job is profiled before. Its chunks take half a second, so that none of the three comes after its end.

    Gradients and rows travel as bfloat16 here, which holds each gradient exactly, but not the largest row of the result.
    """
    job = begin(
        environment={"GO": str(tmp_path / "go"), "PACE": "0.5"},
        gradient_dtype="bfloat16",
        row_dtype="bfloat16",
    )
    path = tmp_path / "profile.json"
    at_step(job, 4, lambda status: True)
    profiled(path, "--steps=4")
    steps = [one for worker in steps_in(path).values() for one in worker]
    assert len(steps) == 8
    assert all({"compute", "push"} <= one for one in steps)
    # A minibatch may be read in the step before its own, which then has two of them.
    assert sum("read" in one for one in steps) >= len(steps) // 2
    os.kill(master_of(job), signal.SIGKILL)
    at_step(job, 12, lambda status: kill(training(status)[-1]))
    joins(job, 3)
    at(job, 16, lambda status: os.kill(processes(status, "ps")[0], signal.SIGKILL))
    summary = check(job, tmp_path, ids)
    assert summary["members"]["lost"] == 1
    assert summary["roll_backs"] == 0
    lost, server = (one["member"] for one in summary["recoveries"])
    assert (lost.partition("-")[0], server) == ("worker", "ps-0-1")


def test_all_servers_are_killed_at_once(begin: Start, tmp_path: Path, ids: np.ndarray) -> None:
    job = begin(num_workers=1)
    at(job, 20, lambda status: [os.kill(pid, signal.SIGKILL) for pid in processes(status, "ps")])
    summary = check(job, tmp_path, ids)
    assert summary["roll_backs"] >= 1


def test_what_a_lost_server_held_alone_may_be_given_up(begin: Start, tmp_path: Path, ids: np.ndarray) -> None:
    job = begin(ps_replicas=1, ps_restore="skip", num_workers=1)
    at(job, 40, lambda status: os.kill(processes(status, "ps")[0], signal.SIGKILL))
    lost = next(item for item in seen(job) if isinstance(item, JobEvent) and item.kind == EventKind.LOST)
    assert "have done to them is lost (--ps_restore=skip)" in lost.text
    (tmp_path / "go").touch()
    summary = job.wait().succeeded().summary
    assert summary["roll_backs"] == 1
    assert summary["steps"] == 250
    rows = result_in(tmp_path)[0][:, 0]
    expected = np.bincount(ids, minlength=IDS) * EPOCHS
    assert (rows <= expected).all()
    # The other server's are whole.
    assert 0 < np.count_nonzero(rows < expected) < np.count_nonzero(expected) / 2
    with pytest.raises(AuditFailed, match="slot"):
        audit(tmp_path / "audit")


def test_slots_without_a_copy_are_restored_from_the_last_snapshot(
    begin: Start, tmp_path: Path, ids: np.ndarray
) -> None:
    """A server is lost before there is one, which trains its slots once more; then both are."""
    job = begin(ps_replicas=1, checkpoint_steps=40, environment={"GO": str(tmp_path / "go"), "PACE": "0.3"})
    at(job, 10, lambda status: os.kill(processes(status, "ps")[0], signal.SIGKILL))
    told: list[JobEvent] = []
    for item in seen(job):
        if isinstance(item, JobEvent):
            told.append(item)
            if item.kind == EventKind.SNAPSHOT:
                break
    assert "snapshot of 1" in told[-1].text  # ten tasks or a few more
    assert [one.kind for one in told].count(EventKind.ROLLED_BACK) == 1
    (lost,) = (one.text for one in told if one.kind == EventKind.LOST)
    assert "they begin anew" in lost
    at(job, 60, lambda status: [os.kill(pid, signal.SIGKILL) for pid in processes(status, "ps")])
    losses = (item.text for item in seen(job) if isinstance(item, JobEvent) and item.kind == EventKind.LOST)
    assert any("they are restored from the last snapshot" in text for text in losses)
    summary = check(job, tmp_path, ids)
    assert summary["roll_backs"] >= 2


def master_of(job: Job) -> int:
    import psutil

    for child in psutil.Process(job.process.pid).children():
        if "elasticdl.job.master" in child.cmdline():
            return child.pid
    pytest.fail("there is no master")


def test_a_hung_server_is_replaced(begin: Start, tmp_path: Path, ids: np.ndarray) -> None:
    job = begin(num_workers=1)
    at(job, 20, lambda status: os.kill(processes(status, "ps")[1], signal.SIGSTOP))
    summary = check(job, tmp_path, ids)
    assert summary["roll_backs"] == 0
    assert [one["member"] for one in summary["recoveries"]] == ["ps-1-1"]


def stops_waiting(status: JobStatus, name: str) -> bool:
    """Stop a process that has registered and takes no part yet; tell whether it has."""
    waiting = [one for one in status.workers if one.name == name and one.state == "joining"]
    return any(kill(one, signal.SIGSTOP) for one in waiting)


def test_a_worker_and_servers_that_hang_before_they_join_are_replaced(
    begin: Start, tmp_path: Path, ids: np.ndarray
) -> None:
    """Before the job has begun: as long as a server is missing, no slot is placed, and the other one waits for its number."""
    # Chunks of a second: the other worker alone does not come to the end before all have been replaced.
    environment = {**held(tmp_path, "worker-1-1", "ps-1-1"), "PACE": "1"}
    job = begin(environment=environment, stall_seconds=10)
    for item in seen(job):
        if isinstance(item, JobStatus) and stops_waiting(item, "ps-0-1"):
            break
    # The other server is held until then: had both been there, the job would have begun, and lost this one.
    for item in seen(job):
        if isinstance(item, JobEvent) and (item.kind, item.worker) == (EventKind.REPLACED, "ps-0-1"):
            break
    for name in ("worker-1-1", "ps-1-1"):
        stop_held(job, tmp_path, name)
    why = replaced(job, "worker-1-1", "ps-0-1", "ps-1-1")
    assert {name: text.partition(":")[0] for name, text in why.items()} == {
        "worker-1-1": "worker-1-1 is killed while it starts",
        "ps-0-1": "ps-0-1 is killed while it waits to join",
        "ps-1-1": "ps-1-1 is killed while it starts",
    }
    summary = check(job, tmp_path, ids)
    assert summary["members"] == {"joined": 2, "drained": 0, "lost": 0}
    assert summary["servers"] == {"joined": 2, "drained": 0, "lost": 0, "at_the_end": 2}


def test_a_hung_server_with_the_only_copy_is_waited_for_and_then_hands_over_to_its_successor_and_a_worker_leaves(
    begin: Start, tmp_path: Path, ids: np.ndarray
) -> None:
    job = begin(num_ps_pods=1, environment={"GO": str(tmp_path / "go"), "PACE": "0.5"})
    hung: list[int] = []

    def stop(status: JobStatus) -> None:
        hung.extend(processes(status, "ps"))
        os.kill(hung[0], signal.SIGSTOP)

    at(job, 4, stop)
    for item in seen(job):
        if isinstance(item, JobStatus) and "it is given time to wake up" in item.reason:
            break
    os.kill(hung[0], signal.SIGCONT)
    at(job, 4, lambda status: os.kill(hung[0], signal.SIGTERM))
    for item in seen(job):
        if isinstance(item, JobEvent) and (item.kind, item.worker) == (EventKind.DRAINED, "ps-0-1"):
            break
    at_step(job, 4, lambda status: kill(training(status)[0], signal.SIGTERM))
    summary = check(job, tmp_path, ids)
    assert summary["roll_backs"] == 0
    assert summary["servers"] == {"joined": 2, "drained": 1, "lost": 0, "at_the_end": 1}
    assert summary["members"]["drained"] >= 1


def test_servers_are_added_and_taken_away(begin: Start, tmp_path: Path, ids: np.ndarray) -> None:
    job = begin(num_workers=1, environment={"GO": str(tmp_path / "go"), "PACE": "0.5"})

    def scale(servers: int) -> None:
        place = find("test")
        with JobClient(place.control_address, place.token()) as client:
            assert client.scale(None, servers) == f"the job wants {servers} parameter servers"

    at(job, 3, lambda status: refused(1, "needs as many; received 1"))
    at(job, 3, lambda status: scale(4))
    holding(job, {"ps-0-1", "ps-1-1", "ps-2-1", "ps-3-1"})
    at(job, 4, lambda status: os.kill(master_of(job), signal.SIGKILL))
    at(job, 4, lambda status: scale(2))
    holding(job, {"ps-0-1", "ps-1-1"})
    summary = check(job, tmp_path, ids)
    assert summary["roll_backs"] == 0
    assert summary["servers"] == {"joined": 4, "drained": 2, "lost": 0, "at_the_end": 2}
    assert summary["recoveries"] == []  # nothing was lost


@pytest.mark.parametrize("on_nan", ["fail", "skip_step"])
def test_gradients_that_are_no_numbers_reach_no_server(
    begin: Start, tmp_path: Path, ids: np.ndarray, on_nan: str
) -> None:
    (tmp_path / "go").touch()
    few = {"num_workers": 1, "num_ps_pods": 1} if on_nan == "fail" else {}
    result = begin(model_def="tallied.spoilt", on_nan=on_nan, **few).wait()
    if on_nan == "fail":
        assert result.code == 1
        assert "is not finite (loss nan; among the records " in result.err
        assert f" of {tmp_path / 'ids.csv'}). Lower the learning rate" in result.err
        assert "--on_nan=skip_step" in result.err
        return
    result.succeeded()
    rows, total = result_in(tmp_path)
    assert 100 < total < RECORDS
    assert rows.sum() == WIDTH * total
    report = audit(tmp_path / "audit")
    assert report.complete
    assert report.trained == total
    assert report.trained + report.idle_records == report.records == RECORDS * EPOCHS


def refused(servers: int, why: str) -> None:
    place = find("test")
    with JobClient(place.control_address, place.token()) as client, pytest.raises(BadSetting, match=why):
        client.scale(None, servers)


def holding(job: Job, names: set[str]) -> None:
    """Wait until these servers serve, and no slot is on its way any more."""
    serving, copied = False, False
    for item in seen(job):
        if isinstance(item, JobStatus):
            servers = [one for one in item.workers if one.name.startswith("ps") and one.state != "ended"]
            serving = names == {one.name for one in servers if one.state == "serving"} and len(
                servers
            ) == item.wanted_servers == len(names)
        elif item.kind in ("copying", "copied"):
            copied = item.kind == EventKind.COPIED
        if serving and copied:
            return
    pytest.fail(f"the job ended before its servers were {names}")


def test_a_chunk_that_is_too_stale_is_computed_again_and_counts_once_and_the_job_ends_when_its_audit_can_be_written(
    begin: Start, tmp_path: Path, ids: np.ndarray
) -> None:
    """A worker's own chunk before is as much as is allowed, so whenever both are at work one of them has to compute again."""
    job = begin(max_staleness=1, num_ps_pods=1)
    obstacle = tmp_path / "audit" / "accounts"
    at(job, 40, lambda status: obstacle.mkdir())
    (tmp_path / "go").touch()
    notes = (item for item in seen(job) if isinstance(item, JobEvent) and item.kind == EventKind.NOTE)
    assert any(
        "audit can't be written (Is a directory): the job ends once it can" in one.text for one in notes
    )
    obstacle.rmdir()
    result = job.wait().succeeded()
    assert "was too stale, and is computed again" in result.logs
    rows, total = result_in(tmp_path)
    expected = np.bincount(ids, minlength=IDS).astype(np.float32) * EPOCHS
    np.testing.assert_array_equal(rows, np.repeat(expected[:, None], WIDTH, 1))
    assert total == RECORDS * EPOCHS
    report = audit(tmp_path / "audit")
    assert report.complete
    assert report.records == report.trained == RECORDS * EPOCHS


def test_dense_variables_are_fetched_every_few_minibatches(
    begin: Start, tmp_path: Path, ids: np.ndarray
) -> None:
    """In between a worker sees nothing but its own minibatches of 16, one after the other."""
    steps, notes = 5, tmp_path / "notes"
    notes.mkdir()
    job = begin(
        get_model_steps=steps,
        num_ps_pods=1,
        model_def="tallied.noted",
        environment={"GO": str(tmp_path / "go"), "PACE": "0.05", "NOTES": str(notes)},
    )
    both = next(item.step for item in seen(job) if isinstance(item, JobStatus) and len(training(item)) == 2)
    at(job, both + 100, lambda status: None)
    check(job, tmp_path, ids)
    fetched = []
    for worker in notes.iterdir():
        # Its step was tried before there was a minibatch: the first jump is from there to what came with the first.
        jumps = np.diff(np.loadtxt(worker))
        others = np.flatnonzero(jumps != 16)
        assert not (others % steps).any(), others
        fetched.append(len(others))
    assert len(fetched) == 2
    assert sum(fetched) >= 100 / steps / 2


def test_stale_minibatches_count_less_and_rows_that_nobody_trains_expire(
    begin: Start, tmp_path: Path
) -> None:
    """512 ids come once each, in the first 32 minibatches; 16 others in all of the 256 behind them, which look at each slot many times.

    Minibatches take their time until the first ones must be trained, whichever worker has them: one that is held up while the other is
    through with the late ones pushes its early ids last.
    """
    early, late = np.arange(100, 612), np.arange(16)
    in_order = [*early, *np.tile(late, 256)]
    (tmp_path / "ids.csv").write_text("id\n" + "".join(f"{one}\n" for one in in_order))
    job = begin(
        lr_staleness_modulation=True,
        embedding_expiry=40,
        num_ps_pods=1,
        num_epochs=1,
        shuffle=False,
        environment={"GO": str(tmp_path / "go"), "PACE": "0.1"},
    )
    both = next(item.step for item in seen(job) if isinstance(item, JobStatus) and len(training(item)) == 2)
    at(job, max(both, len(early) // 16) + 20, lambda status: (tmp_path / "go").touch())
    job.wait().succeeded()
    rows, total = result_in(tmp_path)
    assert 0 < total < len(in_order)
    np.testing.assert_array_equal(np.flatnonzero(rows[:, 0]), late)
    report = audit(tmp_path / "audit")
    assert report.complete
    assert report.trained == len(in_order)


def test_a_stopped_job_writes_what_it_has_trained(begin: Start, tmp_path: Path, ids: np.ndarray) -> None:
    job = begin()
    at_step(job, 30, lambda status: stop())
    summary = job.wait().succeeded().summary
    assert summary["reason"] == "enough"
    report = audit(tmp_path / "audit")
    assert report.finished
    assert not report.complete
    rows, total = result_in(tmp_path)
    assert total == report.trained == summary["records_trained"]
    assert rows.sum() == WIDTH * report.trained


def stop() -> bool:
    place = find("test")
    with JobClient(place.control_address, place.token()) as client:
        client.stop("enough")
    return True


def test_ids_beyond_the_table_are_bad_data(begin: Start, tmp_path: Path, ids: np.ndarray) -> None:
    (tmp_path / "go").touch()
    (tmp_path / "ids.csv").write_text("id\n" + "5\n" * 100 + "3000\n")
    result = begin(num_workers=1, num_ps_pods=1).wait()
    assert result.code == 2
    assert "the table rows has the ids 0 to 2999, received 5 to 3000" in result.err


def test_a_full_disk_of_the_audit_is_waited_for(
    plain: Start, small_disk: SmallDisk, tmp_path: Path, ids: np.ndarray
) -> None:
    few = {"num_workers": 1, "num_ps_pods": 1}
    job = plain(audit=small_disk.path / "audit", output=tmp_path / "tallied.npz", **few)
    at(job, 20, lambda status: small_disk.fill())
    waits = "the audit in {} can't be written: no space left on device".format(small_disk.path / "audit")
    said = (item.text for item in seen(job) if isinstance(item, JobEvent) and item.kind == EventKind.NOTE)
    assert any(waits in text for text in said)
    small_disk.free()
    (tmp_path / "go").touch()
    assert job.wait().succeeded().summary["steps"] == 250
    report = audit(small_disk.path / "audit")
    assert report.records == report.trained == RECORDS * EPOCHS


def test_a_disk_of_the_audit_that_stays_full_is_what_the_job_ends_with(
    plain: Start, small_disk: SmallDisk
) -> None:
    job = plain(audit=small_disk.path / "audit", num_workers=1, num_ps_pods=1)
    at(job, 1, lambda status: small_disk.fill())
    result = job.wait()
    assert result.code == 1, result.logs
    assert result.summary["reason"] == (
        f"the audit in {small_disk.path / 'audit'} can't be written: no space left on device; free some, and start the job again, with "
        "an empty --audit directory"
    )
    assert "Traceback" not in result.err


def test_a_full_disk_of_the_output_is_what_the_job_ends_with(
    plain: Start, small_disk: SmallDisk, tmp_path: Path
) -> None:
    output = small_disk.path / "tallied.npz"
    job = plain(num_workers=1, num_ps_pods=1, output=output)
    at(job, 1, lambda status: small_disk.fill())
    (tmp_path / "go").touch()
    result = job.wait()
    assert result.code == 1, result.logs
    what = f"the model can't be written to {output}: no space left on device"
    assert result.summary["reason"].startswith(
        f"{what}; free some, and start the job again; after one with --checkpoint_dir"
    )
    first = f"worker-0-1 has ended: it failed ({what}); nothing is left to train, and another one writes the model"
    assert first in result.err
    assert "Traceback" not in result.err
