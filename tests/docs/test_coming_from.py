"""The page "Coming from ElasticDL 0.2": each flag is today what its table says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from elasticdl import cli
from elasticdl.spec.earlier import successor
from elasticdl.spec.earliernames import SERVED

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "coming-from-0.2.md"
ROWS = re.findall(r"^\| `(--.+?)` \| (accepted|note|refused) \|", PAGE.read_text(encoding="utf-8"), re.M)
ZOO = re.findall(r"^\| `(zoo .+?)` \| refused \|", PAGE.read_text(encoding="utf-8"), re.M)
OTHERS = (
    "yaml aux_params need_elasticdl_job_service need_task_manager need_pod_manager force_use_kube_config_file extra_pypi_index "
    "validation_data evaluation_steps need_tf_config log_file_path task_fault_tolerance relaunch_timeout_worker restart_policy "
    "prediction_data prediction_outputs_processor dataset_fn ps_image num_ps num_evaluator evaluator_resource_request "
    "evaluator_resource_limit chief_resource_request chief_resource_limit docker_image_repository image_base docker_base_url "
    "docker_tlscert docker_tlskey use_go_ps evaluation_start_delay_secs evaluation_throttle_secs tensorboard_log_dir output "
    "distribution_strategy use_async grads_to_wait num_epochs log_level envs populate_env_names volume cluster_spec_json "
    "data_reader_params image_pull_policy worker_resource_request keep_checkpoint_max checkpoint_dir_for_init"
)
"""Flags of 0.2 that are not today what they were."""
MODEL = """
def custom_model(): ...
def loss(labels, predictions): ...
def optimizer(): ...
def feed(dataset, mode, metadata): ...
"""
JOB = [
    "train", "--dry_run", "--model_zoo=.", "--model_def=model.custom_model", "--training_data=/data", "--job_name=job",
    "--image_name=image", "--volume=claim_name=claim,mount_path=/data",
]  # fmt: skip


@pytest.mark.parametrize(("flags", "now"), ROWS)
def test_flags(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: str,
    now: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)
    words = [flags] if "{" in flags or '"' in flags else shlex.split(flags)
    code = cli.run([*JOB, *words])
    said = capsys.readouterr().err
    assert code == (0 if now in ("accepted", "note") else 2), said
    name = words[0].partition("=")[0]
    match now:
        case "accepted":
            assert said == ""
        case "note":
            assert said.startswith(f"note: {name} ")
            assert said.count("\n") == 1
        case "refused":
            assert said.startswith(f"error: {name}")


@pytest.mark.parametrize("line", ZOO)
def test_flags_of_images(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(line.split()) == 2
    (name,) = re.findall(r"--(?!image=)\w+", line)
    assert re.match(rf"error: {name} is (now|no longer|a setting of) ", capsys.readouterr().err)


@pytest.mark.parametrize(
    "command",
    [
        ["evaluate", "--validation_data=/data"],
        ["predict", "--prediction_data=/data", "--output=/data/predictions"],
    ],
)
def test_flags_of_the_training_can_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)
    idle = [
        "num_epochs=1",
        "evaluation_steps=15",
        "num_ps_pods=2",
        "grads_to_wait=1",
        "tensorboard_log_dir=/data/logs",
    ]
    used = [
        "checkpoint_dir_for_init=/data/checkpoints",
        "num_minibatches_per_task=2",
        "ps_resource_request=cpu=0.2,memory=1024Mi",
    ]
    job = [word for word in JOB[1:] if not word.startswith("--training_data")]
    code = cli.run([*command, *job, *(f"--{flag}" for flag in (*idle, *used))])
    said = capsys.readouterr().err
    assert code == 0, said
    assert [line.split()[1] for line in said.splitlines()] == [f"--{flag.partition('=')[0]}" for flag in idle]
    assert cli.run([*command, *job, "--training_data=/data"]) == 2
    assert capsys.readouterr().err.startswith(
        "error: --training_data is a setting of `elasticdl train`, and "
    )


def test_the_page_has_the_flags_that_matter() -> None:
    assert {now for _, now in ROWS} == {"accepted", "note", "refused"}
    assert {flags[2:].partition("=")[0] for flags, _ in ROWS} == {*OTHERS.split()} - {"evaluation_steps"}
    assert len(ZOO) == 8
    assert len(ROWS) == PAGE.read_text(encoding="utf-8").count("\n| `--")


def test_each_import_of_the_page_has_an_answer() -> None:
    page = PAGE.read_text(encoding="utf-8")
    found = re.findall(r"`((?:elasticdl\.python|elasticai_api|elasticdl_preprocessing)[\w.]*)`", page)
    assert len(found) > 10
    assert all(successor(dotted) for dotted in found)


def test_the_page_lists_the_names_that_can_be_imported_and_no_others() -> None:
    page = PAGE.read_text(encoding="utf-8")
    imports = page[page.index("## Imports of model files") :].split("| import | ")[1]
    listed = set()
    for first, rest in re.findall(r"^\| `([\w.]+)`(?:: (.*?))? \|", imports, re.M):
        names = re.findall(r"`(\w+)`", rest)
        listed |= {f"{first}.{name}" for name in names} or {first}
    assert listed == {f"{module}.{name}" for module, names in SERVED.items() for name in names}
