"""What the loop of a synchronous worker leaves behind: snapshots, the result, and how it ends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from elasticdl.checkpoint.stateimage import RunningSums, State, decode, encode
from elasticdl.cluster.cluster import EVICTED, FINISHED, RELEASED
from elasticdl.control.protocol.messages import (
    Acknowledged,
    Evicted,
    Exported,
    Failed,
    Finished,
    MasterMessage,
    NewView,
    NextView,
    Note,
    Pending,
    ProgramFailed,
    Register,
    Released,
    Saved,
    Stop,
    saved_as,
)
from elasticdl.control.protocol.view import SNAPSHOT, StateId, ViewId
from elasticdl.worker.events import Connected, DrainRequested, Exit, SnapshotWritten, Tick
from tests.worker.synchronous import SCHEDULE, START, START_STATE, Made, Worker, schedule, view

DONE = Finished("done")
AFTER_ONE = SCHEDULE.advance(START, 2)
AFTER_TWO = SCHEDULE.advance(AFTER_ONE, 2)


def begin(worker: Worker) -> None:
    worker.start(NewView(view(1, worker.peer)))


def pause(worker: Worker) -> None:
    """Let a worker train one step, and wait for its question what comes next."""
    worker.adapter.moments["compute"] = lambda: worker.tell(Pending(ViewId(1)))
    begin(worker)
    assert worker.hear(NextView).report.state == StateId(1, 1)


# ------------------------------------------------------------------ snapshots


def test_a_snapshot_is_the_state_after_its_step_and_is_written_whole(made: Made, tmp_path: Path) -> None:
    folder = tmp_path / "snapshots"
    worker = made(snapshots=folder, checkpoint_steps=3, data=schedule(epochs=3))
    worker.wait_for_snapshot(3)
    images: list[bytes] = []
    worker.adapter.moments["logs"] = lambda: images.append(worker.adapter.image().body.tobytes())
    begin(worker)
    saved = worker.hear(Saved)
    path = folder / "step-3-view-1.state"
    position = SCHEDULE.advance(AFTER_TWO, 2)
    assert saved == Saved(ViewId(1), StateId(3, 1), position, str(path))
    worker.hear(NextView)
    assert list(folder.iterdir()) == [path]
    state = decode(path.read_bytes())
    assert (state.id, state.position, state.sums) == (StateId(3, 1), position, RunningSums(10.0, 4.0))
    # taken before step 4, written after it
    assert state.image.body.tobytes() == images[2] != images[3]


def test_a_snapshot_of_an_epochs_end_begins_the_figures_of_the_next_one(made: Made, tmp_path: Path) -> None:
    worker = made(snapshots=tmp_path / "snapshots")
    worker.wait_for_snapshot(2)
    begin(worker)
    saved = worker.hear(Saved)
    assert (saved.state, saved.position) == (StateId(2, 1), AFTER_TWO)
    assert decode(Path(saved.path).read_bytes()).sums == RunningSums()


def test_without_a_later_step_no_snapshot_is_written(made: Made, tmp_path: Path) -> None:
    """A state that the next view does not begin with is given up; what takes its place has another name."""
    folder = tmp_path / "snapshots"
    worker = made(snapshots=folder, checkpoint_steps=1)
    start = tmp_path / "start.state"
    start.write_bytes(encode(State(START_STATE, START, RunningSums(), worker.adapter.image())))
    pause(worker)
    assert not folder.exists()
    worker.wait_for_snapshot(1)
    worker.tell(NewView(view(2, worker.peer, sources=(SNAPSHOT,), snapshot=str(start))))
    assert worker.hear(Saved).state == StateId(1, 2)
    assert worker.hear(NextView).report.state == StateId(4, 2)
    assert worker.adapter.weight == -14.0
    worker.end(DONE)
    assert not (folder / "step-1-view-1.state").exists()


def test_a_state_that_the_next_view_begins_with_is_written_in_it(made: Made, tmp_path: Path) -> None:
    worker = made(snapshots=tmp_path / "snapshots", checkpoint_steps=1)
    pause(worker)
    worker.wait_for_snapshot(1)
    worker.tell(NewView(view(2, worker.peer, base=StateId(1, 1), at=AFTER_ONE)))
    saved = worker.hear(Saved)
    assert (saved.view, saved.state) == (2, StateId(1, 1))
    assert decode(Path(saved.path).read_bytes()).sums == RunningSums(10.0, 4.0)


def test_a_snapshot_that_cannot_be_written_is_noted_and_training_continues(
    made: Made, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    worker = made(snapshots=file / "snapshots")
    begin(worker)
    while not (note := worker.hear(Note)).text.startswith("could not write the snapshot"):
        pass
    assert (note.kind, note.step) == ("note", 2)
    assert f"{file}/snapshots/step-2-view-1.state: " in note.text
    assert worker.end(DONE) == Exit(0, "done")
    assert not worker.of(Saved)
    assert not worker.of(ProgramFailed)


def test_without_a_folder_there_are_no_snapshots(made: Made) -> None:
    worker = made(checkpoint_steps=1)
    begin(worker)
    assert worker.hear(NextView).report.state == StateId(4, 1)
    worker.end(DONE)
    assert not worker.seen(SnapshotWritten)


def test_a_state_comes_from_the_snapshot_of_the_view(made: Made, tmp_path: Path) -> None:
    before = made(snapshots=tmp_path / "snapshots", checkpoint_steps=1)
    before.wait_for_snapshot(1)
    begin(before)
    saved = before.hear(Saved)
    worker = made()
    resumed = view(
        2, worker.peer, base=saved.state, at=saved.position, sources=(SNAPSHOT,), snapshot=saved.path
    )
    worker.start(NewView(resumed))
    assert worker.hear(NextView).report.state == StateId(4, 2)
    assert worker.adapter.weight == -14.0
    # the epoch's figures come with the state
    assert [logs.epoch_loss for (logs,) in worker.adapter.done("logs")] == [3.5, 2.5, 3.5]


def test_a_snapshot_of_another_state_is_not_taken_for_it(made: Made, tmp_path: Path) -> None:
    worker = made()
    other = tmp_path / "other.state"
    other.write_bytes(encode(State(StateId(1, 1), AFTER_ONE, RunningSums(), worker.adapter.image())))
    worker.start(NewView(view(2, worker.peer, sources=(SNAPSHOT,), snapshot=str(other))))
    failure = worker.hear(ProgramFailed)
    assert f"{other} holds state {StateId(1, 1)}, the view wants {START_STATE}" in failure.traceback
    assert not worker.adapter.done("load")


# ------------------------------------------------------------------ the result


def test_the_result_lies_under_a_name_with_its_step_and_view(made: Made, tmp_path: Path) -> None:
    output = tmp_path / "out" / "model.npz"
    worker = made(output=output)
    begin(worker)
    last = worker.last_view()
    exported = worker.hear(Exported)
    path = output.with_name(".model.step-4-view-1.npz")
    assert exported == Exported(last.id, StateId(4, 1), str(path), worker.adapter.digest())
    with np.load(path) as written:
        assert written["weight"] == -14.0
    assert list(output.parent.iterdir()) == [path]
    assert worker.end(DONE) == Exit(0, "done")
    # once, before the result, by the one that may write
    ends = [one for one in worker.adapter.did if one[0] in ("end", "export")]
    assert ends == [("end", True), ("export", str(path))]


def test_a_job_without_an_output_writes_nothing(made: Made) -> None:
    worker = made()
    begin(worker)
    worker.last_view()
    assert worker.hear(Exported).path == ""
    assert worker.adapter.done("export") == [("",)]


def test_before_the_first_step_there_is_no_result(made: Made, tmp_path: Path) -> None:
    output = tmp_path / "out" / "model.npz"
    worker = made(output=output)
    worker.start(NewView(view(1, worker.peer, exporter=0)))
    exported = worker.hear(Exported)
    assert (exported.state, exported.path) == (START_STATE, "")
    assert not output.parent.exists()


def test_a_result_that_cannot_be_written_is_a_failure_of_its_own_kind(made: Made, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    worker = made(output=file / "model.npz")
    begin(worker)
    worker.last_view()
    failure = worker.hear(ProgramFailed)
    assert (failure.kind, failure.step) == ("unwritable", 4)
    assert failure.traceback.startswith(f"the model can't be written to {file / 'model.npz'}: ")
    assert worker.end(Failed("no")) == Exit(1, "no")
    assert not worker.of(Exported)


def test_training_has_ended_once_also_where_several_last_views_follow(made: Made) -> None:
    worker = made()
    begin(worker)
    last = worker.last_view()
    worker.hear(Exported)
    worker.tell(Stop(last.id))
    worker.last_view()
    worker.hear(Exported)
    assert worker.end(DONE) == Exit(0, "done")
    assert worker.adapter.done("end") == [(True,)]
    assert len(worker.adapter.done("export")) == 2


def test_who_is_not_in_the_last_view_writes_nothing_at_the_end(made: Made) -> None:
    worker = made()
    wrote: list[bool] = []
    worker.adapter.moments["logs"] = lambda: wrote.append(worker.adapter.writes)
    begin(worker)
    worker.hear(NextView)
    assert worker.end(DONE) == Exit(0, "done")
    assert set(wrote) == {True}
    assert worker.adapter.done("end") == [(False,)]


# ------------------------------------------------------------------ leaving and ending


def test_the_last_member_that_drains_saves_its_state_and_asks_to_leave(made: Made, tmp_path: Path) -> None:
    worker = made(snapshots=tmp_path / "snapshots")
    worker.adapter.moments["give"] = lambda: worker.worker.feed(DrainRequested())
    begin(worker)
    assert [worker.hear(Register).report.draining for _ in range(2)] == [False, True]
    saved = worker.hear(Saved)
    assert (saved.state, saved.position) == (StateId(1, 1), AFTER_ONE)
    assert decode(Path(saved.path).read_bytes()).sums == RunningSums(10.0, 4.0)
    worker.tell(Acknowledged(saved_as(saved.state)))
    assert worker.hear(NextView).report.draining
    assert worker.end(Released("go")) == Exit(RELEASED, "go")
    assert len(worker.adapter.done("apply")) == 1


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        (Finished("so"), FINISHED),
        (Failed("so"), 1),
        (Evicted("so"), EVICTED),
        (Released("so"), RELEASED),
    ],
)
def test_a_verdict_is_known_at_once_and_obeyed_when_the_work_is_done(
    made: Made, verdict: MasterMessage, code: int
) -> None:
    worker = made()
    known: list[list[Exit]] = []

    def hear_verdict() -> None:
        worker.tell(verdict)
        known.append(list(worker.left))

    worker.adapter.moments["compute"] = hear_verdict
    begin(worker)
    assert worker.end() == Exit(code, "so")
    assert known == [[Exit(code, "so")]]
    assert worker.left == [Exit(code, "so")]
    assert [one[0] for one in worker.adapter.did] == ["compute", *(["end"] if code == FINISHED else [])]


def test_what_comes_after_the_end_changes_nothing(made: Made) -> None:
    worker = made()
    begin(worker)
    worker.hear(NextView)
    worker.end(Evicted("late"))
    said, did, facts = list(worker.said), list(worker.adapter.did), worker.audit()
    worker.tell(NewView(view(2, worker.peer)), Stop(ViewId(9)), DONE)
    for event in (DrainRequested(), Connected(), Tick()):
        worker.worker.feed(event)
    assert worker.left == [Exit(EVICTED, "late")]
    assert (worker.said, worker.adapter.did, worker.audit()) == (said, did, facts)
