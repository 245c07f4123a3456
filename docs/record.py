"""Record a terminal for the README: a real job, a worker killed in it, and the audit. Writes `docs/recording.svg`.

Run it by hand (`python -m docs.record`) when what people see has changed. Nothing is edited but the prompt and the paths.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

from elasticdl.cluster.local import place as places
from elasticdl.control.protocol.status import JobStatus
from elasticdl.control.transport.client import JobClient
from elasticdl.errors import BadInput, MasterAway

ROOT = Path(__file__).resolve().parent.parent
ELASTICDL = str(Path(sys.executable).with_name("elasticdl"))
KILL_AT = 40
WIDTH = 118


def kill_one(name: str, console: Console) -> None:
    """Kill a worker once enough steps are committed, and show the command."""
    while True:
        try:
            place = places.find(name)
            with JobClient(place.control_address, place.token()) as client:
                for seen in client.watch():
                    if isinstance(seen, JobStatus) and seen.step >= KILL_AT:
                        victims = [
                            worker.pid for worker in seen.workers if worker.state == "training" and worker.pid
                        ]
                        if len(victims) > 1:
                            console.print(
                                Text(f"$ kill -9 {victims[-1]}    # in another terminal", style="bold red")
                            )
                            os.kill(victims[-1], signal.SIGKILL)
                            return
        except (BadInput, MasterAway):
            time.sleep(0.05)


def show(console: Console, command: list[str], shown: str) -> None:
    """Run a command and show what it prints, as it comes."""
    console.print(Text(f"$ {shown}", style="bold green"))
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if " snapshot of step " not in line:
            console.print(Text(line.rstrip().replace(f"{Path.cwd()}/", "")))
    if process.wait():
        raise SystemExit(f"{shown}: exit code {process.returncode}")


def main() -> None:
    """Record."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["XDG_STATE_HOME"] = f"{folder}/state"
        subprocess.run(
            [sys.executable, ROOT / "model_zoo/mnist/make_data.py", "digits"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        console = Console(record=True, width=WIDTH, force_terminal=True, highlight=False)
        flags = ["--model_def=mnist.mnist_functional_api.custom_model", "--training_data=digits/train"]
        flags += ["--num_workers=3", "--num_epochs=30", "--output=digits.keras", "--audit=audit"]
        threading.Thread(target=kill_one, args=("mnist-functional-api", console), daemon=True).start()
        train = [ELASTICDL, "train", f"--model_zoo={ROOT / 'model_zoo'}", *flags]
        show(
            console,
            train,
            " \\\n    ".join(
                ["elasticdl train --model_zoo=model_zoo", " ".join(flags[:2]), " ".join(flags[2:])]
            ),
        )
        show(console, [ELASTICDL, "audit", "audit"], "elasticdl audit audit")
        console.save_svg(str(ROOT / "docs" / "recording.svg"), title="elasticdl")
        os.chdir(ROOT)


if __name__ == "__main__":
    main()
