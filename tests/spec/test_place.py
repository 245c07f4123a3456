"""The place of a local job."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from elasticdl.cluster.local import place as places
from elasticdl.errors import BadSetting
from elasticdl.spec.edge import build, from_arguments
from elasticdl.spec.jobspec import JobSpec


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def job(name: str = "a-job") -> JobSpec:
    return build(from_arguments({"model_def": "a.b", "training_data": "x", "job_name": name}))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_names_are_unique_and_things_private() -> None:
    first, second = places.create(job()), places.create(job())
    assert (first.name, second.name) == ("a-job-1", "a-job-2")
    assert first.token() != second.token()
    assert len(first.token()) == 32
    assert mode(first.path / "token") == 0o600
    assert [mode(path) for path in (first.path, first.sockets, first.journal, first.logs)] == [0o700] * 4
    assert first.spec() == job()
    first.remove()
    assert places.create(job()).name == "a-job-3"


def test_one_name_is_not_the_beginning_of_another() -> None:
    places.create(job("a-job-9"))
    assert places.create(job("a-job")).name == "a-job-1"


def test_a_process_of_the_job_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made = places.create(job(), submitted_at=12.5)
    monkeypatch.setenv(places.ENVIRONMENT, str(made.path))
    monkeypatch.delenv("XDG_RUNTIME_DIR")  # addresses are recorded, not computed again
    assert places.own_place() == made
    assert places.own_place().submitted_at == 12.5


def test_a_process_without_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(places.ENVIRONMENT, raising=False)
    with pytest.raises(BadSetting, match="not by hand"):
        places.own_place()


def test_socket_paths_are_short_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 90)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    made = places.create(job())
    for address in (
        made.control_address,
        made.heart_address,
        made.launcher_address,
        made.data_address("f" * 32),
    ):
        assert len(os.fsencode(address.removeprefix("unix:"))) <= 107
    made.remove()
    assert not made.sockets.exists()


def test_members_have_addresses_of_their_own() -> None:
    made = places.create(job())
    assert made.data_address("0" * 16 + "1" * 16) != made.data_address("1" * 32)


def test_running_lasts_as_long_as_the_lock() -> None:
    made = places.create(job())
    assert not made.running()
    lock = made.hold()
    assert made.running()
    os.close(lock)
    assert not made.running()


def test_close_leaves_logs_and_summary() -> None:
    made = places.create(job())
    made.log_path("worker-0-1").write_text("x")
    made.summary_path.write_text('{"status": "finished"}')
    made.close()
    assert not made.sockets.exists()
    assert made.log_path("worker-0-1").exists()
    assert made.summary() == {"status": "finished"}
    with pytest.raises(BadSetting, match="has ended"):
        made.token()


def test_find() -> None:
    first, second, third = (
        places.create(job(), 1.0),
        places.create(job(), 2.0),
        places.create(job("other"), 3.0),
    )
    assert places.find("a-job-1") == first
    assert places.find("a-job") == second
    lock = first.hold()
    assert places.find("a-job") == first
    os.close(lock)
    assert places.find("other") == third
    with pytest.raises(BadSetting, match="no job is named 'nobody'; there are a-job-1, a-job-2, other-1"):
        places.find("nobody")


def test_prune_spares_the_running() -> None:
    ended, running = places.create(job()), places.create(job())
    lock = running.hold()
    assert list(places.prune()) == [ended]
    assert not ended.path.exists()
    assert places.places() == [running]
    os.close(lock)


def test_no_jobs_at_all() -> None:
    assert places.places() == []
    with pytest.raises(BadSetting, match="there are no jobs"):
        places.find("x")


def test_another_format_is_refused() -> None:
    made = places.create(job())
    file = made.path / "place.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 9}))
    with pytest.raises(BadSetting, match="format 9, this version of elasticdl reads format 1"):
        places.open_place(made.path)


def test_no_room_for_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    with pytest.raises(BadSetting, match="set XDG_STATE_HOME"):
        places.create(job())


def test_nothing_is_left_of_a_place_that_could_not_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: JobSpec) -> dict[str, object]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(JobSpec, "to_json", full)
    with pytest.raises(BadSetting, match="No space left"):
        places.create(job())
    assert list(places.jobs_directory().iterdir()) == []
    assert list(tmp_path.glob("edl-*")) == []
