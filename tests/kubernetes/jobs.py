"""A job in pods as a person sees it who submitted it with the command, and what tests look at beside that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from elasticdl.audit import audit
from elasticdl.cluster.kubernetes.api import Api, ApiError, Unreachable, connect
from model_zoo.iris import make_data

from .control_plane import ControlPlane
from .image import IMAGE
from .processes import wait_for
from .testbed import Testbed

ROOT = Path(__file__).resolve().parents[2]
ELASTICDL = str(Path(sys.executable).with_name("elasticdl"))
SECONDS = 300.0
EPOCHS, RECORDS = 200, 120
"""Of the paced job, which lasts for minutes: on a busy machine some workers come much later than others."""


@dataclass
class Job:
    """A job that a person watches.

    Attributes:
        name: of the job.
        cluster: where it runs.
        api: as the administrator, in its namespace.
        process: the command.
        data: the folder that all its pods share.
        output: what the command prints.
    """

    name: str
    cluster: Testbed
    api: Api
    process: subprocess.Popen[str]
    data: Path
    output: Path

    @classmethod
    def submit(
        cls,
        cluster: Testbed,
        api: Api,
        folder: Path,
        settings: dict[str, object],
        command: str = "train",
        words: Sequence[str] = (),
    ) -> Job:
        """Run a command with settings that suit the test cluster, and these; None: without it. `words` follow at the end."""
        name = str(settings.get("job_name", "test-job"))
        data = folder / "data"
        data.mkdir(exist_ok=True)
        data.chmod(0o777)  # a volume that the pods' user may write to
        given = {
            "image_name": IMAGE,
            "image_pull_policy": "Never",
            "job_name": name,
            "namespace": api.namespace,
            "worker_resource_request": "cpu=50m,memory=600Mi",
            "master_resource_request": "cpu=50m,memory=200Mi",
            "volume": f"host_path={data},mount_path=/data",
            "output": f"/data/{name}.keras",
            "audit": f"/data/{name}.audit",
            "summary": folder / f"{name}.json",
            **settings,
        }
        flags = [f"--{name}={value}" for name, value in given.items() if value is not None]
        output = folder / f"{name}.txt"
        with open(output, "w") as file:
            process = subprocess.Popen(
                [ELASTICDL, command, *flags, *words],
                cwd=folder,
                env=environment(cluster),
                stdout=file,
                stderr=file,
                text=True,
            )
        return cls(name, cluster, api, process, data, output)

    def kubectl(self, *arguments: str) -> str:
        """Run kubectl in the job's namespace."""
        return self.cluster.kubectl(f"--namespace={self.api.namespace}", *arguments)

    def lose(self, pod: str) -> None:
        """Delete a pod by force, as `kubectl delete --force --grace-period=0` does, without the price of a process."""
        self.api.delete("Pod", pod, grace=0)

    def status(self) -> dict[str, Any]:
        """Return how the job stands, as its master wrote it last; empty if nobody could be asked."""
        try:
            text = self.api.get("ConfigMap", f"{self.name}-status").get("data", {}).get("status", "{}")
        except (ApiError, Unreachable):
            return {}
        return dict(json.loads(text))

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return what the job has told of one kind."""
        lines = self.api.get("ConfigMap", f"{self.name}-events").get("data", {}).get("events", "")
        return [event for event in map(json.loads, lines.splitlines()) if event["kind"] == kind]

    def training(self) -> list[str]:
        """Return the workers that train now."""
        return [
            one["name"]
            for one in self.status().get("workers", [])
            if one["state"] in ("training", "evaluating")
        ]

    def past(self, step: int, workers: int) -> None:
        """Wait until so many workers train, at or after a step."""

        def reached() -> bool:
            assert self.process.poll() is None, self.output.read_text()
            return self.status().get("step", 0) >= step and len(self.training()) >= workers

        wait_for(f"step {step} of {self.name} with {workers} workers", reached, SECONDS)

    def further(self, workers: int, steps: int = 5) -> None:
        """Wait until so many workers have each committed some steps from now on, and that many train."""
        last = self.steps() + steps

        def reached() -> bool:
            assert self.process.poll() is None, self.output.read_text()
            return (
                sum(step >= last for step in self.committed()) >= workers and len(self.training()) >= workers
            )

        wait_for(f"{steps} more steps of {self.name} with {workers} workers", reached, SECONDS)

    def steps(self) -> int:
        """Return how many steps the workers have written down as committed: this needs nobody's answer."""
        return max(self.committed(), default=0)

    def committed(self) -> list[int]:
        """Return the last step that each worker which ever was has written down as committed, 0 if none."""
        return [
            max(
                (
                    int(line.split()[2])
                    for line in path.read_text().splitlines()
                    if line.startswith("committed")
                ),
                default=0,
            )
            for path in (self.data / f"{self.name}.audit").glob("*.audit")
        ]

    def pods(self, role: str) -> list[dict[str, Any]]:
        """Return the pods of a role that are not on their way out."""
        found, _ = self.api.list("Pod", f"elasticdl.org/job-name={self.name},elasticdl.org/role={role}")
        return [
            pod
            for pod in found
            if "deletionTimestamp" not in pod["metadata"] and pod["status"]["phase"] in ("Pending", "Running")
        ]

    def names(self, role: str) -> list[str]:
        """Return the names of those pods."""
        return [pod["metadata"]["name"] for pod in self.pods(role)]

    def node_of(self, pod: str) -> str:
        """Return the name of a pod's node."""
        return str(self.api.get("Pod", pod)["spec"].get("nodeName", ""))

    def conditions(self) -> list[str]:
        """Return what holds of the job's object."""
        found = self.api.get("Job", self.name).get("status", {}).get("conditions") or []
        return [str(one["type"]) for one in found if one["status"] == "True"]

    def go(self) -> None:
        """Let the steps take no more time than they need."""
        (self.data / "go").touch()

    def summary(self) -> dict[str, Any]:
        """Return the summary of a job that succeeds."""
        code = self.process.wait(SECONDS)
        assert code == 0, self.output.read_text()
        summary: dict[str, Any] = json.loads((self.output.parent / f"{self.name}.json").read_text())
        return summary

    def proven(self, epochs: int = EPOCHS, records: int = RECORDS) -> None:
        """Check that each record of each epoch was trained once."""
        report = audit(self.data / f"{self.name}.audit")
        assert report.complete
        assert [epoch.counted for epoch in report.epochs] == [records] * epochs


def environment(cluster: Testbed | ControlPlane) -> dict[str, str]:
    """Return the environment of a person who uses this cluster."""
    return {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}


def api_of(cluster: Testbed, namespace: str = "default") -> Api:
    """Return a namespace as the administrator."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(cluster.kubeconfig))
        return connect(namespace)


def left(api: Api) -> list[str]:
    """Return what is there of any job."""
    kinds = ("Pod", "Job", "ConfigMap", "Secret", "Service")
    return [
        f"{kind}/{body['metadata']['name']}"
        for kind in kinds
        for body in api.list(kind, "app.kubernetes.io/name=elasticdl")[0]
    ]


def spoiled(folder: Path, mistake: str) -> Path:
    """Return a model zoo with the paced model, to which a mistake is added."""
    zoo = folder / "zoo"
    zoo.mkdir()
    for name in ("paced.py", "pace.py"):
        (zoo / name).write_text((ROOT / "tests/job/zoo" / name).read_text())
    with open(zoo / "paced.py", "a") as file:
        file.write(f"\n\n{mistake}\n")
    return zoo


def paced(folder: Path, model: str = "paced", epochs: int = EPOCHS) -> dict[str, object]:
    """Settings of a job of three workers, of five steps an epoch, that take their time until it is let go."""
    iris = folder / "data" / "iris"
    iris.parent.mkdir(exist_ok=True)
    assert make_data.main([str(iris)]) == 0
    return {
        "model_zoo": ROOT / "tests/job/zoo",
        "model_def": f"{model}.custom_model",
        "training_data": "/data/iris/train",
        "num_workers": 3,
        "num_epochs": epochs,
        "minibatch_size": 8,
        "num_minibatches_per_task": 1,
        "global_batch_size": 24,
        "envs": "GO=/data/go",
        "output": "/data/paced.npz",
    }
