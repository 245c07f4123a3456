"""What `train --dry_run` prints: everything that a submission would create, and nothing secret."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from elasticdl import cli
from elasticdl.cluster.local import place as places
from elasticdl.job import dryrun

MODEL = "def custom_model(): ...\ndef loss(a, b): ...\ndef optimizer(): ...\ndef feed(d, m, n): ...\n"
COMMAND = [
    *("train", "--model_zoo=zoo", "--model_def=model.custom_model", "--training_data=/data/train"),
    *("--image_name=elasticdl:test", "--job_name=test-job", "--num_workers=3", "--dry-run"),
]
PREDICTION = [
    *("predict", "--model_zoo=zoo", "--model_def=model.custom_model", "--prediction_data=/data/train"),
    *("--trained_model=/data/x.keras", "--image_name=elasticdl:test", "--job_name=test-job", "--dry-run"),
]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "no-cluster-is-needed"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "model.py").write_text(MODEL)
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str], *more: str) -> str:
    assert cli.run([*COMMAND, *more]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert not places.jobs_directory().exists()
    return str(out)


def test_all_objects_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "-o", "yaml")
    found = list(yaml.safe_load_all(text))
    assert [f"{body['kind']}/{body['metadata']['name']}" for body in found] == [
        "Job/test-job",
        "ServiceAccount/test-job-master",
        "Role/test-job-master",
        "RoleBinding/test-job-master",
        "NetworkPolicy/test-job",
        "Service/test-job",
        "Secret/test-job-secret",
        "ConfigMap/test-job-spec",
        "ConfigMap/test-job-journal",
        "ConfigMap/test-job-status",
        "ConfigMap/test-job-events",
        "Pod/test-job-worker-0-1",
    ]
    assert "&id" not in text  # no anchors: each document stands for itself
    assert found == json.loads(printed(capsys, "-o", "json"))["items"]
    assert found == list(yaml.safe_load_all(printed(capsys)))


def test_what_prometheus_needs_is_printed_where_it_is_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    found = list(yaml.safe_load_all(printed(capsys, "--metrics_port=9464")))
    of_metrics = [body for body in found if body["metadata"]["name"] == "test-job-metrics"]
    assert [body["kind"] for body in of_metrics] == ["NetworkPolicy", "Secret"]
    assert of_metrics[1]["stringData"] == {"ca.crt": "made at submission", "token": "made at submission"}


def test_a_pod_of_each_role_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    *_, worker, server = yaml.safe_load_all(printed(capsys, "--num_ps_pods=2"))
    assert [one["metadata"]["name"] for one in (worker, server)] == [
        "test-job-worker-0-1",
        "test-job-ps-0-1",
    ]
    assert server["spec"]["containers"][0]["command"][-1] == "elasticdl.job.ps"


def test_no_secret_is_printed_and_none_is_made(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secrets.token_bytes", lambda count: pytest.fail("a token was made"))
    (secret,) = [body for body in yaml.safe_load_all(printed(capsys)) if body["kind"] == "Secret"]
    assert "data" not in secret
    assert set(secret["stringData"].values()) == {dryrun._MADE}
    assert "worker.key" in secret["stringData"]


def test_the_pods_are_those_of_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, '--pod_template={"spec": {"nodeSelector": {"disk": "fast"}}}')
    *_, worker = yaml.safe_load_all(text)
    assert worker["spec"]["nodeSelector"] == {"disk": "fast"}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--image_name="], "a local job has none; --image_name makes it one"),
        (["--job_name=No_Such"], "--job_name: on Kubernetes a name has at most 40"),
        (["--training_data=here"], "--training_data: on Kubernetes a path is one inside the pods"),
        (["--model_def=model.other"], "does not define 'other'"),
        (["--num_workers=1025"], "a job on Kubernetes has at most 1,024 workers"),
    ],
)
def test_mistakes_are_named(capsys: pytest.CaptureFixture[str], more: list[str], said: str) -> None:
    assert cli.run([*COMMAND, *more]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err


def test_a_form_without_a_dry_run(capsys: pytest.CaptureFixture[str]) -> None:
    command: list[Any] = [one for one in COMMAND if one != "--dry-run"]
    assert cli.run([*command, "-o", "yaml"]) == 2
    assert "-o says how --dry_run prints" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--checkpoint_dir=/data/c"], "--checkpoint_dir: '/data/c' lies on no --volume"),
        (["--checkpoint_dir_for_init=/data/c"], "--checkpoint_dir_for_init: '/data/c' lies on no --volume"),
        (["--checkpoint_dir_for_init=c"], "begins with '/'; received 'c'"),
        (["--checkpoint_dir_for_init=/s/c", "--volume=empty_dir=disk,mount_path=/s"], "an empty directory (/s)"),
        (["--checkpoint_dir=/d/c", "--volume=claim_name=d,mount_path=/d,read_only=true"], "can't be written to"),
        (["--checkpoint_dir=/d/c", "--audit=/d/c", "--volume=claim_name=d,mount_path=/d"], "--checkpoint_dir: '/d/c' is --audit"),
    ],
)  # fmt: skip
def test_checkpoints_have_to_lie_where_pods_can_find_them(
    capsys: pytest.CaptureFixture[str], more: list[str], why: str
) -> None:
    assert cli.run([*COMMAND, "--num_ps_pods=2", *more]) == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--node_dir=/n"], "--node_dir: '/n' lies on no --volume"),
        (["--node_dir=n", "--volume=host_path=/n,mount_path=/n"], "begins with '/'; received 'n'"),
        (["--node_dir=/n", "--volume=empty_dir=memory,mount_path=/n"], "an empty directory (/n)"),
        (["--node_dir=/n", "--volume=host_path=/n,mount_path=/n,read_only=true"], "can't be written to"),
        ([f"--node_dir=/n/{'x' * 58}", "--volume=host_path=/n,mount_path=/n"], "it may have 60 bytes, and has 61"),
        (["--node_dir=/n", "--volume=host_path=/n,mount_path=/n", "--num_ps_pods=1"], "exchange no gradients with each other"),
        (["--node_dir=/n", "--image_name="], "--node_dir: is for pods"),
    ],
)  # fmt: skip
def test_pods_of_a_node_need_a_directory_that_they_share(
    capsys: pytest.CaptureFixture[str], more: list[str], why: str
) -> None:
    assert cli.run([*COMMAND, *more]) == 2
    assert why in capsys.readouterr().err


def test_only_servers_have_rows_that_may_be_short(capsys: pytest.CaptureFixture[str]) -> None:
    printed(capsys, "--num_ps_pods=1", "--gradient_dtype=bfloat16", "--row_dtype=bfloat16")
    assert cli.run([*COMMAND, "--row_dtype=bfloat16"]) == 2
    assert "--row_dtype: is for parameter servers, of which there are none" in capsys.readouterr().err


def test_workers_know_their_node_if_they_share_a_directory_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    volume = "--volume=host_path=/var/lib/elasticdl,mount_path=/node"
    *others, worker = yaml.safe_load_all(printed(capsys, "--node_dir=/node", volume))
    assert "ELASTICDL_NODE" not in str(others)
    given = {one["name"]: one for one in worker["spec"]["containers"][0]["env"]}
    assert given["ELASTICDL_NODE_DIR"]["value"] == "/node"
    assert given["ELASTICDL_NODE"]["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}


def test_a_checkpoint_on_a_volume_is_only_read(capsys: pytest.CaptureFixture[str]) -> None:
    volume = "--volume=claim_name=d,mount_path=/d,read_only=true"
    assert "readOnly: true" in printed(capsys, "--num_ps_pods=2", "--checkpoint_dir_for_init=/d/c", volume)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--output=postgresql://me@db/x?table=t"], "--data_cache is required on Kubernetes if --output is a table"),
        (["--output=sqlite:////d/x.db?table=t"], "--output: '/d/x.db' lies on no --volume"),
        (["--output=sqlite:///x.db?table=t"], "an absolute path has four slashes, as in sqlite:////data/x.db"),
        (["--output=/d/x", "--data_cache=/d/y/../x", "--volume=claim_name=d,mount_path=/d"], "'/d/y/../x' is --output"),
    ],
)  # fmt: skip
def test_a_table_of_predictions_has_to_be_where_pods_can_find_it(
    capsys: pytest.CaptureFixture[str], more: list[str], why: str
) -> None:
    assert cli.run([*PREDICTION, *more]) == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_so_do_checkpoints_that_are_evaluated(capsys: pytest.CaptureFixture[str], command: str) -> None:
    volume = "--volume=claim_name=d,mount_path=/d"
    data = {
        "evaluate": ["--validation_data=/d/x"],
        "predict": ["--prediction_data=/d/x", "--output=/d/out", volume],
    }
    kept = [one for one in COMMAND[1:] if not one.startswith("--training_data")]
    assert cli.run([command, *kept, *data[command], "--checkpoint_dir_for_init=/data/c"]) == 2
    assert "--checkpoint_dir_for_init: '/data/c' lies on no --volume" in capsys.readouterr().err
