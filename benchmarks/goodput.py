"""How much of a job's time is spent on steps that count, while one of three workers is killed every 15 seconds.

Run it alone: `python -m benchmarks goodput`. The time is that from the first step to the end. Lost of it is what the steps around a kill
and around the replacement's join take beyond the usual step: what of a step was done when the kill came, the repair, and the pause. The
times are those at which a worker that is never killed has committed each step.
"""

from __future__ import annotations

import itertools
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.recovery import (
    BEFORE_JOIN,
    RECOVERY_SECONDS,
    commits,
    job,
    tiny_data,
    wait_for,
    wait_for_another,
)
from benchmarks.servers import Row
from benchmarks.servers import table as table

WORKERS = 3
AFTER_JOIN = 1.0
"""Seconds after a join is said in which its pause may end."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Attributes:
        kills: of workers, in turns of two of them.
        seconds: from one kill to the next.
        pace: seconds by which a step of the tiny model is made longer.
    """

    kills: int = 5
    seconds: float = 15.0
    pace: float = 0.05


FULL = Sizes()
SMALLEST = Sizes(kills=1, seconds=2.0, pace=0.01)


def rows(sizes: Sizes = FULL) -> list[Row]:
    """Measure one job. Raises RuntimeError if it fails or hangs."""
    with tempfile.TemporaryDirectory(prefix="edl-") as folder:
        directory = Path(folder)
        os.environ["XDG_STATE_HOME"] = str(directory / "state")
        data = tiny_data(directory / "data")
        with job(directory, data, WORKERS, sizes.pace) as (place, stamps):
            status, _ = wait_for(place, WORKERS)
            survivor, *_ = (worker.pid for worker in status.workers if worker.state == "training")
            disturbed, following = [], time.time() + sizes.seconds
            for number in range(sizes.kills):
                time.sleep(max(0.0, following - time.time()))
                others = [worker.pid for worker in status.workers if worker.state == "training"][1:]
                victim = others[number % len(others)]
                assert victim is not None
                killed = time.time()
                os.kill(victim, signal.SIGKILL)
                status, joined = wait_for_another(place, victim, WORKERS)
                disturbed += [
                    (killed, killed + RECOVERY_SECONDS),
                    (joined - BEFORE_JOIN, joined + AFTER_JOIN),
                ]
                following = killed + sizes.seconds
            time.sleep(max(0.0, following - time.time()))
            times = commits(stamps, survivor)
    lost, usual = lost_seconds(times, disturbed)
    spent = times[-1] - times[0]
    return [
        Row(
            f"three workers, a kill every {sizes.seconds:g} s, steps of {1e3 * usual:.0f} ms: time of steps that count",
            f"{100 * (1 - lost / spent):.2f} % of {spent:.0f} s",
            f"{1e3 * lost / sizes.kills:.0f} ms lost for a kill and its replacement's join",
            100 * (1 - lost / spent), 97, 99, " %",
        )
    ]  # fmt: skip


def lost_seconds(times: Sequence[float], disturbed: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the seconds beyond the usual step of the steps in these spans, and the usual step: the median of all."""
    steps = list(itertools.pairwise(times))
    usual = statistics.median(later - at for at, later in steps)
    around = (
        later - at for at, later in steps if any(begin < later and at < end for begin, end in disturbed)
    )
    return sum(max(0.0, step - usual) for step in around), usual
