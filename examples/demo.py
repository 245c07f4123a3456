"""The demo: three workers train on real digits; one is killed, one is added, and the result is checked from outside.

Run it with `make demo`. It uses the same commands as a person at a terminal, plus `JobClient` to act at the right moment: a worker is
killed once steps are committed, another is added once the group goes on without it. In the end the exported model is evaluated by
plain Keras in a process that can't import this package, and the auditor proves that no record was lost or trained twice.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from elasticdl.cluster.local.place import JobPlace, find
from elasticdl.control.protocol.status import JobEvent, JobStatus
from elasticdl.control.transport.client import JobClient
from elasticdl.errors import MasterAway

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / ".demo"
NAME = "demo"
WANTED_ACCURACY = 0.97
EPOCHS = 60
KILL_AT, ADD_AT = 100, 200
"""Steps at which a worker is killed and one is added; the job has some 1,300, enough for the new ones to start and join."""


def main() -> int:
    """Run the demo; the exit code is 0 only if everything it claims holds."""
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir()
    data = PLACE / "data"
    run([sys.executable, str(ROOT / "model_zoo/mnist/make_data.py"), str(data)])
    os.environ["XDG_STATE_HOME"] = str(PLACE / "state")
    job = begin(
        [
            str(Path(sys.executable).with_name("elasticdl")),
            "train",
            f"--model_zoo={ROOT / 'model_zoo'}",
            "--model_def=mnist.mnist_functional_api.custom_model",
            f"--training_data={data / 'train'}",
            "--num_workers=3",
            "--minibatch_size=32",
            "--num_minibatches_per_task=4",
            f"--num_epochs={EPOCHS}",
            f"--output={PLACE / 'digits.keras'}",
            f"--audit={PLACE / 'audit'}",
            f"--summary={PLACE / 'summary.json'}",
            f"--job_name={NAME}",
        ]
    )
    disturb(job)
    if job.wait():
        print(f"demo: the job ended with exit code {job.returncode}", file=sys.stderr)
        return 1
    members = json.loads((PLACE / "summary.json").read_text())["members"]
    if members["lost"] != 1 or members["joined"] < 4:
        print(
            f"demo: expected one worker lost and at least one more joined; the group had {members}",
            file=sys.stderr,
        )
        return 1
    run([str(Path(sys.executable).with_name("elasticdl")), "audit", str(PLACE / "audit")])
    # -I and a foreign directory: plain Keras can't see this package's sources
    check = [
        sys.executable,
        "-I",
        str(ROOT / "examples/evaluate.py"),
        str(PLACE / "digits.keras"),
        str(data / "heldout"),
    ]
    return by_plain_keras([*check, str(WANTED_ACCURACY)], PLACE / "evaluate.log")


def disturb(job: subprocess.Popen[bytes]) -> None:
    """Kill a worker and add one while the job trains."""
    place = wait_for_place(job, NAME)
    killed = added = False
    while job.poll() is None and not (killed and added):
        try:
            with JobClient(place.control_address, place.token()) as client:
                for seen in client.watch():
                    if isinstance(seen, JobEvent):
                        continue
                    if not killed and seen.step >= KILL_AT:
                        killed = kill_one(seen)
                    elif killed and not added and seen.step >= ADD_AT:
                        print("demo: asking for a fourth worker", file=sys.stderr)
                        client.scale(4)
                        added = True
                    if killed and added:
                        return
        except MasterAway:
            job_ended(job, 0.1)


def begin(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a job that shows lines only: live figures would be drawn over what the demo itself says."""
    job = subprocess.Popen(command, stderr=subprocess.PIPE)
    threading.Thread(target=_pass_on, args=(job,), name="lines").start()
    return job


def _pass_on(job: subprocess.Popen[bytes]) -> None:
    assert job.stderr is not None
    for line in job.stderr:
        sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()


def kill_one(status: JobStatus) -> bool:
    """SIGKILL the last worker that trains; return whether there was one."""
    training = [worker for worker in status.workers if worker.state == "training" and worker.pid is not None]
    if len(training) < 2:
        return False
    victim = training[-1]
    assert victim.pid is not None
    print(f"demo: kill -9 {victim.pid} ({victim.name})", file=sys.stderr)
    os.kill(victim.pid, signal.SIGKILL)
    return True


def wait_for_place(job: subprocess.Popen[bytes], name: str) -> JobPlace:
    """Wait until the job has a place; there is no event for what another process has not made yet."""
    from elasticdl.errors import BadSetting

    while not job_ended(job, 0.1):
        try:
            return find(name)
        except BadSetting:
            continue
    raise SystemExit(job.returncode or 1)


def job_ended(job: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for the job's end, but not longer than `seconds`."""
    try:
        job.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def by_plain_keras(command: list[str], log: Path) -> int:
    """Run a script that does not know this package, with what TensorFlow says when it is loaded in `log`; return its exit code."""
    from elasticdl.keras.greeting import greeting_to

    with greeting_to(log):
        return subprocess.call(command, cwd="/")


def run(command: list[str]) -> None:
    """Run a command and end with its exit code if it fails."""
    code = subprocess.call(command, cwd=ROOT)
    if code:
        raise SystemExit(code)


if __name__ == "__main__":
    sys.exit(main())
