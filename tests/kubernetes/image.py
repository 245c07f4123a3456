"""The image that the cluster's tests run: a minimal Debian, this checkout's wheel with its framework, and the model zoo."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IMAGE = "docker.io/library/elasticdl:test"
_BASE = "localhost/elasticdl-test/base:1"
_TOOLS = ("buildah", "debootstrap")
_SUITE = "bookworm"


def missing_tools() -> str:
    """Return why this machine can't build the image, or nothing."""
    if os.geteuid():
        return "building the image needs root"
    absent = [tool for tool in _TOOLS if shutil.which(tool) is None]
    return f"{', '.join(absent)} not installed; `make setup-cluster` does" if absent else ""


def build_image(folder: Path) -> Path:
    """Build the image with `elasticdl zoo build` and return it as an archive; the base is kept for the next time."""
    if _run("buildah", "images", "--quiet", _BASE, check=False).strip() == "":
        _build_base(folder)
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
    _run(elasticdl, "zoo", "init", str(zoo), f"--base={_BASE}")
    # The network of the machine may have certificates of its own; the image itself stays as its Dockerfile says.
    of_the_machine = [
        f"--volume={path}:{path}:ro" for path in ("/etc/ssl/certs", "/etc/pip.conf") if Path(path).exists()
    ]
    _run(
        elasticdl, "zoo", "build", str(zoo), f"--image={IMAGE}", f"--wheel={wheel}", "--tool=buildah", "--",
        "--isolation=chroot", *of_the_machine,
    )  # fmt: skip
    archive = folder / "image.tar"
    _run("buildah", "push", "--quiet", IMAGE, f"docker-archive:{archive}:{IMAGE}")
    _run("buildah", "rmi", IMAGE)
    return archive


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
