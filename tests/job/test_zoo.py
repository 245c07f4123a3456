"""The image of a model zoo: the commands that build it, and what is missing."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from elasticdl import cli
from elasticdl.errors import BadSetting, JobFailed
from elasticdl.tools import zoo


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


FILES = {
    "elasticdl/__init__.py": "VERSION = 1\n",
    "elasticdl/_core.abi3.so": "machine code",
    "elasticdl-7.8.9.dist-info/METADATA": "Metadata-Version: 2.1\nName: elasticdl\nVersion: 7.8.9\n",
    "elasticdl-7.8.9.dist-info/entry_points.txt": "[console_scripts]\nelasticdl = elasticdl.cli:main\n",
    "elasticdl-7.8.9.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: maturin\nRoot-Is-Purelib: false\n"
    "Tag: cp311-abi3-any\nTag: py3-none-any\n",
}
OF_THE_INSTALLER = {
    "../bin/elasticdl": "#!/usr/bin/python",
    "elasticdl/__pycache__/__init__.cpython-311.pyc": "bytecode",
    "elasticdl-7.8.9.dist-info/INSTALLER": "pip",
    "elasticdl-7.8.9.dist-info/direct_url.json": '{"url": "file:///dist/elasticdl.whl", "archive_info": {}}',
}


def hashed(text: str) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
    return f"sha256={digest}"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an elasticdl as an installer leaves it, which is the one that runs."""
    site = tmp_path / "site"
    record = ""
    for name, text in (FILES | OF_THE_INSTALLER).items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        record += f"{name},{hashed(text)},{len(text)}\n"
    (site / "elasticdl-7.8.9.dist-info" / "RECORD").write_text(
        record + "elasticdl-7.8.9.dist-info/RECORD,,\n"
    )
    monkeypatch.syspath_prepend(str(site))
    return site


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What an image is built from, once it has been, with the tool's arguments."""
    seen = tmp_path / "seen"
    tool(
        tmp_path / "bin",
        "docker",
        f'for last; do :; done; cp -r "$last" {seen}; echo "$@" > {seen}/arguments',
    )
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    (tmp_path / "zoo").mkdir()
    return seen


def test_without_a_wheel_the_image_gets_what_runs_here(
    tmp_path: Path, installed: Path, context: Path
) -> None:
    """Never a name and a version alone, under which an index may have somebody else's package."""
    zoo.build(tmp_path / "zoo", "image", None, "docker", [])
    (wheel,) = (context / "package").iterdir()
    assert wheel.name == "elasticdl-7.8.9-cp311.py3-abi3.none-any.whl"
    assert f"PACKAGE=/tmp/package/{wheel.name}[tensorflow,kubernetes]" in (context / "arguments").read_text()
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    done = subprocess.run(
        [*install, "--no-deps", f"--target={tmp_path / 'image'}", str(wheel)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for name, text in FILES.items():
        assert (tmp_path / "image" / name).read_text() == text
    with zipfile.ZipFile(wheel) as files:
        assert set(files.namelist()) == {*FILES, "elasticdl-7.8.9.dist-info/RECORD"}


def test_the_dockerfile_names_no_package_of_an_index(tmp_path: Path) -> None:
    lines = [line for line in zoo.dockerfile().splitlines() if "pip install" in line]
    assert lines[0].startswith('RUN pip install "$PACKAGE" ')


def test_an_editable_installation_needs_a_wheel(tmp_path: Path, installed: Path, context: Path) -> None:
    record = installed / "elasticdl-7.8.9.dist-info" / "RECORD"
    record.write_text("elasticdl.pth,,\n")
    with pytest.raises(BadSetting, match=r"--wheel is needed: .*editable installation.*`make wheel`"):
        zoo.build(tmp_path / "zoo", "image", None, "docker", [])
    assert not context.exists()


def test_a_changed_installation_needs_a_wheel(tmp_path: Path, installed: Path, context: Path) -> None:
    (installed / "elasticdl" / "__init__.py").write_text("VERSION = 2\n")
    with pytest.raises(
        BadSetting, match=r"--wheel is needed: elasticdl/__init__.py .* is not what was installed"
    ):
        zoo.build(tmp_path / "zoo", "image", None, "docker", [])
    (installed / "elasticdl" / "__init__.py").unlink()
    with pytest.raises(BadSetting, match=r"elasticdl/__init__.py .* can't be read \(No such file"):
        zoo.build(tmp_path / "zoo", "image", None, "docker", [])
    assert not context.exists()


DIGEST = "sha256:" + "0123456789abcdef" * 4


def test_a_digest_pins_the_base(tmp_path: Path) -> None:
    path = zoo.init(tmp_path, f"registry.example.com:5000/python:3.11@{DIGEST}")
    assert f"\nFROM registry.example.com:5000/python:3.11@{DIGEST}\n" in path.read_text()


@pytest.mark.parametrize("base", ["python@sha256:12", "Python", "python\nRUN x", "python@3.11"])
def test_a_base_that_is_no_image(tmp_path: Path, base: str) -> None:
    with pytest.raises(BadSetting, match=r"--base: expected the name of an image, .*@sha256:DIGEST"):
        zoo.init(tmp_path, base)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("image", [f"elasticdl@{DIGEST}", "--file=x", "Image:1"])
def test_a_new_image_has_a_name_and_no_digest(tmp_path: Path, image: str) -> None:
    with pytest.raises(BadSetting, match="--image: expected a name for the new image"):
        zoo.build(tmp_path, image, None, "", [])


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
