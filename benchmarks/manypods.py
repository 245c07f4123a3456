"""A thousand pods of one job on a real API server, scheduler and controllers, on nodes without a kubelet: `python -m benchmarks.manypods`.

It needs what the tests of the API need (`make setup-cluster`), and no root. The master's hands and eyes (`KubernetesCluster`), with the
decision which processes run, are a process of their own: what is measured is its processor time and its requests. This process is the
kubelets of all nodes: a pod that has a node runs at once, and a hundred end at once. Nothing ever runs in a pod.

As a module with `--role master` it is the master's process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.servers import Program
from elasticdl.cluster.cluster import ProcessEnded, ProcessGone, ProcessName, ProcessStarted
from elasticdl.cluster.kubernetes import manifests
from elasticdl.cluster.kubernetes.api import Api, ApiError, Object, Unreachable, connect
from elasticdl.cluster.kubernetes.podcluster import KubernetesCluster
from elasticdl.master.processes import replicas
from elasticdl.master.processes.replicas import ReplicaSet
from elasticdl.spec.edge import build, from_arguments
from elasticdl.spec.jobspec import JobSpec
from tests.kubernetes import binaries
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.fake_nodes import FakeNodes

NODES = 2
COUNTS = (100, 1000)
LOST = 10
"""Of how many pods one ends, all at once."""


@dataclass(frozen=True, slots=True)
class Row:
    """What the master spent on one thing.

    Attributes:
        what: for people.
        pods: of the job.
        seconds: of its processor.
        wall: seconds until all pods ran.
        requests: number of requests by kind.
    """

    what: str
    pods: int
    seconds: float
    wall: float
    requests: Mapping[str, int]


class Kubelets:
    """The kubelets of all nodes: pods that have a node run, and end when they are told to."""

    def __init__(self, api: Api, uid: str) -> None:
        self._api = api
        self._selector = f"elasticdl.org/job-uid={uid}"
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        version = ""
        while not self._closed.is_set():
            with contextlib.suppress(ApiError, Unreachable):
                if not version:
                    pods, version = self._api.list("Pod", self._selector)
                    for pod in pods:
                        self._look(pod)
                for kind, pod in self._api.watch("Pod", version, self._selector):
                    version = pod["metadata"]["resourceVersion"]
                    if kind in ("ADDED", "MODIFIED"):
                        self._look(pod)
                    if self._closed.is_set():
                        return
                continue
            version = ""

    def _look(self, pod: Object) -> None:
        name, status = pod["metadata"]["name"], pod.get("status", {})
        if pod["metadata"].get("deletionTimestamp"):
            self._api.delete("Pod", name, 0)
        elif pod["spec"].get("nodeName") and not status.get("containerStatuses"):
            self._say(name, "Running", {"running": {}})

    def end(self, names: Sequence[str]) -> None:
        """Let the processes of pods be killed."""
        for name in names:
            self._say(name, "Failed", {"terminated": {"exitCode": 137, "reason": "Error"}})

    def _say(self, name: str, phase: str, state: Object) -> None:
        container = {"name": "worker", "image": "image", "imageID": "", "ready": False, "restartCount": 0}
        status = {"phase": phase, "containerStatuses": [{**container, "state": state}]}
        with contextlib.suppress(ApiError):  # it has gone meanwhile
            self._api.patch("Pod", f"{name}/status", {"status": status})

    def close(self) -> None:
        """Do nothing more."""
        self._closed.set()


def specification(pods: int) -> JobSpec:
    """Return a job of so many workers."""
    settings = {
        "job_name": f"many-{pods}",
        "model_def": "m.model",
        "training_data": "/data",
        "image_name": "image",
    }
    return build(from_arguments({**settings, "num_workers": str(pods), "namespace": "default"}))


@contextlib.contextmanager
def control_plane() -> Iterator[ControlPlane]:
    """Run a cluster whose nodes have room for all."""
    with tempfile.TemporaryDirectory(prefix="edl-") as folder:
        plane = ControlPlane(binaries.build() / "cluster", Path(folder) / "cluster")
        try:
            plane.start()
            os.environ["KUBECONFIG"] = str(plane.kubeconfig)
            nodes = FakeNodes(
                plane, NODES, {"pods": str(2 * max(COUNTS) // NODES), "cpu": "10000", "memory": "100Ti"}
            )
            yield plane
            nodes.close()
        finally:
            plane.stop()


def measure(pods: int, folder: Path) -> Iterator[Row]:
    """Yield what a job of so many pods costs its master."""
    api, spec = connect("default"), specification(pods)
    uid = api.create(manifests.master_job(spec))["metadata"]["uid"]
    kubelets = Kubelets(api, uid)
    master = Program(folder / "errors", "benchmarks.manypods", "--role", "master", uid, str(pods))
    lost = pods // LOST
    try:
        for what, lives in ("all start", pods), (f"{lost} end at once and are launched again", pods + lost):
            began = time.monotonic()
            master.say(lives=lives)
            if lives > pods:
                kubelets.end([f"{spec.job_name}-worker-{index}-1" for index in range(lost)])
            told = master.hear()
            yield Row(what, pods, told["seconds"], time.monotonic() - began, told["requests"])
    finally:
        master.end()
        kubelets.close()


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a table in Markdown."""
    lines = [
        "| pods | what happens | master's processor time | until all run | requests |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        asked = ", ".join(f"{count:,} {kind}" for kind, count in sorted(row.requests.items()))
        lines.append(
            f"| {row.pods:,} | {row.what} | {1e3 * row.seconds:,.0f} ms | {row.wall:.1f} s | {asked} |"
        )
    return "\n".join(lines)


# ------------------------------------------------------------------ the master's process


def counted(api: Api) -> Counter[str]:
    """Count the requests of `api` from now on."""
    asked: Counter[str] = Counter()
    send = api._send

    def counting(
        method: str,
        path: str,
        body: Object | None,
        query: Sequence[tuple[str, str]],
        content: str,
        seconds: float,
    ) -> Any:
        asked["watches" if ("watch", "true") in query else method] += 1
        return send(method, path, body, query, content, seconds)

    api._send = counting  # type: ignore[method-assign]
    return asked


class Master:
    """A job's pods, and which of them are to run."""

    def __init__(self, uid: str, pods: int) -> None:
        spec, api = specification(pods), connect("default")
        self.asked = counted(api)
        self._cluster = KubernetesCluster(
            api, spec.job_name, uid, lambda name, memory: manifests.process_pod(spec, uid, name, memory)
        )
        self._force = ReplicaSet(wanted=pods, limit=pods)
        self._running: set[ProcessName] = set()

    def _direct(self, event: replicas.Event) -> None:
        self._force, instructions, _ = replicas.decide(time.monotonic(), self._force, event)
        for instruction in instructions:
            assert isinstance(instruction, replicas.Launch), instruction
            self._cluster.launch(instruction.name, instruction.memory)

    def until(self, lives: int) -> None:
        """Go on until the numbers of the lives that run add up to this."""
        self._direct(replicas.Tick())
        while sum(name.life for name in self._running) < lives:
            for event in self._cluster.events(0.5):
                match event:
                    case ProcessStarted(name):
                        self._running.add(name)
                        self._direct(event)
                        self._direct(replicas.Joined(name))
                    case ProcessEnded() | ProcessGone():
                        self._running.discard(event.name)
                        self._direct(event)
            self._direct(replicas.Tick())


def be_master(uid: str, pods: int) -> None:
    """Be the master until the orders end."""
    logging.disable(logging.WARNING)
    master = Master(uid, pods)
    for line in sys.stdin:
        began = time.process_time()
        master.asked.clear()
        master.until(json.loads(line)["lives"])
        spent = time.process_time() - began
        print(json.dumps({"seconds": spent, "requests": dict(master.asked)}), flush=True)


def main() -> None:
    """Print the table of all sizes."""
    if why := binaries.missing():
        sys.exit(f"no cluster: {why}")
    with control_plane(), tempfile.TemporaryDirectory() as folder:
        for count in COUNTS:
            print(table([*measure(count, Path(folder))]), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--role", choices=["master"])
    parser.add_argument("uid", nargs="?", default="")
    parser.add_argument("pods", nargs="?", type=int, default=0)
    chosen = parser.parse_args()
    if chosen.role is None:
        main()
    else:
        be_master(chosen.uid, chosen.pods)
