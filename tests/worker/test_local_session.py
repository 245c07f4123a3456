"""A session of one process: the order of a job with one worker, steps of several batches, and the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl.checkpoint.stateimage import StateImage
from elasticdl.data.plan.loopplan import LoopPlan
from elasticdl.data.prefetch import ChunkKey
from elasticdl.errors import BadData, BadModel, BadSetting
from elasticdl.worker.contract.allreduce import ChunkResult
from elasticdl.worker.contract.loop import LoopSource, LoopState, Session
from elasticdl.worker.loop.local import LocalSession


class Sums:
    """A state that remembers what it is given."""

    size, dtype = 2, np.float64

    def __init__(self) -> None:
        self.buffer = np.ones(2)
        self.applied: list[tuple[list[float], float]] = []

    def zero(self) -> None:
        self.buffer[:] = 0

    def accumulator(self) -> memoryview:
        return self.buffer.data

    def apply(self, result: Any, examples: float) -> None:
        self.applied.append((result.tolist(), examples))
        self.zero()

    def image(self) -> StateImage:
        raise NotImplementedError

    def describe_image(self) -> tuple[Mapping[str, Any], int]:
        raise NotImplementedError

    def image_part(self, first: int, end: int) -> Any:
        raise NotImplementedError

    def load(self, image: StateImage) -> None:
        raise NotImplementedError

    def digest(self) -> str:
        return "d"

    def export(self, path: str) -> str:
        if path:
            Path(path).write_text("made")
        return "d"


class Records:
    """Reads the numbers of records; asks for nothing that was not announced."""

    def __init__(self, plan: LoopPlan) -> None:
        self.plan, self.ledger = plan, plan.schedule().ledger
        self.wanted: list[ChunkKey] = []
        self.told = 0
        self.closed = False

    def want(self, keys: Sequence[ChunkKey]) -> None:
        self.wanted = list(keys)
        self.told += 1

    def get(self, key: ChunkKey) -> tuple[int, int, Any]:
        assert self.wanted.pop(0) == key
        epoch, task, chunk = key
        places = self.ledger.chunk(self.ledger.task_by_id(epoch, task), chunk)
        return len(places), 0, self.plan.records_of(epoch, places).tolist()

    def close(self) -> None:
        self.closed = True


def run(plan: LoopPlan, until: int = 10_000) -> tuple[LocalSession, Sums, Records, list[tuple[Any, ...]]]:
    session, state, source = LocalSession(), Sums(), Records(plan)
    checked: Session = session
    a_state: LoopState = state
    a_source: LoopSource = source
    checked.begin(plan, a_state, a_source)
    passes = []
    while len(passes) < until and (batch := session.next()) is not None:
        state.buffer += batch.records
        committed = session.step(ChunkResult(float(batch.records), 0.5 * batch.records))
        passes.append((batch.epoch, batch.step, batch.lane, batch.batch, committed))
    return session, state, source, passes


def test_every_record_of_every_epoch_comes_once_and_in_another_order() -> None:
    session, state, source, passes = run(LoopPlan(100, 8, 3, shuffle=True, seed=4))
    orders = [
        [one for epoch, *_, batch, _ in passes if epoch == number for one in batch] for number in range(3)
    ]
    assert [sorted(one) for one in orders] == [list(range(100))] * 3
    assert orders[0] != orders[1] != orders[2] != orders[0]
    assert [step for _, step, *_ in passes] == list(range(39))
    assert (session.steps, session.epoch) == (39, 3)
    assert state.applied == [
        ([8.0 if place % 13 < 12 else 4.0] * 2, 8.0 if place % 13 < 12 else 4.0) for place in range(39)
    ]
    assert source.told == 1


def test_a_step_of_several_batches_commits_with_the_last() -> None:
    session, state, _, passes = run(LoopPlan(40, 8, 2, shuffle=False, global_batch_size=24))
    assert [(step, lane, committed) for _, step, lane, _, committed in passes] == [
        (0, 0, False), (0, 1, False), (0, 2, True), (1, 0, False), (1, 1, True),
        (2, 0, False), (2, 1, False), (2, 2, True), (3, 0, False), (3, 1, True),
    ]  # fmt: skip
    assert [examples for _, examples in state.applied] == [24, 16, 24, 16]
    assert (session.steps, session.epoch) == (4, 2)


def test_a_source_is_told_of_more_before_it_has_read_all() -> None:
    _, _, source, passes = run(LoopPlan(8, 8, 0, shuffle=True), until=500)
    assert len(passes) == 500
    assert len(source.wanted) > 30
    assert 10 < source.told < 20


def test_it_ends_after_steps_or_when_it_is_asked_to(capsys: pytest.CaptureFixture[str]) -> None:
    session, _, _, passes = run(LoopPlan(100, 8, 0, shuffle=True, max_step=20))
    assert (len(passes), session.steps, session.epoch) == (20, 20, 1)
    session, state, _, _ = run(LoopPlan(100, 8, 0, shuffle=True, global_batch_size=16), until=3)
    session.stop("enough")
    session.stop("enough")
    assert session.next() is not None  # the step under way is made
    assert session.step(ChunkResult(8.0, 0.0))
    assert session.next() is None
    assert (session.steps, len(state.applied)) == (2, 2)
    assert capsys.readouterr().out == "stopped after step 1: enough\n"


def test_the_result_is_written_at_the_end(tmp_path: Path) -> None:
    session, _, source, _ = run(LoopPlan(8, 8, 1, shuffle=False))
    session.put_result_at(str(tmp_path / "made"))
    session.finish()
    assert source.closed
    assert (tmp_path / "made").read_text() == "made"
    LocalSession().finish()  # nothing was trained


def test_what_cannot_be_trained() -> None:
    with pytest.raises(BadData, match="no records"):
        run(LoopPlan(0, 8, 1, shuffle=False))
    with pytest.raises(BadSetting, match="no multiple of 8"):
        run(LoopPlan(16, 8, 1, shuffle=False, global_batch_size=12))
    session, state, source = LocalSession(), Sums(), Records(LoopPlan(8, 8, 1, shuffle=False))
    session.begin(source.plan, state, source)
    assert session.next() is not None
    with pytest.raises(BadModel, match="the loss of step 1 is not finite"):
        session.step(ChunkResult(8.0, float("nan")))
