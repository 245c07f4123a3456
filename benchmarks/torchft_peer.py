"""torchft with two replicas and a tiny model: its time per step, and its survivor's next committed step after a SIGKILL.

Runs in `.bench/venv`, which has torch and torchft; started by `benchmarks/recovery.py`. It measures nothing of ours. The loop is the one of
torchft's documentation, without compute: quorum, all-reduce, commit.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import time
from datetime import timedelta
from typing import Any

MODES: dict[str, dict[str, int]] = {
    "default": {},
    # what its documentation offers to find a lost replica sooner
    "tuned": {"join_timeout_ms": 100, "quorum_tick_ms": 50, "heartbeat_timeout_ms": 1000},
}
SIZE = 1024
WARM_STEPS = 100
PATIENCE = 150.0


def replica(index: int, lighthouse: str, seconds: float) -> None:
    """Be one replica: print the time of every commit."""
    import torch
    from torch.distributed import TCPStore
    from torchft import Manager, ProcessGroupGloo

    torch.set_num_threads(1)
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    state = {"weights": torch.zeros(SIZE)}

    def load(given: Any) -> None:
        state["weights"].copy_(given["weights"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=seconds)),
        load_state_dict=load,
        state_dict=lambda: state,
        min_replica_size=1,
        timeout=timedelta(seconds=seconds),
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        lighthouse_addr=lighthouse,
        replica_id=f"replica{index}-",
        hostname="localhost",
    )
    while True:
        manager.start_quorum()
        gradient = torch.ones(SIZE)
        manager.allreduce(gradient).wait()
        if manager.should_commit():
            state["weights"] -= 0.01 * gradient
            print(time.time(), manager.num_participants(), flush=True)


class Replica:
    """One replica's process."""

    def __init__(self, index: int, lighthouse: str, mode: str) -> None:
        seconds = "1" if mode == "tuned" else "60"
        command = [
            sys.executable,
            __file__,
            "--replica",
            str(index),
            "--lighthouse",
            lighthouse,
            "--timeout",
            seconds,
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def commit(self) -> tuple[float, int]:
        """Wait for its next commit; return its time and the number of participants."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a replica of torchft ended with code {self.process.wait()}")
        at, participants = line.split()
        return float(at), int(participants)

    def together(self, steps: int) -> list[float]:
        """Wait for so many commits in a row with both replicas; return the times between them."""
        gaps: list[float] = []
        last = None
        until = time.monotonic() + PATIENCE
        while len(gaps) < steps:
            at, participants = self.commit()
            if participants == 2 and last is not None:
                gaps.append(at - last)
            elif participants != 2:
                gaps.clear()
            last = at
            if time.monotonic() > until:
                raise RuntimeError("the replicas of torchft did not find each other")
        return gaps


def measure(mode: str, rounds: int) -> dict[str, list[float]]:
    """Return seconds between steps, and from a kill to the survivor's next commit."""
    from torchft.coordination import LighthouseServer

    lighthouse = LighthouseServer(bind="localhost:0", min_replicas=1, **MODES[mode])
    address = lighthouse.address()
    replicas = [Replica(0, address, mode), Replica(1, address, mode)]
    steps: list[float] = []
    recoveries: list[float] = []
    try:
        for number in range(rounds):
            steps.append(statistics.median(replicas[0].together(WARM_STEPS)))
            time.sleep(0.05 * number)  # at another moment of a step each time
            victim = replicas.pop()
            killed = time.time()
            victim.process.send_signal(signal.SIGKILL)
            victim.process.wait()
            at, participants = replicas[0].commit()
            # what lies in the pipe was committed before
            while at <= killed or participants == 2:
                at, participants = replicas[0].commit()
            recoveries.append(at - killed)
            if number + 1 < rounds:
                replicas.append(Replica(number + 2, address, mode))
    finally:
        for one in replicas:
            one.process.kill()
            one.process.wait()
        lighthouse.shutdown()
    return {"steps": steps, "recoveries": recoveries}


def main() -> None:
    """Be a replica, or measure one mode and print the figures as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--replica", type=int)
    parser.add_argument("--lighthouse")
    parser.add_argument("--timeout", type=float, default=60.0)
    parser.add_argument("--mode", choices=MODES)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.replica is not None:
        replica(options.replica, options.lighthouse, options.timeout)
    else:
        print(json.dumps(measure(options.mode, options.rounds)))


if __name__ == "__main__":
    main()
