"""The image that the cluster's tests run: a minimal Debian, this checkout's wheel with its framework, and the model zoo."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IMAGE = "docker.io/library/elasticdl:test"
_BASE = "localhost/elasticdl-test/base:1"
"""Debian with Python."""
_PACKAGES = "localhost/elasticdl-test/packages"
"""The same with what this package needs of others, under a tag for what these are."""
_PACKAGES_DOCKERFILE = f"""\
FROM {_BASE}
ENV PIP_NO_CACHE_DIR=1 PIP_BREAK_SYSTEM_PACKAGES=1
COPY requirements.txt /tmp/requirements.txt
RUN pip install -r /tmp/requirements.txt && rm /tmp/requirements.txt
"""
_TOOLS = ("buildah", "debootstrap")
_SUITE = "bookworm"


def missing_tools() -> str:
    """Return why this machine can't build the image, or nothing."""
    if os.geteuid():
        return "building the image needs root"
    absent = [tool for tool in _TOOLS if shutil.which(tool) is None]
    return f"{', '.join(absent)} not installed; `make setup-cluster` does" if absent else ""


def build_image(folder: Path) -> Path:
    """Build the image with `elasticdl zoo build` and return it as an archive; what it is based on is kept for the next time."""
    base = _packages(folder)
    _run(
        str(Path(sys.executable).with_name("maturin")),
        "build",
        "--release",
        "--locked",
        "--quiet",
        f"--out={folder}",
    )
    (wheel,) = folder.glob("*.whl")
    zoo = folder / "model_zoo"
    shutil.copytree(ROOT / "model_zoo", zoo)
    elasticdl = str(Path(sys.executable).with_name("elasticdl"))
    _run(elasticdl, "zoo", "init", str(zoo), f"--base={base}")
    _run(
        elasticdl, "zoo", "build", str(zoo), f"--image={IMAGE}", f"--wheel={wheel}", "--tool=buildah", "--",
        *_building(),
    )  # fmt: skip
    archive = folder / "image.tar"
    _run("buildah", "push", "--quiet", IMAGE, f"docker-archive:{archive}:{IMAGE}")
    _run("buildah", "rmi", IMAGE)
    return archive


def _building() -> list[str]:
    """Return buildah's arguments on this machine, whose network may have certificates; the image stays as its Dockerfile says."""
    places = ("/etc/ssl/certs", "/etc/pip.conf")
    return [
        "--isolation=chroot",
        *(f"--volume={path}:{path}:ro" for path in places if Path(path).exists()),
    ]


def _packages(folder: Path) -> str:
    """Return the image that has what this package needs of others; gigabytes, which are fetched when they change and not each time."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    requirements = "\n".join([*project["dependencies"], *extras["tensorflow"], *extras["kubernetes"], ""])
    tag = hashlib.sha256((_PACKAGES_DOCKERFILE + requirements).encode()).hexdigest()[:16]
    name = f"{_PACKAGES}:{tag}"
    if _has(name):
        return name
    if not _has(_BASE):
        _build_base(folder)
    context = folder / "packages"
    context.mkdir()
    (context / "Dockerfile").write_text(_PACKAGES_DOCKERFILE)
    (context / "requirements.txt").write_text(requirements)
    _run("buildah", "bud", "--quiet", f"--tag={name}", *_building(), str(context))
    for image in _run("buildah", "images", "--format={{.Name}}:{{.Tag}}").split():
        if image.startswith(f"{_PACKAGES}:") and image != name:
            _run("buildah", "rmi", image)
    return name


def _has(image: str) -> bool:
    return bool(_run("buildah", "images", "--quiet", image, check=False).strip())


def _build_base(folder: Path) -> None:
    """Make a Debian with Python from its packages, as there is no registry to fetch one from."""
    root = folder / "debian"
    packages = "python3,python3-pip,python3-venv,ca-certificates"
    mirror = _mirror()
    _run("debootstrap", "--variant=minbase", f"--include={packages}", _SUITE, str(root), *mirror)
    for path in (root / "var/cache/apt/archives", root / "var/lib/apt/lists"):
        shutil.rmtree(path, ignore_errors=True)
    container = _run("buildah", "from", "scratch").strip()
    _run("buildah", "add", "--quiet", container, str(root), "/")
    places = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    _run("buildah", "config", f"--env=PATH={places}", container)
    _run("buildah", "commit", "--quiet", container, _BASE)
    _run("buildah", "rm", container)
    shutil.rmtree(root)


def _mirror() -> list[str]:
    """Return where this machine's own packages come from, if it says so."""
    lists = Path("/etc/apt")
    for path in (lists / "sources.list", *sorted((lists / "sources.list.d").glob("*"))):
        for line in path.read_text().splitlines() if path.is_file() else ():
            words = line.split()
            if words[:1] in (["URIs:"], ["deb"]):
                return [words[1]]
    return []


def _run(*command: str, check: bool = True) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {(done.stdout + done.stderr)[-4000:]}")
    return done.stdout
