"""What a master keeps for people: the next master finds it, and a cluster that does not answer costs nothing."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from elasticdl.cluster.local import place as places
from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.status import EventKind, JobEvent, JobStatus
from elasticdl.master.reporting import statusstore
from elasticdl.master.reporting.history import HistoryEvent
from elasticdl.master.reporting.statusstore import (
    EVENTS,
    EVENTS_LIMIT,
    STATUS,
    SUMMARY,
    TOLD,
    FileStatusStore,
    ObjectStatusStore,
    headline,
)
from elasticdl.spec.edge import build, from_arguments

from .shelf import Shelf, Wire

SETTINGS = {"model_def": "m.model", "training_data": "data", "job_name": "job"}


def told(number: int) -> HistoryEvent:
    return HistoryEvent(
        JobEvent(float(number), EventKind.NOTE, "worker-0-1", 1, number, f"event {number}"), cause="why"
    )


def status(step: int) -> JobStatus:
    return JobStatus("job", "training", "", 1, step, 0, 1, 0.5, 0.1, 10, 5.0, 1.0, 2, ())


@pytest.mark.parametrize(
    ("epoch", "epochs", "said"), [(0, 2, "epoch 1"), (2, 2, "epoch 2"), (7, 0, "epoch 8")]
)
def test_the_epoch_after_the_last_is_the_last(epoch: int, epochs: int, said: str) -> None:
    assert said in headline(replace(status(3), epoch=epoch, num_epochs=epochs))


def test_the_next_master_of_a_local_job_finds_what_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    place = places.create(build(from_arguments(SETTINGS)))
    try:
        first = FileStatusStore(place)
        assert first.recall() == []
        first.tell(told(1))
        with open(place.path / "events.jsonl", "a") as file:
            file.write('{"torn')
        second = FileStatusStore(place)
        assert second.recall() == [told(1)]
        second.tell(told(2))
        assert FileStatusStore(place).recall() == [told(1), told(2)]
        second.conclude({"status": "finished"})
        assert place.summary() == {"status": "finished"}
    finally:
        place.close()


def test_there_is_room_for_the_summary_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    place = places.create(build(from_arguments(SETTINGS)))
    write = statusstore.replace_file

    def on_full_disk(path: Path, text: str, mode: int) -> None:
        if place.reserve_path.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, text, mode)

    monkeypatch.setattr(statusstore, "replace_file", on_full_disk)
    assert place.reserve_path.stat().st_blocks * 512 >= 65_536
    FileStatusStore(place).conclude({"status": "finished"})
    assert place.summary() == {"status": "finished"}
    place.close()


@pytest.mark.parametrize("seed", range(5))
def test_the_next_master_on_a_cluster_finds_what_was_told(seed: int) -> None:
    shelf, history, lines, announced = Shelf(), Shelf(), list[str](), list[JobEvent]()
    first = ObjectStatusStore(Wire(shelf, seed), Wire(history, seed + 100), lines.append, announced.append)
    first.tell(told(1))
    first.show(status(7))
    first.conclude({"status": "failed"})
    assert json.loads(shelf.texts[STATUS])["step"] == 7
    assert json.loads(shelf.texts[SUMMARY]) == {"status": "failed"}
    assert lines == ["training, 0/2 workers, epoch 1, 50 %"]
    mark = shelf.texts[TOLD]
    second = ObjectStatusStore(shelf, history, lines.append, announced.append)
    assert second.recall() == [told(1)]
    second.tell(told(2))
    second.conclude({"status": "finished"})
    assert len(history.texts[EVENTS].splitlines()) == 2
    assert shelf.texts[TOLD] != mark
    assert EVENTS not in shelf.texts
    assert announced == [told(1).event, told(2).event]


def test_a_master_that_cannot_begin_says_so_too() -> None:
    shelf, history = Shelf(), Shelf()
    history.texts[EVENTS] = told(1).to_line()
    ObjectStatusStore(shelf, history, lambda line: None, lambda event: None).conclude({"status": "failed"})
    assert json.loads(shelf.texts[SUMMARY]) == {"status": "failed"}
    assert history.texts[EVENTS] == told(1).to_line()


@pytest.fixture
def silent_at_first() -> Shelf:
    """An object with one event, of which the first two readings fail."""
    history = Shelf()
    history.texts[EVENTS] = told(1).to_line()
    read, answers = history.read, iter([False, False, True])

    def unsure() -> tuple[dict[str, str], str]:
        if not next(answers, True):
            raise OSError("no answer")
        return read()

    history.read = unsure  # type: ignore[method-assign]
    return history


def test_a_new_master_waits_for_a_cluster_that_does_not_answer(
    silent_at_first: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no figures of the time before it, its summary would be wrong for the rest of the job."""
    monkeypatch.setattr(statusstore, "_PERIOD", 0.01)
    store = ObjectStatusStore(Shelf(), silent_at_first, lambda line: None, lambda event: None)
    assert store.recall() == [told(1)]
    store.conclude({})


def test_what_could_not_be_read_is_not_written_over(
    silent_at_first: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statusstore, "_RECALL_SECONDS", 0.0)
    store = ObjectStatusStore(Shelf(), silent_at_first, lambda line: None, lambda event: None)
    assert store.recall() == []
    store.tell(told(2))
    store.conclude({"status": "finished"})
    assert silent_at_first.texts[EVENTS] == told(1).to_line() + told(2).to_line()


def test_what_each_member_tells_of_each_view_is_not_kept() -> None:
    shelf, announced = Shelf(), list[JobEvent]()
    store = ObjectStatusStore(Shelf(), shelf, lambda line: None, announced.append)
    for kind in (EventKind.SEALED, EventKind.LOST, EventKind.COMMITTED_FIRST):
        store.tell(HistoryEvent(JobEvent(1.0, kind, "worker-0-1", 1, 1, kind)))
    store.conclude({})
    assert [json.loads(line)["kind"] for line in shelf.texts[EVENTS].splitlines()] == [EventKind.LOST]
    assert [event.kind for event in announced] == [EventKind.LOST]


def test_old_events_make_room_for_new_ones() -> None:
    shelf = Shelf()
    store = ObjectStatusStore(Shelf(), shelf, lambda line: None, lambda event: None)
    for number in range(1, 5001):
        store.tell(told(number))
    store.conclude({})
    kept = shelf.texts[EVENTS].splitlines()
    assert len(shelf.texts[EVENTS]) <= EVENTS_LIMIT
    assert json.loads(kept[-1])["text"] == "event 5000"
    assert len(kept) > 1000


@pytest.mark.parametrize("kind", [EventKind.SNAPSHOT, EventKind.EVALUATED, EventKind.NOTE])
def test_what_is_counted_outlives_what_passes(kind: EventKind) -> None:
    """A snapshot each ten seconds fills the object in six hours; then the losses before were forgotten."""
    shelf = Shelf()
    store = ObjectStatusStore(Shelf(), shelf, lambda line: None, lambda event: None)
    counted = (EventKind.JOINED, EventKind.STEP, EventKind.LOST, EventKind.RECOVERED, EventKind.VIEW)
    for one in counted:
        store.tell(HistoryEvent(JobEvent(1.0, one, "worker-0-1", 1, 1, f'"kind": "{kind}"')))
    for number in range(1, 5001):
        store.tell(replace(told(number), event=replace(told(number).event, kind=kind)))
    store.conclude({})
    kept = [json.loads(line) for line in shelf.texts[EVENTS].splitlines()]
    assert [line["kind"] for line in kept[: len(counted)]] == list(counted)
    assert {line["kind"] for line in kept[len(counted) :]} == {kind}
    assert kept[-1]["text"] == "event 5000"
    assert 0.99 * EVENTS_LIMIT < len(shelf.texts[EVENTS]) <= EVENTS_LIMIT
