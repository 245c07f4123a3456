"""The image that the cluster's tests run: a minimal Debian, this checkout's wheel with its framework, and the model zoo."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Set
from pathlib import Path

from . import images

ROOT = Path(__file__).resolve().parents[2]
IMAGE = "docker.io/library/elasticdl:test"
_BASE = "localhost/elasticdl-test/base:1"
"""Debian with Python."""
_PACKAGES = "localhost/elasticdl-test/packages"
"""The same with what this package needs of others, under a tag for what these are."""
_STATEMENTS = "localhost/elasticdl-test/packages-sql"
"""The same with what statements of SQL need, which is small: the other one stays as it is when this changes."""
_PACKAGES_DOCKERFILE = """\
FROM BASE
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


def build_image(folder: Path, held: Set[str] = frozenset()) -> Path:
    """Build the image with `elasticdl zoo build` and return it as an archive; what it is based on is kept for the next time.

    Args:
        folder: for the archive and what it is made of.
        held: SHA-256 digests of layers that the archive may lack, because those who take it have them.
    """
    base = packages(folder)
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
    write(IMAGE, archive, held)
    _run("buildah", "rmi", IMAGE)
    return archive


def write(image: str, archive: Path, held: Set[str] = frozenset()) -> None:
    """Write an image of buildah's as an archive that containerd takes, without the layers that `held` names."""
    reading, writing = os.pipe()
    command = ["buildah", "push", "--quiet", image, f"docker-archive:/dev/fd/{writing}:{image}"]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, pass_fds=[writing]
    ) as push:
        os.close(writing)
        broken: tarfile.ReadError | None = None
        try:
            with open(reading, "rb") as whole:
                images.convert(whole, image, archive, held)
                whole.read()  # zeros
        except tarfile.ReadError as error:
            broken = error
        _, said = push.communicate()
    if push.returncode or broken:
        raise RuntimeError(f"{' '.join(command)}: {said[-4000:]}") from broken


def _building() -> list[str]:
    """Return buildah's arguments on this machine, whose network may have certificates; the image stays as its Dockerfile says."""
    places = ("/etc/ssl/certs", "/etc/pip.conf")
    return [
        "--isolation=chroot",
        *(f"--volume={path}:{path}:ro" for path in places if Path(path).exists()),
    ]


def packages(folder: Path) -> str:
    """Return the image that has what this package needs of others; gigabytes, which are fetched when they change and not each time."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    large = [*project["dependencies"], *extras["tensorflow"], *extras["kubernetes"]]
    if not _has(_BASE):
        _build_base(folder)
    return _with(_STATEMENTS, _with(_PACKAGES, _BASE, large, folder), extras["sql"], folder)


def _with(name: str, base: str, requirements: list[str], folder: Path) -> str:
    """Return an image with packages, made if it is not there; its tag stands for them."""
    dockerfile, text = _PACKAGES_DOCKERFILE.replace("BASE", base), "\n".join([*requirements, ""])
    image = f"{name}:{hashlib.sha256((dockerfile + text).encode()).hexdigest()[:16]}"
    if _has(image):
        return image
    context = folder / "packages"
    context.mkdir(exist_ok=True)
    (context / "Dockerfile").write_text(dockerfile)
    (context / "requirements.txt").write_text(text)
    _run("buildah", "bud", "--quiet", f"--tag={image}", *_building(), str(context))
    for other in _run("buildah", "images", "--format={{.Name}}:{{.Tag}}").split():
        if other.startswith(f"{name}:") and other != image:
            _run("buildah", "rmi", "--force", other)
    return image


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
