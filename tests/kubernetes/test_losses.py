"""Pods, processes, nodes, the API server and what is known of it go away while a job trains: it ends well, and the audit proves it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .conftest import Start
from .jobs import EPOCHS, SECONDS, Job, paced
from .node import Node
from .processes import wait_for
from .testbed import Testbed

AWAY_SECONDS = 10.0
"""How long the API server is away, at least: longer than any node or pod may be silent."""
PROGRAM = Path(__file__).parent / "programs" / "train.py"
MASTERS = 7
"""Masters that are lost: one more than the tries that a Job has unless it says otherwise."""
LONG = 300
"""Epochs of a job that loses one thing after the other."""


def lose_master(job: Job, workers: int) -> None:
    """Delete the master's pod by force, and wait until the next one speaks of so many workers."""
    (before,) = job.names("master")
    back = len(job.events("master"))
    job.lose(before)
    wait_for("the next master", lambda: len(job.events("master")) > back, SECONDS)
    job.past(job.steps() + 5, workers)


def replaced(job: Job, pod: str, workers: int) -> None:
    """Wait until so many workers train, none of them this one."""

    def others() -> bool:
        assert job.process.poll() is None, job.output.read_text()
        training = [f"{job.name}-{name}" for name in job.training()]
        return pod not in training and len(training) >= workers

    wait_for(f"{workers} workers without {pod}", others, SECONDS)
    job.further(workers)


def of(ready: Testbed, name: str) -> Node:
    return next(node for node in ready.nodes if node.name == name)


@contextmanager
def out_of_reach(ready: Testbed, job: Job, pod: str) -> Iterator[None]:
    """Drop all that a pod sends to the API server."""
    node, address = of(ready, job.node_of(pod)), job.api.get("Pod", pod)["status"]["podIP"]
    ready.network.block(node.number, address)
    try:
        yield
    finally:
        ready.network.unblock(node.number, address)


@pytest.mark.timeout(1800)
def test_a_watch_expires_and_masters_are_lost_more_often_than_a_job_may_fail(
    start: Start, ready: Testbed, tmp_path: Path
) -> None:
    job = start(**paced(tmp_path, "failing", LONG))
    job.past(5, workers=3)
    (master,) = job.names("master")
    with out_of_reach(ready, job, master):
        before = job.steps()
        wait_for("steps without the API", lambda: job.steps() > before + 20, SECONDS)
        # The next group has to be journalled first, so from now on the others wait.
        (gone, *_) = job.names("worker")
        job.lose(gone)
        # An API server that has just started knows nothing of what was before. The master may have heard of the deletion, which may be
        # the last that has happened; but of what happens between two restarts it can't hear.
        for change in ("before", "between"):
            labels = {"metadata": {"labels": {"changed": change}}}
            assert ready.control_plane.patch("/api/v1/namespaces/default", labels)
            ready.control_plane.lose_api_server()
            ready.control_plane.recover_api_server()
    replaced(job, gone, workers=3)
    assert "too old resource version" in "\n".join(job.api.log(master, "master"))
    for _ in range(MASTERS):
        lose_master(job, workers=3)
    assert len(job.events("master")) == MASTERS
    (job.data / "fail").touch()
    assert job.process.wait(SECONDS) == 1
    said = job.output.read_text()
    assert said.count('raise ArithmeticError("the mistake of the user")') == 1
    wait_for("the Job's failure", lambda: "Failed" in job.conditions(), 60.0)
    assert not job.names("worker")


def spread(ready: Testbed, job: Job, node: Node) -> None:
    """See to it that not all workers are on this node."""
    workers = job.names("worker")
    if any(job.node_of(worker) != node.name for worker in workers):
        return
    ready.cordon(node.name)
    try:
        job.lose(workers[0])
        replaced(job, workers[0], workers=3)
    finally:
        ready.cordon(node.name, away=False)


@pytest.mark.timeout(1800)
def test_nodes_go_away_under_a_program_that_was_sent_along(
    start: Start, ready: Testbed, tmp_path: Path
) -> None:
    source = tmp_path / "src"
    source.mkdir()
    shutil.copy(PROGRAM, source)
    job = start(
        command="run",
        model_zoo=source,
        output="/data/weights",
        worker_resource_request="cpu=50m,memory=300Mi",
        num_workers=3,
        envs="GO=/data/go",
        words=("--", "python3", PROGRAM.name, str(EPOCHS), "/data/weights", "two words"),
    )
    job.past(5, workers=3)
    for _ in range(2):
        node = of(ready, job.node_of(job.names("master")[0]))
        spread(ready, job, node)
        with lost(ready, node):
            wait_for(
                "a master elsewhere",
                lambda name=node.name: (
                    {job.node_of(one) for one in job.names("master")} not in (set(), {name})
                ),
                SECONDS,
            )
            job.past(job.steps() + 5, workers=3)
        job.further(workers=3)
    job.go()
    summary = job.summary()
    assert (summary["steps"], summary["num_epochs"]) == (EPOCHS * 10, EPOCHS)
    job.proven(EPOCHS, 240)
    assert "['two words'] 1 /elasticdl/work/zoo/src" in job.output.read_text()
    alone = tmp_path / "alone"
    program = [sys.executable, str(PROGRAM), str(EPOCHS), str(alone)]
    subprocess.run(program, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)
    assert (job.data / "weights").read_bytes() == alone.read_bytes()


@contextmanager
def lost(ready: Testbed, node: Node) -> Iterator[None]:
    """Take a node away, and bring it back."""
    ready.lose(node)
    try:
        yield
    finally:
        ready.recover(node)


@pytest.mark.timeout(1800)
def test_all_workers_are_on_the_node_that_is_lost(start: Start, ready: Testbed, tmp_path: Path) -> None:
    first, second = ready.nodes
    ready.cordon(second.name)
    try:
        job = start(**{**paced(tmp_path), "checkpoint_dir": "/data/snapshots", "checkpoint_steps": 10})
        wait_for(
            "the master's place",
            lambda: bool(job.names("master")) and bool(job.node_of(job.names("master")[0])),
            SECONDS,
        )
        ready.cordon(first.name)
        ready.cordon(second.name, away=False)
        job.past(25, workers=3)
        assert {job.node_of(name) for name in job.names("worker")} == {second.name}
    finally:
        ready.cordon(first.name, away=False)
        ready.cordon(second.name, away=False)
    with lost(ready, second):
        command = f"kubectl taint node {second.name} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
        wait_for("advice", lambda: command in job.status().get("reason", ""), SECONDS)
        at = job.steps()
        assert job.status()["state"] == "waiting"
        ready.kubectl(*command.split()[1:])
        try:
            job.past(at + 5, workers=3)
        finally:
            ready.kubectl("taint", "node", second.name, "node.kubernetes.io/out-of-service-")
    job.go()
    summary = job.summary()
    job.proven()
    assert summary["redone_steps"] <= 15


@pytest.mark.timeout(1800)
def test_workers_and_the_api_server_go_away(start: Start, ready: Testbed, tmp_path: Path) -> None:
    """Workers of a node reach each other by its sockets.

    The last of this file: kubelets that have found no API server for a while look again as much later.
    """
    job = start(
        **paced(tmp_path, "hungry", LONG),
        worker_resource_limit="memory=800Mi",
        oom_memory_limit="1500Mi",
        node_dir="/data",
    )
    job.past(5, workers=3)
    # Three workers on two nodes: two of them exchange gradients in memory. Both nodes are this machine, but each has a folder of its own.
    folders = {path.parent for path in job.data.glob("1000-*/*") if path.is_socket()}
    assert len(folders) == len({job.node_of(worker) for worker in job.names("worker")})
    for pod in job.names("worker")[:2]:
        job.lose(pod)
        replaced(job, pod, workers=3)
    for pod in job.names("worker")[:2]:
        of(ready, job.node_of(pod)).kill_container(job.api.get("Pod", pod))
        replaced(job, pod, workers=3)
    # deleted as an eviction deletes it: with its grace period, in which it leaves at a step boundary
    drained = job.names("worker")[0]
    job.api.delete("Pod", drained)
    replaced(job, drained, workers=3)
    # out of memory, which the next life has more of
    hungry = job.names("worker")[1]
    (job.data / "hungry").write_text(hungry.removeprefix(f"{job.name}-").rpartition("-")[0])
    replaced(job, hungry, workers=3)
    limits = [pod["spec"]["containers"][0]["resources"]["limits"]["memory"] for pod in job.pods("worker")]
    assert str(1200 << 20) in limits
    (job.data / "hungry").unlink()
    before = job.steps()
    ready.control_plane.lose_api_server()
    until = time.monotonic() + AWAY_SECONDS
    wait_for(
        "steps without the API server",
        lambda: time.monotonic() > until and job.steps() > before + 20,
        SECONDS,
    )
    ready.control_plane.recover_api_server()
    job.past(job.steps() + 5, workers=3)
    job.go()
    summary = job.summary()
    job.proven(LONG)
    members = summary["members"]  # who is deleted by force may still leave in order: its kubelet asks first
    assert members["lost"] >= 3
    assert members["drained"] >= 1
    assert members["lost"] + members["drained"] >= 6
    ended = {event["worker"]: event["text"] for event in job.events("ended")}
    assert "needed more memory" in ended[hungry.removeprefix(f"{job.name}-")]
