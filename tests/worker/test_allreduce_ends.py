"""What the loop of a synchronous worker leaves behind: snapshots, the result, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl.checkpoint import group
from elasticdl.checkpoint.stateimage import RunningSums
from elasticdl.cluster.cluster import EVICTED, FINISHED, RELEASED
from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import (
    Acknowledged,
    Cut,
    Evicted,
    Exported,
    Failed,
    Finished,
    MasterMessage,
    NewView,
    NextView,
    Pending,
    ProgramFailed,
    Register,
    Released,
    Saved,
    Stop,
    saved_as,
)
from elasticdl.control.protocol.view import INITIAL, SNAPSHOT, StateId, ViewId
from elasticdl.data.plan.order import Dealing
from elasticdl.worker.events import Connected, DrainRequested, Exit, PartWritten, Tick
from tests.worker.synchronous import SCHEDULE, START, START_STATE, Made, Worker, schedule, view

DONE = Finished("done")
AFTER_ONE = SCHEDULE.advance(START, 2)
AFTER_TWO = SCHEDULE.advance(AFTER_ONE, 2)
DEALING = Dealing(SCHEDULE.ledger.shards, 0, False, 4, 2)


def begin(worker: Worker) -> None:
    worker.start(NewView(view(1, worker.peer)))


def pause(worker: Worker) -> None:
    """Let a worker train one step, and wait for its question what comes next."""
    worker.adapter.moments["compute"] = lambda: worker.tell(Pending(ViewId(1)))
    begin(worker)
    assert worker.hear(NextView).report.state == StateId(1, 1)


# ------------------------------------------------------------------ snapshots


def complete(saved: Saved, folder: Path) -> Path:
    """Be the master: complete the checkpoint of a view of one; return its manifest's path."""
    assert (saved.first, saved.length, saved.error) == (0, saved.size, "")
    return group.complete(
        Path(saved.path).parent,
        number=1,
        job="job",
        written_at=1.0,
        state=saved.cut.state,
        position=saved.position,
        dealing=DEALING,
        head=saved.head,
        parts=(group.Part(Path(saved.path), saved.length, saved.crc),),
    )


def test_a_part_is_of_the_state_after_its_step(made: Made, tmp_path: Path) -> None:
    folder = tmp_path / "snapshots"
    worker = made(snapshots=folder, checkpoint_steps=3, data=schedule(epochs=3))
    worker.wait_for_snapshot(3)
    images: list[bytes] = []
    worker.adapter.moments["logs"] = lambda: images.append(worker.adapter.image().body.tobytes())
    begin(worker)
    saved = worker.hear(Saved)
    position = SCHEDULE.advance(AFTER_TWO, 2)
    draft = folder / ".checkpoint-step-3-view-1.draft"
    assert (saved.cut, saved.position) == (Cut(ViewId(1), StateId(3, 1), False), position)
    assert saved.path == str(draft / "part-0")
    assert sorted(path.name for path in draft.iterdir()) == ["head.json", "part-0"]
    state = group.read_state(complete(saved, folder))
    assert (state.id, state.position, state.sums) == (StateId(3, 1), position, RunningSums(10.0, 4.0))
    # copied before step 4, written while that is made
    assert state.image.body.tobytes() == images[2] != images[3]
    assert not (draft / "head.json").exists()


def test_a_member_of_several_writes_its_own_bytes_only(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "snapshots"
    first, second = (made(snapshots=folder, checkpoint_steps=1) for _ in range(2))
    copied: list[tuple[int, int]] = []
    for worker in (first, second):
        copy = worker.adapter.image_part

        def watched(start: int, end: int, copy: Callable[[int, int], Any] = copy) -> Any:
            copied.append((start, end))
            return copy(start, end)

        monkeypatch.setattr(worker.adapter, "image_part", watched)
    both = view(1, first.peer, second.peer, sources=(INITIAL, INITIAL))
    for worker in (first, second):
        worker.wait_for_snapshot(1)
        worker.start(NewView(both))
    parts = [worker.hear(Saved) for worker in (first, second)]
    assert [(part.first, part.length, part.size) for part in parts] == [(0, 8, 16), (8, 8, 16)]
    assert parts[0].head == parts[1].head
    assert [Path(part.path).stat().st_size for part in parts] == [8, 8]
    assert set(copied) == {(0, 8), (8, 16)}


def test_a_checkpoint_of_an_epochs_end_begins_the_figures_of_the_next_one(made: Made, tmp_path: Path) -> None:
    folder = tmp_path / "snapshots"
    worker = made(snapshots=folder)
    worker.wait_for_snapshot(2)
    begin(worker)
    saved = worker.hear(Saved)
    assert (saved.cut.state, saved.position) == (StateId(2, 1), AFTER_TWO)
    assert group.read_state(complete(saved, folder)).sums == RunningSums()


def test_a_part_that_cannot_be_written_is_told_and_training_continues(made: Made, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    worker = made(snapshots=file / "snapshots")
    begin(worker)
    saved = worker.hear(Saved)
    assert saved.cut.state.step == 2
    assert (
        saved.error
        == f"{file}/snapshots/.checkpoint-step-2-view-1.draft/part-0 can't be written: Not a directory"
    )
    assert worker.end(DONE) == Exit(0, "done")
    assert not worker.of(ProgramFailed)


def test_without_a_folder_there_are_no_snapshots(made: Made) -> None:
    worker = made(checkpoint_steps=1)
    begin(worker)
    assert worker.hear(NextView).report.state == StateId(4, 1)
    worker.end(DONE)
    assert not worker.seen(PartWritten)


@pytest.mark.parametrize("of_earlier_job", [False, True])
def test_a_state_comes_from_the_snapshot_of_the_view(
    made: Made, tmp_path: Path, of_earlier_job: bool
) -> None:
    folder = tmp_path / "snapshots"
    before = made(snapshots=folder, checkpoint_steps=1)
    before.wait_for_snapshot(1)
    begin(before)
    saved = before.hear(Saved)
    base = StateId(1, 0) if of_earlier_job else saved.cut.state
    worker = made()
    path = str(complete(saved, folder))
    resumed = view(2, worker.peer, base=base, at=saved.position, sources=(SNAPSHOT,), snapshot=path)
    worker.start(NewView(resumed))
    assert worker.hear(NextView).report.state == StateId(4, 2)
    assert worker.adapter.weight == -14.0
    # the epoch's figures come with the state
    assert [logs.epoch_loss for (logs,) in worker.adapter.done("logs")] == [3.5, 2.5, 3.5]


def test_a_snapshot_of_another_state_or_another_model_is_not_taken(made: Made, tmp_path: Path) -> None:
    folder = tmp_path / "snapshots"
    before = made(snapshots=folder, checkpoint_steps=1)
    before.wait_for_snapshot(1)
    begin(before)
    saved = before.hear(Saved)
    path = complete(saved, folder)
    worker = made()
    worker.start(NewView(view(2, worker.peer, sources=(SNAPSHOT,), snapshot=str(path))))
    failure = worker.hear(ProgramFailed)
    assert f"{path}: it holds the state {StateId(1, 1)}, and {START_STATE} is needed" in failure.traceback
    assert failure.kind == "bad-input"
    assert not worker.adapter.done("load")
    state = group.read_state(path)
    arrays = [{**array, "name": "other"} for array in state.image.meta["arrays"]]
    (path.parent / group.HEAD).write_bytes(head := group.head_of(state.sums, False, None, {"arrays": arrays}))
    path = complete(replace(saved, head=group.digest_of(head)), folder)
    other = made()
    resumed = view(2, other.peer, base=StateId(1, 0), at=AFTER_ONE, sources=(SNAPSHOT,), snapshot=str(path))
    other.start(NewView(resumed))
    failure = other.hear(ProgramFailed)
    assert failure.kind == "bad-input"
    assert f"{path.parent}: the checkpoint is of another model" in failure.traceback
    assert "expected weight float64 [1], received other float64 [1]" in failure.traceback


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
    assert ends == [("end", 4, True), ("export", str(path))]


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
    assert worker.adapter.done("end") == [(4, True)]
    assert len(worker.adapter.done("export")) == 2


def test_who_is_not_in_the_last_view_writes_nothing_at_the_end(made: Made) -> None:
    worker = made()
    wrote: list[bool] = []
    worker.adapter.moments["logs"] = lambda: wrote.append(worker.adapter.writes)
    begin(worker)
    worker.hear(NextView)
    assert worker.end(DONE) == Exit(0, "done")
    assert set(wrote) == {True}
    assert worker.adapter.done("end") == [(4, False)]


# ------------------------------------------------------------------ leaving and ending


def test_the_last_member_that_drains_saves_its_state_and_asks_to_leave(made: Made, tmp_path: Path) -> None:
    worker = made(snapshots=tmp_path / "snapshots")
    worker.adapter.moments["give"] = lambda: worker.worker.feed(DrainRequested())
    begin(worker)
    assert [worker.hear(Register).report.draining for _ in range(2)] == [False, True]
    saved = worker.hear(Saved)
    assert (saved.cut.state, saved.position) == (StateId(1, 1), AFTER_ONE)
    assert group.read_state(complete(saved, tmp_path / "snapshots")).sums == RunningSums(10.0, 4.0)
    worker.tell(Acknowledged(saved_as(saved.cut)))
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
