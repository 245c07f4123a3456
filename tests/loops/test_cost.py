"""What a step costs the thread of a program that is a job's only worker: counted in instructions of the interpreter."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from elasticdl.control.protocol.messages import NewView, Register
from elasticdl.data.plan.loopplan import LoopPlan
from elasticdl.worker.loop import plain
from tests.loops.group import Program
from tests.worker.synchronous import view

FIRST, LAST = 20, 84
"""Steps between which is counted."""
MOST = 7000
"""Instructions of a step, of which the session has three quarters and the body the rest: a tenth more than they are."""


def test_a_step_has_few_instructions_and_chunks_are_announced_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    wants: list[int] = []
    here = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal here
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        here += event == "opcode"
        return trace

    def begin() -> None:
        wants.clear()
        sys.settrace(trace)

    def end() -> None:
        sys.settrace(None)
        counts.append(here)
        counts.append(len(wants))

    class Source(plain._Numbers):
        def want(self, keys: Any) -> None:
            wants.append(len(keys))

    monkeypatch.setattr(plain, "_Numbers", Source)
    program = Program(tmp_path, count=8, num_epochs=100, max_step=LAST + 10)
    program.moments = {f"after {FIRST}": begin, f"after {LAST}": end}
    try:
        program.start()
        program.process.hear(Register)
        schedule = LoopPlan(8, 2, 100, False).schedule()
        program.process.tell(NewView(view(1, program.process.peer, at=schedule.start(1), lanes=1)))
        counted = threading.Event()
        program.moments[f"after {LAST + 5}"] = counted.set
        assert counted.wait(20.0), program.ended
    finally:
        program.process.close()
    instructions, announced = counts
    steps = LAST - FIRST
    assert announced <= steps // 8
    assert instructions / steps < MOST, instructions / steps
