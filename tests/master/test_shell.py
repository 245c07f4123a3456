"""A master among real processes: it trains to the end whatever is killed, and says truly how the job ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from elasticdl.audit import audit
from elasticdl.control.protocol.status import EventKind
from elasticdl.errors import BadSetting, MasterAway
from elasticdl.master.core.recordforms import FORMAT

from .conftest import MODEL, SECONDS, Job

CROWDED = str(Path(__file__).with_name("crowded_master.py"))
SLOW = str(Path(__file__).with_name("slow_journal_master.py"))
FULL_DISK = str(Path(__file__).with_name("full_disk_master.py"))
HELD = str(Path(__file__).with_name("held_master.py"))
SECOND = str(Path(__file__).with_name("second_master.py"))
READER = MODEL + "\ndef custom_data_reader(data_origin, records_per_task=None, rows=0): ...\n"

Start = Callable[..., Job]


def finished(job: Job, tmp_path: Path, epochs: int = 1) -> dict[str, object]:
    """Wait for the end, which comes soon, and check the result: every record once per epoch, in the model and in the audit."""
    job.hurry()
    code, summary = job.end()
    assert code == 0, f"{summary}\n{job.logs()}"
    assert summary["status"] == "finished"
    report = audit(tmp_path / "audit")
    assert report.complete
    assert report.records == summary["records_trained"] == epochs * job.records
    assert report.steps == summary["steps"]
    result = json.loads((tmp_path / "out.keras").read_text())
    assert result["sum"] == epochs * sum(range(job.records))
    assert summary["outputs"] == [str(tmp_path / "out.keras")]
    assert job.launcher.processes() == {}
    left = {path.name for path in job.place.path.iterdir()} - {"token", "lock", "page.json"}
    left = {
        name for name in left if not name.endswith(".draft")
    }  # of a page: a process that is killed leaves its draft
    assert left == {
        "curves.json",
        "events.jsonl",
        "journal",
        "logs",
        "place.json",
        "spec.json",
        "summary.json",
    }
    assert [path.name for path in tmp_path.glob(".out*")] == []
    return summary


def test_a_job_without_trouble_replaces_an_earlier_result(start: Start, tmp_path: Path) -> None:
    (tmp_path / "out.keras").write_text("earlier")
    job = start(num_epochs=2)
    summary = finished(job, tmp_path, 2)
    assert summary["epochs"] == 2
    assert summary["members"] == {"joined": 2, "drained": 0, "lost": 0}
    assert summary["redone_steps"] == 0
    assert summary["recoveries"] == []
    assert summary["digest"]
    kinds = [event.kind for event in job.events]
    assert kinds.count("joined") == 2
    assert kinds.count("step") == 1
    assert kinds.index("finished") < kinds.index("exported")
    assert job.status is not None
    assert job.status.state == "finished"
    assert job.status.done == 1.0
    times = [event.time for event in job.events]
    assert times == sorted(set(times))


def joined(job: Job, *names: str) -> None:
    """Wait until workers have joined."""
    job.until(lambda job: {event.worker for event in job.of(EventKind.JOINED)} >= set(names))


def test_killed_workers_are_replaced_one_and_then_all(start: Start, tmp_path: Path) -> None:
    """Below its minimum the job waits, and says what for."""
    job = start(rows=2000, num_workers="2:2", faults={"worker-1-2": "held"})
    job.past(10)
    job.kill("worker-1-1")
    reason = job.until(lambda job: job.status and job.status.state == "waiting" and job.status.reason)
    assert reason == "1 of the 2 workers are there that the job needs to train"
    (tmp_path / "let").touch()
    recovered = job.happened(EventKind.RECOVERED)
    assert recovered.worker == "worker-1-1"
    assert recovered.seconds is not None
    joined(job, "worker-1-2")
    assert job.status is not None
    job.past(job.status.step + 10)
    for name in ("worker-0-1", "worker-1-2"):
        job.kill(name)
    summary = finished(job, tmp_path)
    assert summary["members"] == {"joined": 5, "drained": 0, "lost": 3}
    assert summary["redone_steps"] >= 10  # type: ignore[operator]
    first, *_ = summary["recoveries"]  # type: ignore[misc]
    assert first["member"] == "worker-1-1"
    assert "SIGKILL" in first["cause"]


def test_a_killed_master_comes_back_again_and_again(start: Start, tmp_path: Path) -> None:
    """At the start, with a worker, and before anything else has happened; the job reads with a custom reader."""
    job = start(rows=2400, step=0.05, num_workers=2, model=READER, data_reader_params={"rows": 2400})
    job.kill(job.master())
    job.past(10)
    job.kill("worker-0-1")
    job.kill(job.master())
    job.happened(EventKind.MASTER)
    joined(job, "worker-0-2")
    for count in range(2, 5):
        job.kill(job.master())
        job.happened(EventKind.MASTER, count)
    assert finished(job, tmp_path)["members"] == {"joined": 3, "drained": 0, "lost": 1}


def test_scaling_up_and_down_survives_the_master_and_who_is_drained_leaves_without_loss(
    start: Start, tmp_path: Path
) -> None:
    job = start(rows=3000, step=0.1, num_workers=1)
    job.past(5)
    with job.client() as client:
        assert "3" in client.scale(3)
    job.kill(job.master())
    job.happened(EventKind.MASTER)
    job.until(lambda job: job.status and job.status.wanted_workers == 3)
    job.until(lambda job: len({event.worker for event in job.of(EventKind.JOINED)}) == 3)
    job.kill("worker-2-1", signal.SIGTERM)
    assert job.happened(EventKind.DRAINED).worker == "worker-2-1"
    joined(job, "worker-2-2")
    with job.client() as client:
        client.scale(1)
        job.happened(EventKind.DRAINED, 3)
        with pytest.raises(BadSetting, match="at least 1"):
            client.scale(0)
    assert {event.worker for event in job.of(EventKind.DRAINED)} == {"worker-2-1", "worker-1-1", "worker-2-2"}
    summary = finished(job, tmp_path)
    assert summary["members"]["lost"] == 0  # type: ignore[index]
    assert summary["redone_steps"] == 0


@pytest.mark.parametrize(
    ("reason", "code", "status"), [("enough", 0, "finished"), ("interrupt", 130, "interrupted")]
)
def test_an_early_end_exports_what_there_is(
    start: Start, tmp_path: Path, reason: str, code: int, status: str
) -> None:
    job = start(rows=100_000, num_workers=1)
    job.past(10)
    with job.client() as client:
        assert "step" in client.stop(reason)
    ended, summary = job.end()
    assert (ended, summary["status"], summary["reason"]) == (code, status, reason)
    report = audit(tmp_path / "audit")
    assert report.steps == summary["steps"] >= 10
    assert report.records == summary["records_trained"]
    assert (tmp_path / "out.keras").exists()


def test_an_interrupt_before_the_first_step(start: Start, tmp_path: Path) -> None:
    job = start(
        rows=100_000, num_workers=1, faults={"worker-0-1": "die", "worker-0-2": "die", "worker-0-3": "die"}
    )
    job.happened(EventKind.ENDED)
    with job.client() as client:
        client.stop("interrupt")
    code, summary = job.end()
    assert (code, summary["status"]) == (130, "interrupted")
    assert not (tmp_path / "out.keras").exists()


def test_crashes_count(start: Start) -> None:
    faults = {f"worker-0-{life}": "crash" for life in (1, 2, 3)}
    job = start(rows=100_000, num_workers=1, faults=faults)
    code, summary = job.end()
    assert (code, summary["status"]) == (1, "failed")
    assert "SIGSEGV" in summary["reason"]
    assert summary["failed_worker"] == "worker-0-2"
    assert not Path(job.place.spec().output).exists()


def test_a_model_that_cannot_be_built_fails_the_job_with_its_traceback(start: Start) -> None:
    job = start(rows=1500, num_workers=1, faults={"worker-0-1": "bad model"})
    code, summary = job.end()
    assert (code, summary["status"]) == (1, "failed")
    assert "ValueError: the model can't be built" in summary["traceback"]


def test_a_feed_that_returns_nonsense_is_bad_input(start: Start) -> None:
    job = start(rows=1500, num_workers=1, faults={"worker-0-1": "bad data"})
    code, summary = job.end()
    assert (code, summary["status"]) == (2, "failed")
    assert "feed returned nonsense" in summary["reason"]


def test_a_program_error_is_forgiven_once_and_deaths_that_nobody_can_help_do_not_count(
    start: Start, tmp_path: Path
) -> None:
    faults = {**{f"worker-1-{life}": "die" for life in (1, 2, 3)}, "worker-1-4": "raise"}
    job = start(rows=2500, step=0.2, num_workers=2, faults=faults)
    job.until(lambda job: any(event.worker == "worker-1-4" for event in job.of(EventKind.LAUNCHED)))
    joined(job, "worker-1-4")
    joined(job, "worker-1-5")
    finished(job, tmp_path)


def test_the_same_program_error_in_another_life_fails_the_job(start: Start) -> None:
    job = start(rows=100_000, num_workers=2, faults={"worker-1-1": "raise", "worker-1-2": "raise"})
    code, summary = job.end()
    assert (code, summary["status"]) == (1, "failed")
    assert "RuntimeError: the user's program fails" in summary["traceback"]


@pytest.mark.parametrize("content", ["", "value\n", "\0\1\2"])
def test_data_that_is_none(start: Start, tmp_path: Path, content: str) -> None:
    data = tmp_path / "other.csv"
    data.write_text(content)
    job = start(training_data=str(data), num_workers=1)
    code, summary = job.end()
    assert (code, summary["status"]) == (2, "failed")
    assert "other.csv" in summary["reason"]
    assert not (tmp_path / "audit" / "manifest").exists()


def test_an_audit_directory_of_another_job(start: Start, tmp_path: Path) -> None:
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / "manifest").write_text("{}")
    code, summary = start(audit=str(tmp_path / "audit"), num_workers=1).end()
    assert code == 2
    assert "another job" in summary["reason"]
    assert (tmp_path / "audit" / "manifest").read_text() == "{}"


def test_a_hung_worker_is_left_out(start: Start, tmp_path: Path) -> None:
    job = start(rows=1500, num_workers=2, heartbeat_seconds=0.1, witness_seconds=1.0, silence_seconds=1.0)
    job.past(10)
    job.kill("worker-1-1", signal.SIGSTOP)
    assert job.happened(EventKind.EVICTED).worker == "worker-1-1"
    job.happened(EventKind.RECOVERED)
    finished(job, tmp_path)


def test_a_reader_of_ones_own_without_records(start: Start) -> None:
    code, summary = start(num_workers=1, model=READER, data_reader_params={"rows": 0}).end()
    assert (code, summary["status"]) == (2, "failed")
    assert "no records" in summary["reason"]


def test_a_full_disk_does_not_stop_training(start: Start, tmp_path: Path) -> None:
    job = start(rows=400, num_epochs=20, num_workers=2, master=FULL_DISK)
    job.past(10)
    full = job.place.path / "full"
    full.touch()
    note = job.happened(EventKind.NOTE)  # the snapshot at the end of an epoch can't be recorded
    assert "No space left on device" in note.text
    assert job.status is not None
    job.past(job.status.step + 50)
    job.kill("worker-1-1")  # now the group must wait
    job.until(lambda job: job.status and any(w.state == "sealed" for w in job.status.workers))
    full.unlink()
    assert "again" in job.happened(EventKind.NOTE, 2).text
    job.happened(EventKind.RECOVERED)
    finished(job, tmp_path, 20)


def test_a_journal_is_compacted_while_it_is_written(start: Start, tmp_path: Path) -> None:
    job = start(rows=1500, num_epochs=4, step=0.03, num_workers=2, master=CROWDED)

    def lose(life: int) -> None:
        job.until(lambda job: any(event.worker == f"worker-1-{life}" for event in job.of(EventKind.JOINED)))
        assert job.status is not None
        job.past(job.status.step + 5)
        job.kill(f"worker-1-{life}")
        job.happened(EventKind.RECOVERED, life)

    for life in (1, 2, 3):
        lose(life)
    job.kill(job.master())
    job.happened(EventKind.MASTER)
    lose(4)

    def compactions(job: Job) -> int:
        pages = sorted(job.place.journal.glob("[0-9]*"))
        kept = [page for page in pages if page.stat().st_size]
        assert len(kept) < len(pages)
        return sum("compacted" in page.read_text() for page in kept)

    # Until those before it are emptied, the one before the last is there, too.
    job.until(lambda job: compactions(job) == 1)
    finished(job, tmp_path, 4)


def test_a_journal_that_is_slow_to_write_is_held_against_nobody(start: Start, tmp_path: Path) -> None:
    job = start(rows=1500, step=0.1, num_workers=2, witness_seconds=1, heartbeat_seconds=0.2, master=SLOW)
    job.past(10)
    with job.client() as client:
        client.scale(3)
    job.happened(EventKind.JOINED, 3)
    summary = finished(job, tmp_path)
    assert summary["members"] == {"joined": 3, "drained": 0, "lost": 0}
    assert job.of(EventKind.EVICTED) == []


@pytest.fixture
def dying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """The command of a master that dies once, or stands still, in a moment."""
    monkeypatch.setenv("DYING_MASTER_FLAG", str(tmp_path / "flag"))
    return lambda moment: f"{Path(__file__).with_name('dying_master.py')} {moment}"


def test_a_stop_before_the_first_view_is_not_forgotten(start: Start, dying: Callable[[str], str]) -> None:
    faults = {f"worker-0-{life}": "die" for life in range(1, 100)}
    job = start(rows=100_000, num_workers=1, faults=faults, master=dying("stopping"))
    job.happened(EventKind.ENDED)
    with contextlib.suppress(MasterAway), job.client() as client:
        client.stop("enough")
    code, summary = job.end()
    assert (code, summary["status"]) == (1, "failed")
    assert "nothing" in summary["reason"]


def test_a_master_without_one_of_its_threads_is_replaced(
    start: Start, tmp_path: Path, dying: Callable[[str], str]
) -> None:
    job = start(rows=1500, num_workers=2, master=dying("thread"))
    job.past(5)
    job.kill("worker-0-1")
    job.happened(EventKind.MASTER)
    finished(job, tmp_path)
    assert "an error in the thread that writes the journal" in job.logs()


def test_the_end_is_told_once_also_if_another_master_writes_the_summary(
    start: Start, tmp_path: Path, dying: Callable[[str], str]
) -> None:
    job = start(rows=1000, num_workers=2, master=dying("summary"))
    finished(job, tmp_path)
    assert (tmp_path / "flag").exists()
    lines = (job.place.path / "events.jsonl").read_text().splitlines()
    ends = [EventKind.FINISHED, EventKind.EXPORTED, EventKind.MASTER]
    assert [kind for line in lines if (kind := json.loads(line)["kind"]) in ends] == ends


def test_a_master_that_stands_still_suspects_nobody(
    start: Start, tmp_path: Path, dying: Callable[[str], str]
) -> None:
    job = start(rows=6000, num_workers=2, master=dying("still"))
    still_at = job.until(lambda job: (tmp_path / "flag").exists() and job.status and job.status.step)
    job.past(still_at + 100)  # it moves again
    summary = finished(job, tmp_path)
    assert (summary["members"], summary["view_changes"]) == ({"joined": 2, "drained": 0, "lost": 0}, 1)


def test_a_result_that_can_not_be_put_in_its_place_is_kept(start: Start, tmp_path: Path) -> None:
    job = start(rows=500, num_workers=1)
    job.past(5)
    (tmp_path / "out.keras").mkdir()  # made after the check; nobody may rename it away
    (tmp_path / "out.keras" / "mine").touch()
    (tmp_path / ".out.keras.replaced").touch()
    code, summary = job.end()
    assert (code, summary["status"]) == (1, "failed")
    reason = str(summary["reason"])
    assert "can't be put in its place" in reason
    kept = Path(reason.partition("the model is at ")[2].partition(",")[0])
    assert json.loads(kept.read_text())["sum"] == sum(range(job.records))


def test_a_disk_that_is_full_from_the_start(start: Start, tmp_path: Path) -> None:
    full_at_start = tmp_path / "full"
    full_at_start.touch()
    job = start(rows=400, num_workers=1, master=FULL_DISK)
    (job.place.path / "full").touch()
    job.until(lambda job: job.status)
    (job.place.path / "full").unlink()
    finished(job, tmp_path)


@pytest.mark.parametrize(("reason", "code"), [("enough", 1), ("interrupt", 130)])
def test_a_job_whose_disk_is_full_from_the_start_can_be_stopped(
    start: Start, tmp_path: Path, reason: str, code: int
) -> None:
    job = start(rows=400, num_workers=1, master=FULL_DISK + " full")
    job.until(lambda job: job.status and job.status.state == "waiting")
    assert job.status is not None
    assert "No space left on device" in job.status.reason
    assert str(job.place.journal) in job.status.reason
    with job.client() as client:
        assert "No space left on device" in client.stop(reason)
    ended, summary = job.end()
    assert (ended, summary["exit_code"]) == (code, code)
    assert str(job.place.journal) in summary["reason"]
    assert list(job.place.journal.iterdir()) == []


def test_an_export_that_fails_leaves_the_earlier_result(start: Start, tmp_path: Path) -> None:
    (tmp_path / "out.keras").write_text("earlier")
    job = start(num_workers=1, faults={f"worker-0-{life}": "no export" for life in range(1, 5)})
    code, summary = job.end()
    assert (code, summary["status"]) == (1, "failed")
    assert "no space left on device" in summary["traceback"]
    assert summary["outputs"] == []
    assert (tmp_path / "out.keras").read_text() == "earlier"
    assert list(tmp_path.glob(".out*")) == []


def test_a_journal_of_another_format_is_refused(start: Start, tmp_path: Path) -> None:
    job = start(rows=100_000, num_workers=1)
    job.past(5)
    last = max(job.place.journal.iterdir())
    content = last.read_text().replace(f'"format":{FORMAT}', '"format":9')
    assert content != last.read_text(), "its format is said"
    last.write_text(content)
    job.kill(job.master())
    code, summary = job.end()
    assert (code, summary["status"]) == (2, "failed")
    assert "format 9" in summary["reason"]
    assert f"format {FORMAT}" in summary["reason"]
    assert last.read_text() == content


def test_a_first_master_that_finds_the_sockets_held_leaves_the_job_to_the_next(
    start: Start, tmp_path: Path
) -> None:
    """It is not told as bad input: nobody but another master of the job has them."""
    job = start(rows=40, num_workers=1, master=HELD)
    finished(job, tmp_path)
    assert "in use by another process" in job.place.log_path("master-0-1").read_text()


def test_two_masters_at_once(start: Start, tmp_path: Path) -> None:
    """The stale one finds out by the journal, and takes neither the socket nor the job with it."""
    job = start(rows=6000, step=0.03, num_workers=2)
    job.past(10)
    stale = job.master()
    job.kill(stale, signal.SIGSTOP)
    environment = {**os.environ, "ELASTICDL_JOB": str(job.place.path), "ELASTICDL_PROCESS": "master-0-90"}
    second = subprocess.Popen([sys.executable, SECOND], env=environment)
    try:
        job.until(
            lambda job: '"epoch":2' in "".join(path.read_text() for path in job.place.journal.glob("0*"))
        )
        job.kill(stale, signal.SIGCONT)
        job.kill("worker-1-1")  # both masters want another view now, and only one of them can have it
        job.until(lambda job: stale not in map(str, job.launcher.processes()))
        job.until(lambda job: any(event.worker == "worker-1-2" for event in job.of(EventKind.JOINED)))
        finished(job, tmp_path)
    finally:
        second.kill()
        second.wait(SECONDS)
