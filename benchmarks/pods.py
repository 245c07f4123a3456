"""What each kind of loss costs a job in pods, on the real cluster of the tests: `python -m benchmarks.pods`.

It needs what the tests with pods need (`make setup-cluster`). A job of three workers on two nodes has steps of 0.2 s; after each loss it
measures the longest pause between two committed steps, and the time until three workers train again. Peers have no row here: none of
them gets over these losses without starting anew.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from elasticdl.cluster.kubernetes import rbac
from tests.kubernetes.image import build_image
from tests.kubernetes.jobs import SECONDS, Job, api_of, paced
from tests.kubernetes.node import Node
from tests.kubernetes.processes import wait_for
from tests.kubernetes.testbed import Testbed, missing

TIMES = 3
PACE = 0.2
_LOOK_SECONDS = 0.005
_AFTER_SECONDS = 3.0
"""How much longer it looks for a pause when the group is complete again."""


class Steps:
    """When the job's workers wrote down a step, seen from outside."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._over = threading.Event()
        self.times: list[float] = []
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        newest = 0
        while not self._over.wait(_LOOK_SECONDS):
            found = max((path.stat().st_mtime_ns for path in self._folder.glob("*.audit")), default=0)
            if found > newest:
                newest = found
                self.times.append(time.monotonic())

    def longest_pause(self, since: float) -> float:
        """Return the longest time without a step after `since`, less the time that a step takes."""
        times = [since, *(at for at in self.times if at > since)]
        return max(after - before for before, after in itertools.pairwise(times)) - PACE

    def close(self) -> None:
        """Stop looking."""
        self._over.set()
        self._thread.join()


@dataclass(frozen=True, slots=True)
class Loss:
    """What a kind of loss did, each time.

    Attributes:
        what: for people.
        pauses: longest pause between two steps, in seconds.
        whole: seconds until the group was complete again.
    """

    what: str
    pauses: list[float]
    whole: list[float]


class Rig:
    """One job, and what can be taken from it."""

    def __init__(self, bed: Testbed, folder: Path) -> None:
        self._bed = bed
        self._job = Job.submit(bed, api_of(bed), folder, {**paced(folder), "num_epochs": 0})
        self._job.past(5, workers=3)
        self._steps = Steps(folder / "data" / "test-job.audit")

    def close(self) -> None:
        """End the job."""
        self._steps.close()
        self._job.process.kill()
        self._job.process.wait()

    def measure(self, what: str, lose: Callable[[], Callable[[], bool]], after: Callable[[], None]) -> Loss:
        """Lose something several times; `lose` returns what tells that it has been replaced."""
        loss = Loss(what, [], [])
        for _ in range(TIMES):
            self._job.further(workers=3)
            began = time.monotonic()
            replaced = lose()
            wait_for(what, replaced, SECONDS)
            wait_for(f"three workers after {what}", lambda: len(self._job.training()) == 3, SECONDS)
            loss.whole.append(time.monotonic() - began)
            time.sleep(_AFTER_SECONDS)
            loss.pauses.append(self._steps.longest_pause(began))
            after()
        print(".", end="", file=sys.stderr, flush=True)
        return loss

    def _gone(self, pod: str) -> Callable[[], bool]:
        return lambda: (
            pod.removeprefix(f"{self._job.name}-") not in self._job.training() and bool(self._job.training())
        )

    def delete_worker(self, *grace: str) -> Callable[[], bool]:
        """Delete a worker's pod."""
        pod = self._job.names("worker")[0]
        self._job.kubectl("delete", "pod", pod, "--wait=false", *grace)
        return self._gone(pod)

    def kill_worker(self) -> Callable[[], bool]:
        """Kill the process in a worker's pod."""
        pod = self._job.names("worker")[0]
        self._node_of(pod).kill_container(self._job.api.get("Pod", pod))
        return self._gone(pod)

    def delete_master(self) -> Callable[[], bool]:
        """Delete the master's pod by force."""
        (pod,) = self._job.names("master")
        told = len(self._job.events("master"))
        self._job.kubectl("delete", "pod", pod, "--grace-period=0", "--force")
        return lambda: len(self._job.events("master")) > told

    def lose_node(self, *, of_master: bool) -> Callable[[], bool]:
        """Take the power of the master's node away, or of the other one."""
        (master,) = self._job.names("master")
        name = self._job.node_of(master)
        self.lost = next(node for node in self._bed.nodes if (node.name == name) == of_master)
        lost = [
            pod.removeprefix("test-job-")
            for pod in self._job.names("worker")
            if self._job.node_of(pod) == self.lost.name
        ]
        self._bed.lose(self.lost)
        return lambda: not set(lost) & set(self._job.training()) and bool(self._job.training())

    def restart_api_server(self) -> Callable[[], bool]:
        """Take the API server away for ten seconds."""
        self._bed.control_plane.lose_api_server()
        time.sleep(10.0)
        self._bed.control_plane.recover_api_server()
        return lambda: bool(self._job.status())

    def recover(self) -> None:
        """Bring the lost node back."""
        self._bed.recover(self.lost)

    def _node_of(self, pod: str) -> Node:
        name = self._job.node_of(pod)
        return next(node for node in self._bed.nodes if node.name == name)


def measure() -> list[Loss]:
    """Return a row for each kind of loss."""
    with tempfile.TemporaryDirectory() as text, Testbed() as bed:
        folder = Path(text)
        folder.chmod(0o755)
        image = build_image(folder)
        for node in bed.nodes:
            node.load(image)
        for body in rbac.objects("default"):
            bed.kubectl("apply", "-f", "-", stdin=json.dumps(body))
        rig = Rig(bed, folder)
        try:
            losses: list[tuple[str, Callable[[], Callable[[], bool]], Callable[[], None]]] = [
                ("a worker's pod is deleted, with its grace period", rig.delete_worker, _nothing),
                ("a worker's pod is deleted by force", lambda: rig.delete_worker("--grace-period=0", "--force"), _nothing),
                ("a worker's process is killed", rig.kill_worker, _nothing),
                ("the master's pod is deleted by force", rig.delete_master, _nothing),
                ("the API server is away for 10 s", rig.restart_api_server, _nothing),
                ("the node without the master is lost", lambda: rig.lose_node(of_master=False), rig.recover),
                ("the node with the master is lost", lambda: rig.lose_node(of_master=True), rig.recover),
            ]  # fmt: skip
            return [rig.measure(*loss) for loss in losses]
        finally:
            rig.close()


def _nothing() -> None:
    pass


def table(losses: list[Loss]) -> str:
    """Return the rows as a table in Markdown: medians, and the worst in brackets."""
    lines = [
        f"| what is lost ({TIMES} times each) | longest pause between two steps | complete again after |",
        "| --- | --- | --- |",
    ]
    for loss in losses:
        pause, whole = (
            f"{statistics.median(seconds):.1f} s ({max(seconds):.1f})"
            for seconds in (loss.pauses, loss.whole)
        )
        lines.append(f"| {loss.what} | {pause} | {whole} |")
    return "\n".join(lines)


if __name__ == "__main__":
    if why := missing():
        sys.exit(f"no cluster: {why}")
    print(table(measure()))
