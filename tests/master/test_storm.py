"""A storm of faults: whatever is killed, stopped or drained, each record counts once and the result is exact."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from elasticdl.cluster.cluster import Role

from .conftest import Job
from .test_shell import finished

FAULTS, EPOCHS = 8, 15
SEEDS = [int(seed) for seed in os.environ.get("STORM_SEEDS", "0").split()]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_storm(start: Callable[..., Job], tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    job = start(
        rows=1000,
        num_epochs=EPOCHS,
        num_workers=chance.randrange(2, 5),
        step=0.003,
        heartbeat_seconds=0.2,
        witness_seconds=1.5,
        silence_seconds=1.5,
    )
    job.past(3)
    for _ in range(FAULTS):
        if job.launcher.wait(0) is not None:
            break
        kind = chance.choice(["kill", "kill", "two", "drain", "hang", "master", "all"])
        workers = [pid for name, pid in job.launcher.processes().items() if name.role is Role.WORKER]
        masters = [pid for name, pid in job.launcher.processes().items() if name.role is Role.MASTER]
        chance.shuffle(workers)
        aims = {"two": workers[:2], "master": masters, "all": workers}.get(kind, workers[:1])
        number = {"drain": signal.SIGTERM, "hang": signal.SIGSTOP}.get(kind, signal.SIGKILL)
        print(kind, aims, flush=True)
        for pid in aims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        time.sleep(chance.uniform(0.05, 2.0))  # the storm's own rhythm: faults must fall at any moment
    finished(job, tmp_path, EPOCHS)
