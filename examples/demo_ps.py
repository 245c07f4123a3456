"""The demo of parameter servers: DeepFM on real flights, with two servers and two workers, of which one each is killed.

Run it with `make demo-ps`. In the end plain Keras, in a process that can't import this package, compares the exported model on held-out
flights with the same model that it trains itself, and the auditor proves that every flight was trained exactly once.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from elasticdl.control.protocol.status import JobStatus
from elasticdl.control.transport.client import JobClient
from elasticdl.errors import MasterAway
from examples.demo import ROOT, begin, by_plain_keras, job_ended, run, wait_for_place

PLACE = ROOT / ".demo-ps"
NAME = "demo-ps"
KILLS = (("worker", 150), ("ps", 400))
"""A process of which role is killed at which step; the job has some 1,150."""
MARGIN = 0.005
"""How much lower the area under the curve may be than that of the model trained by plain Keras."""


def main() -> int:
    """Run the demo; the exit code is 0 only if everything it claims holds."""
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir()
    data = PLACE / "data"
    run([sys.executable, str(ROOT / "model_zoo/flights/make_data.py"), str(data)])
    os.environ["XDG_STATE_HOME"] = str(PLACE / "state")
    elasticdl = str(Path(sys.executable).with_name("elasticdl"))
    job = begin(
        [
            elasticdl,
            "train",
            f"--model_zoo={ROOT / 'model_zoo'}",
            "--model_def=deepfm.deepfm_flights.custom_model",
            f"--training_data={data / 'train'}",
            "--num_workers=2",
            "--num_ps_pods=2",
            "--minibatch_size=256",
            f"--output={PLACE / 'deepfm.keras'}",
            f"--audit={PLACE / 'audit'}",
            f"--summary={PLACE / 'summary.json'}",
            f"--job_name={NAME}",
        ]
    )
    for role, step in KILLS:
        at_step(job, step, lambda status, role=role: kill_one(status, role))
    if job.wait():
        print(f"demo: the job ended with exit code {job.returncode}", file=sys.stderr)
        return 1
    summary = json.loads((PLACE / "summary.json").read_text())
    lost = {recovery["member"].split("-")[0] for recovery in summary["recoveries"]}
    if lost != {"worker", "ps"} or summary["roll_backs"]:
        print(
            f"demo: expected a worker and a server lost and nothing else; recoveries: {summary}",
            file=sys.stderr,
        )
        return 1
    run([elasticdl, "audit", str(PLACE / "audit")])
    # -I and a foreign directory: plain Keras can't see this package's sources
    check = [sys.executable, "-I", str(ROOT / "examples/compare.py"), str(PLACE / "deepfm.keras"), str(data)]
    return by_plain_keras([*check, str(MARGIN)], PLACE / "compare.log")


def at_step(job: subprocess.Popen[bytes], step: int, act: Callable[[JobStatus], bool]) -> None:
    """Act once when the job has come to a step."""
    place = wait_for_place(job, NAME)
    while job.poll() is None:
        try:
            with JobClient(place.control_address, place.token()) as client:
                for seen in client.watch():
                    if isinstance(seen, JobStatus) and seen.step >= step and act(seen):
                        return
        except MasterAway:
            job_ended(job, 0.1)


def kill_one(status: JobStatus, role: str) -> bool:
    """SIGKILL the last process of a role that is at work; return whether there was one."""
    states = ("training", "serving")
    able = [one for one in status.workers if one.name.startswith(role) and one.state in states and one.pid]
    if len(able) < 2:
        return False
    victim = able[-1]
    assert victim.pid is not None
    print(f"demo: kill -9 {victim.pid} ({victim.name})", file=sys.stderr)
    os.kill(victim.pid, signal.SIGKILL)
    return True


if __name__ == "__main__":
    sys.exit(main())
