"""What a kill every 15 seconds takes of a job's steps: three workers, of which two are killed in turns.

Run it alone: `python -m benchmarks goodput`. The job first trains undisturbed. Then it is counted how many steps it commits from the first
kill until 15 seconds after the last one, by the commits of the worker that is never killed; the others' time is lost: what of a step was
done when the kill came, the repair, the pause for the replacement, and that steps are slower while processes start. That is more than the
status page counts as lost, which takes a step that takes up to three times the usual one for work. A minibatch's predictions take a fixed
time, as if each worker had a machine. That a step has fewer records until the replacement has joined is not counted.
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

from benchmarks.recovery import commits, job, tiny_data, training, wait_for, wait_for_another
from benchmarks.servers import Row
from benchmarks.servers import table as table

WORKERS = 3


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Attributes:
        kills: of workers.
        seconds: without a disturbance, and from each kill to the next, or longer if its replacement has not joined by then.
        compute: seconds that a minibatch's predictions take.
    """

    kills: int = 5
    seconds: float = 15.0
    compute: float = 0.05


FULL = Sizes()
SMALLEST = Sizes(kills=1, seconds=2.0, compute=0.01)


def rows(sizes: Sizes = FULL) -> list[Row]:
    """Measure one job. Raises RuntimeError if it fails or hangs."""
    with tempfile.TemporaryDirectory(prefix="edl-") as folder:
        directory = Path(folder)
        os.environ["XDG_STATE_HOME"] = str(directory / "state")
        data = tiny_data(directory / "data")
        with job(directory, data, WORKERS, compute=sizes.compute) as (place, stamps):
            status, _ = wait_for(place, WORKERS)
            survivor, *others = training(status)
            began = time.time()
            following = first = began + sizes.seconds
            for number in range(sizes.kills):
                _sleep_until(following)
                victim = others[number % len(others)]
                assert victim is not None
                following = time.time() + sizes.seconds
                os.kill(victim, signal.SIGKILL)
                status, _ = wait_for_another(place, victim, WORKERS)
                following = max(following, time.time())
                stays, *others = training(status)
                if stays != survivor:
                    raise RuntimeError("the worker that counts the steps has ended")
            _sleep_until(following)
            lost, usual = lost_share(commits(stamps, survivor), began, first, following)
    spent = following - first
    return [
        Row(
            f"three workers, a kill every {spent / sizes.kills:.1f} s, steps of {1e3 * usual:.0f} ms: lost of the time",
            f"{100 * (1 - lost):.2f} % of {spent:.0f} s were steps that count",
            f"{1e3 * lost * spent / sizes.kills:.0f} ms lost for each kill",
            100 * lost, 3, 1, " %",
        )
    ]  # fmt: skip


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.time()))  # the distance between kills is what is measured


def lost_share(times: Sequence[float], began: float, first: float, end: float) -> tuple[float, float]:
    """Return the share of the time from `first` to `end` in which no usual step was made, and the usual step.

    That is the mean of the steps between `began` and `first`; the last step of each span is counted by its part in the span.
    """
    usual = statistics.fmean(
        later - at for at, later in itertools.pairwise(times) if began <= at and later <= first
    )
    made = 0.0
    for at, later in itertools.pairwise(times):
        inside = min(later, end) - max(at, first)
        made += max(0.0, inside) / (later - at)
    return 1 - made * usual / (end - first), usual
