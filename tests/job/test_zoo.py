"""The image of a model zoo: the commands that build it, and what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from elasticdl import cli
from elasticdl.errors import BadSetting, JobFailed
from elasticdl.job import zoo


def test_each_tool_has_its_own_verb(tmp_path: Path) -> None:
    for tool, verb in (("docker", "build"), ("podman", "build"), ("buildah", "bud")):
        command = zoo.build_command(tool, tmp_path, "image:1", "elasticdl", ["--more"])
        assert command[:2] == [tool, verb]
        assert "--tag=image:1" in command
        assert command[-2:] == ["--more", str(tmp_path)]


def test_a_dockerfile_is_written_once(tmp_path: Path) -> None:
    path = zoo.init(tmp_path, "debian:12")
    assert "FROM debian:12" in path.read_text()
    with pytest.raises(BadSetting, match="exists"):
        zoo.init(tmp_path, "")
    with pytest.raises(BadSetting, match="is not a directory"):
        zoo.init(tmp_path / "nowhere", "")


def tool(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_the_first_tool_that_is_there_builds_from_zoo_and_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, wheel = tmp_path / "zoo", tmp_path / "elasticdl-1-py3-none-any.whl"
    (directory / "parts").mkdir(parents=True)
    (directory / "parts" / "model.py").write_text("x = 1")
    (directory / ".git").mkdir()
    wheel.write_bytes(b"wheel")
    seen = tmp_path / "seen"
    # the last argument is the folder from which the image is built
    tool(
        tmp_path / "bin",
        "podman",
        f'for last; do :; done; cp -r "$last" {seen}; echo "$@" > {seen}/arguments',
    )
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    monkeypatch.setattr(zoo, "TOOLS", ("no-such-tool", "podman"))
    zoo.build(directory, "image:1", wheel, "", ["--more"])
    assert (seen / "zoo" / "parts" / "model.py").read_text() == "x = 1"
    assert not (seen / "zoo" / ".git").exists()
    assert (seen / "package" / wheel.name).read_bytes() == b"wheel"
    assert f"PACKAGE=/tmp/package/{wheel.name}[tensorflow,kubernetes]" in (seen / "arguments").read_text()


def test_an_image_for_gpus_has_the_tensorflow_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "elasticdl-1-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    (tmp_path / "zoo").mkdir()
    tool(tmp_path / "bin", "podman", f'echo "$@" > {tmp_path}/arguments')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    command = ["zoo", "build", str(tmp_path / "zoo"), "--image=i", f"--wheel={wheel}", "--tool=podman"]
    assert cli.run([*command, "--gpu"]) == 0
    assert (
        f"PACKAGE=/tmp/package/{wheel.name}[tensorflow-gpu,kubernetes]"
        in (tmp_path / "arguments").read_text()
    )


def test_the_extra_for_gpus_is_not_installed_for_development() -> None:
    """It is gigabytes, and has TensorFlow once more."""
    root = Path(__file__).resolve().parents[2]
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert any("tensorflow[and-cuda]" in line for line in extras["tensorflow-gpu"])
    _, _, program = (root / ".ci/environment").read_text().partition("<< 'END'\n")
    listed = subprocess.run(
        [sys.executable, "-c", program.partition("\nEND\n")[0]], cwd=root, capture_output=True, text=True, check=True, timeout=60
    ).stdout.splitlines()  # fmt: skip
    assert not any("and-cuda" in line for line in listed)
    assert set(extras["dev"]) | set(extras["tensorflow"]) <= set(listed)


@pytest.mark.parametrize("origin", ["", '{"url": "file:///src", "dir_info": {}}'])
def test_without_a_wheel_the_index_has_to_have_what_runs_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: str
) -> None:
    place = tmp_path / "site" / "elasticdl-7.8.9.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text("Metadata-Version: 2.1\nName: elasticdl\nVersion: 7.8.9\n")
    if origin:
        (place / "direct_url.json").write_text(origin)
    monkeypatch.syspath_prepend(str(place.parent))
    tool(tmp_path / "bin", "docker", f'echo "$@" > {tmp_path}/arguments')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    (tmp_path / "zoo").mkdir()
    if origin:
        with pytest.raises(BadSetting, match="--wheel is needed"):
            zoo.build(tmp_path / "zoo", "image", None, "docker", [])
        assert not (tmp_path / "arguments").exists()
    else:
        zoo.build(tmp_path / "zoo", "image", None, "docker", [])
        assert "PACKAGE=elasticdl[tensorflow,kubernetes]==7.8.9" in (tmp_path / "arguments").read_text()


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadSetting, match="is not a directory"):
        zoo.build(tmp_path / "nowhere", "image", None, "", [])
    with pytest.raises(BadSetting, match="make wheel"):
        zoo.build(tmp_path, "image", tmp_path / "no.whl", "", [])
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadSetting, match="none of docker, podman, buildah is installed"):
        zoo.push("image", "", [])


def test_a_tool_that_fails_fails_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tmp_path / "bin", "docker", "exit 7")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    with pytest.raises(JobFailed, match="ended with code 7"):
        zoo.push("image", "docker", [])


def test_a_link_that_leads_nowhere_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tmp_path / "bin", "podman", "exit 0")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    directory, wheel = tmp_path / "zoo", tmp_path / "elasticdl-1-py3-none-any.whl"
    directory.mkdir()
    (directory / "model.py").symlink_to(tmp_path / "nowhere")
    wheel.write_bytes(b"wheel")
    with pytest.raises(BadSetting, match=r"model.py can't be put into the image: .*No such file"):
        zoo.build(directory, "image:1", wheel, "podman", [])
