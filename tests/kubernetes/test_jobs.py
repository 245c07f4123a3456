"""Whole jobs in pods of the real image, submitted as a person does, while pods, nodes and the API server go away."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from elasticdl.audit import audit
from elasticdl.cluster import rbac
from elasticdl.cluster.api import Api, ApiError, Unreachable, connect

from .conftest import need
from .image import IMAGE, build_image, missing_tools
from .processes import wait_for
from .testbed import Testbed

ROOT = Path(__file__).resolve().parents[2]
ELASTICDL = str(Path(sys.executable).with_name("elasticdl"))
SECONDS = 300.0


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image of the model zoo as `elasticdl zoo build` makes it, as an archive."""
    need(missing_tools())
    return build_image(tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="module")
def ready(cluster: Testbed, image: Path) -> Testbed:
    """The cluster with the image on all nodes, and the rights that jobs need."""
    for node in cluster.nodes:
        node.load(image)
    for body in rbac.objects("default"):
        cluster.kubectl("apply", "-f", "-", stdin=json.dumps(body))
    return cluster


@dataclass
class Job:
    """A job that a person watches."""

    cluster: Testbed
    api: Api
    process: subprocess.Popen[str]
    data: Path
    summary_path: Path
    output: Path

    def kubectl(self, *arguments: str) -> str:
        return self.cluster.kubectl(*arguments)

    def status(self) -> dict[str, Any]:
        """Return how the job stands, as its master wrote it last; empty if nobody could be asked."""
        try:
            text = self.api.get("ConfigMap", "test-job-board").get("data", {}).get("status", "{}")
        except (ApiError, Unreachable):
            return {}
        return dict(json.loads(text))

    def past(self, step: int, workers: int) -> None:
        """Wait until so many workers train, at or after a step."""

        def reached() -> bool:
            assert self.process.poll() is None, self.output.read_text()
            status = self.status()
            training = [one for one in status.get("workers", []) if one["state"] == "training"]
            return status.get("step", 0) >= step and len(training) >= workers

        wait_for(f"step {step} with {workers} workers", reached, SECONDS)

    def steps(self) -> int:
        """Return how many steps the workers have written down as committed: this needs nobody's answer."""
        lines = [
            line for path in (self.data / "audit").glob("*.audit") for line in path.read_text().splitlines()
        ]
        return max((int(line.split()[2]) for line in lines if line.startswith("committed")), default=0)

    def go(self) -> dict[str, Any]:
        """Let the steps take no more time than they need, and return the summary of a job that succeeded."""
        (self.data / "go").touch()
        code = self.process.wait(SECONDS)
        assert code == 0, self.output.read_text()
        summary: dict[str, Any] = json.loads(self.summary_path.read_text())
        return summary


Start = Callable[..., Job]


@pytest.fixture
def start(ready: Testbed, tmp_path: Path) -> Iterator[Start]:
    """Start `elasticdl train` on the cluster; nothing of the job may be left at the end."""
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o777)  # a volume that the pods' user may write to
    environment = {**os.environ, "KUBECONFIG": str(ready.kubeconfig)}
    jobs: list[Job] = []
    api = api_of(ready)

    def begin(**settings: object) -> Job:
        given = {
            "image_name": IMAGE,
            "image_pull_policy": "Never",
            "job_name": "test-job",
            "worker_resource_request": "cpu=100m,memory=600Mi",
            "master_resource_request": "cpu=50m,memory=200Mi",
            "volume": f"host_path={data},mount_path=/data",
            "output": "/data/model.keras",
            "audit": "/data/audit",
            "summary": tmp_path / "summary.json",
            **settings,
        }
        command = [ELASTICDL, "train", *(f"--{name}={value}" for name, value in given.items())]
        output = tmp_path / "output.txt"
        with open(output, "w") as file:
            process = subprocess.Popen(
                command, cwd=tmp_path, env=environment, stdout=file, stderr=file, text=True
            )
        jobs.append(Job(ready, api, process, data, tmp_path / "summary.json", output))
        return jobs[-1]

    yield begin
    for job in jobs:
        if job.process.poll() is None:
            job.process.kill()
            job.process.wait()
        print(job.output.read_text())
    stopped = subprocess.run(
        [ELASTICDL, "stop", "test-job", "--namespace=default"],
        env=environment, capture_output=True, text=True, check=False, timeout=SECONDS,
    )  # fmt: skip
    print(stopped.stdout, stopped.stderr)
    wait_for("the end of all that the job made", lambda: not left(api), 120.0)


def api_of(cluster: Testbed) -> Api:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(cluster.kubeconfig))
        return connect("default")


def left(api: Api) -> list[str]:
    """Return what is there of any job."""
    kinds = ("Pod", "Job", "ConfigMap", "Secret", "Service")
    return [
        f"{kind}/{body['metadata']['name']}"
        for kind in kinds
        for body in api.list(kind, "app.kubernetes.io/name=elasticdl")[0]
    ]


def paced(data: Path) -> dict[str, object]:
    """Settings of a job whose steps take their time until it is let go."""
    subprocess.run(
        [sys.executable, str(ROOT / "model_zoo/iris/make_data.py"), str(data / "iris")], check=True
    )
    return {
        "model_zoo": ROOT / "tests/job/zoo",
        "model_def": "paced.custom_model",
        "training_data": "/data/iris/train",
        "num_workers": 3,
        "num_epochs": 100,
        "minibatch_size": 8,
        "num_minibatches_per_task": 1,
        "global_batch_size": 24,
        "envs": "GO=/data/go",
    }


def proven(job: Job, epochs: int, records: int) -> None:
    report = audit(job.data / "audit")
    assert report.complete
    assert [epoch.counted for epoch in report.epochs] == [records] * epochs


@pytest.mark.timeout(900)
def test_the_command_of_a_laptop_trains_on_a_cluster(start: Start, tmp_path: Path) -> None:
    data = tmp_path / "data"
    subprocess.run(
        [sys.executable, str(ROOT / "model_zoo/mnist/make_data.py"), str(data / "digits")], check=True
    )
    job = start(
        model_zoo=ROOT / "model_zoo",
        model_def="mnist.mnist_functional_api.custom_model",
        training_data="/data/digits/train",
        num_workers=2,
        num_epochs=30,
    )
    summary = job.go()
    assert summary["status"] == "finished"
    proven(job, 30, summary["records_trained"] // 30)
    evaluate = [sys.executable, str(ROOT / "examples/evaluate.py"), str(data / "model.keras")]
    subprocess.run([*evaluate, str(data / "digits/heldout"), "0.95"], check=True)
    pods, _ = job.api.list("Pod", "elasticdl.org/role=worker")
    assert len({pod["spec"]["nodeName"] for pod in pods}) == 2


@pytest.mark.timeout(900)
def test_pods_nodes_and_the_api_server_go_away(start: Start, ready: Testbed, tmp_path: Path) -> None:
    job = start(**paced(tmp_path / "data"))
    job.past(5, workers=3)
    job.kubectl("delete", "pod", "test-job-worker-2-1", "--grace-period=0", "--force")
    job.past(15, workers=3)
    (master,) = names(job, "master")
    job.kubectl("delete", "pod", master, "--grace-period=0", "--force")
    wait_for("another master", lambda: names(job, "master") not in ([], [master]), SECONDS)
    job.past(25, workers=3)
    plane = ready.control_plane
    before = job.steps()
    plane.api_server.kill()
    time.sleep(10.0)  # how long it is away, not what is waited for
    while_away = job.steps()
    plane.start_api_server()
    assert while_away > before + 5
    job.past(while_away, workers=3)
    # the node with the master, or where there is only a worker: whichever is not the other's
    node = next(one for one in ready.nodes if one.name == node_of(job, names(job, "master")[0]))
    node.lose()
    try:
        job.past(job.steps() + 5, workers=3)
        assert {node_of(job, name) for name in names(job, "master")} != {node.name}
    finally:
        node.start()
        ready.wait_ready(node)
    summary = job.go()
    proven(job, 100, 120)
    assert summary["members"]["lost"] + summary["members"]["drained"] >= 2


def names(job: Job, role: str) -> list[str]:
    """Return the names of the pods of a role that are not on their way out."""
    found, _ = job.api.list("Pod", f"elasticdl.org/role={role}")
    return [
        pod["metadata"]["name"]
        for pod in found
        if "deletionTimestamp" not in pod["metadata"] and pod["status"]["phase"] in ("Pending", "Running")
    ]


def node_of(job: Job, pod: str) -> str:
    return str(job.api.get("Pod", pod)["spec"].get("nodeName", ""))


@pytest.mark.timeout(600)
def test_an_error_of_the_program_ends_the_job_once_with_its_traceback(start: Start, tmp_path: Path) -> None:
    data = tmp_path / "data"
    settings = paced(data)
    zoo = tmp_path / "zoo"
    zoo.mkdir()
    for name in ("paced.py", "pace.py"):
        (zoo / name).write_text((ROOT / "tests/job/zoo" / name).read_text())
    with open(zoo / "paced.py", "a") as file:
        file.write("\n\ndef custom_model():\n    raise ArithmeticError('the mistake of the user')\n")
    job = start(**{**settings, "model_zoo": zoo})
    assert job.process.wait(SECONDS) == 2  # the model file is wrong, and the first worker shows it
    said = job.output.read_text()
    assert "paced.py: custom_model failed: ArithmeticError: the mistake of the user" in said
    # The summary comes first: the master has to be able to say why before its Job ends.
    wait_for("the Job's failure", lambda: "Failed" in conditions(job), 60.0)


def conditions(job: Job) -> list[str]:
    """Return what holds of the job's object."""
    found = job.api.get("Job", "test-job").get("status", {}).get("conditions") or []
    return [str(one["type"]) for one in found if one["status"] == "True"]
