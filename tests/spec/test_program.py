"""The program of a custom training loop: what of its settings is refused, and what is found wrong before anything starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elasticdl.errors import BadSetting
from elasticdl.spec import program
from elasticdl.spec.edge import build, check_zoo, from_arguments
from elasticdl.spec.jobspec import SETTINGS, JobSpec, Strategy, from_json, settings_of_loop, why_not_of_loop
from elasticdl.spec.machine import cores, threads_per_worker


def loop(command: Any = "python train.py --lr 0.1", **more: Any) -> JobSpec:
    return build(from_arguments({"job_command": command, **more}))


def test_a_command_is_split_as_by_a_shell_and_survives_json() -> None:
    spec = loop("python 'my train.py' --name=\"a b\" $HOME")
    assert spec.job_command == ("python", "my train.py", "--name=a b", "$HOME")
    assert from_json(spec.to_json()) == spec
    assert loop(["python", "x y"]).job_command == ("python", "x y")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python train.py", "train"),
        ("python3.11 -u src/my_train.py --config x.py", "my-train"),
        ("bash run.sh train.py", "bash"),
        ("python -m package.train", "python"),
        ("./train", "train"),
        ("python 'my träin (2).py'", "my-tr-in--2"),
        ("...", "program"),
    ],
)
def test_a_job_is_named_after_its_program(command: str, name: str) -> None:
    assert loop(command).job_name == name


@pytest.mark.parametrize("command", ["", " ", [], [""], "python 'train.py", ["python", 3], ["a\0b"], 7])
def test_what_is_no_command_is_refused(command: Any) -> None:
    with pytest.raises(BadSetting, match="job_command="):
        loop(command)


@pytest.mark.parametrize("name", sorted(program.OWN))
def test_what_the_program_says_is_refused(name: str) -> None:
    with pytest.raises(BadSetting, match=rf"^{name}=: .+; leave it out$"):
        loop(**{name: SETTINGS[name].default or "x"})


def test_no_setting_of_parameter_servers() -> None:
    with pytest.raises(BadSetting, match="num_ps_pods=: a custom training loop has no parameter servers"):
        loop(num_ps_pods=2)
    assert why_not_of_loop("minibatch_size").endswith(
        "DataLoader(batch_size=...), or job.chunks(batch_size=...)"
    )


def test_what_is_left_are_settings_of_the_job() -> None:
    names = settings_of_loop().keys()
    assert {
        "output",
        "audit",
        "checkpoint_dir",
        "checkpoint_steps",
        "num_workers",
        "on_nan",
        "image_name",
    } <= names
    assert not names & {"minibatch_size", "model_def", "num_ps_pods", "job_command", "trained_model"}
    assert set(program.OWN) <= SETTINGS.keys()


def test_settings_made_in_python_are_checked_too() -> None:
    with pytest.raises(BadSetting, match="--distribution_strategy"):
        replace(loop(), distribution_strategy=Strategy.LOCAL)
    with pytest.raises(BadSetting, match="--num_ps_pods"):
        replace(loop(), num_ps_pods=1)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "other.py").touch()
    (tmp_path / "go").touch(mode=0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "more"),
    [
        ("python3 train.py", {}),
        ("python3 -u -X dev train.py", {}),
        ("python3 other.py", {"model_zoo": "src"}),
        ("python3 -m missing", {}),
        ("python3 -c pass missing.py", {}),
        ("./go", {}),
        ("sh missing.py", {}),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_program_that_is_there(command: str, more: dict[str, Any]) -> None:
    spec = loop(command, **more)
    check_zoo(spec)
    program.check_program(spec)


@pytest.mark.parametrize(
    ("command", "more", "said"),
    [
        ("python3 other.py", {}, "there is no file 'other.py' (looked from "),
        ("python3 train.py", {"model_zoo": "src"}, "there is no file 'train.py' (looked from "),
        ("no-such-program x", {}, "there is no program 'no-such-program' (looked for in PATH)"),
        ("./train.sh", {}, "there is no program './train.sh' (looked from "),
        ("src/", {}, "there is no program 'src/'"),
        ("train.py", {}, "`elasticdl run -- python train.py` runs a file of Python"),
    ],
)
def test_a_program_that_is_not(folder: Path, command: str, more: dict[str, Any], said: str) -> None:
    with pytest.raises(BadSetting) as caught:
        program.check_program(loop(command, **more))
    assert said in str(caught.value)


def test_it_runs_where_it_was_called_or_in_the_model_zoo(folder: Path) -> None:
    assert program.directory(loop()) == folder
    assert program.directory(loop(model_zoo="src")) == folder / "src"
    assert program.directory(loop(model_zoo="/zoo")) == Path("/zoo")
    with pytest.raises(BadSetting, match="--model_zoo: 'nowhere' is not a directory"):
        check_zoo(loop(model_zoo="nowhere"))


def test_threads_are_shared_among_workers() -> None:
    assert threads_per_worker(loop(num_workers=1)) == cores()
    assert threads_per_worker(loop(num_workers=2, threads_per_worker=5)) == 5
