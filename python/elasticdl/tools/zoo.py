"""The image of a model zoo: its Dockerfile, and the tool that builds and pushes it, whichever of docker, podman and buildah is there."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from elasticdl.cluster.kubernetes.images import check_image, check_new_image
from elasticdl.errors import BadSetting, JobFailed
from elasticdl.tools import ownwheel

TOOLS = ("docker", "podman", "buildah")
DOCKERFILE = "Dockerfile"
_BASE = "python:3.11-slim-bookworm"
_EXTRAS = "tensorflow,kubernetes"
_EXTRAS_WITH_GPU = "tensorflow-gpu,kubernetes"


def dockerfile(base: str = _BASE) -> str:
    """Return the Dockerfile of a model zoo."""
    return f"""\
# The image of this model zoo: a Python, this package with its framework, and the model files.
# `elasticdl zoo build` builds it. What your models import besides goes into a requirements.txt beside this file.
FROM {base}
ENV PIP_NO_CACHE_DIR=1 PIP_BREAK_SYSTEM_PACKAGES=1 PYTHONDONTWRITEBYTECODE=1
ARG PACKAGE
COPY package/ /tmp/package/
RUN pip install "$PACKAGE" && rm -rf /tmp/package
COPY zoo/ /model_zoo/
RUN if [ -f /model_zoo/requirements.txt ]; then pip install -r /model_zoo/requirements.txt; fi
WORKDIR /
USER 1000
"""


def init(directory: Path, base: str) -> Path:
    """Write a Dockerfile into a model zoo, on the image `base`, which a digest may pin. Raises BadSetting if there is one."""
    path = directory / DOCKERFILE
    if base:
        check_image("base", base)
    if not directory.is_dir():
        raise BadSetting(f"{str(directory)!r} is not a directory; name the model zoo")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(dockerfile(base or _BASE))
    except FileExistsError:
        raise BadSetting(f"{path} exists; `elasticdl zoo build` uses it as it is") from None
    except OSError as error:
        raise BadSetting(f"{path} can't be written: {error.strerror}") from None
    return path


def build(
    directory: Path, image: str, wheel: Path | None, tool: str, more: Sequence[str], *, gpu: bool = False
) -> None:
    """Build the image of a model zoo.

    Args:
        directory: the model zoo; its Dockerfile is used if it has one.
        image: name of the image.
        wheel: this package as a wheel; made from the installation that runs here if not given.
        tool: docker, podman or buildah; the first that is there if empty.
        more: further arguments of the tool.
        gpu: with TensorFlow for GPUs and its CUDA libraries; else the one for CPUs.

    Raises BadSetting if something is missing, JobFailed if the tool fails.
    """
    if not directory.is_dir():
        raise BadSetting(f"{str(directory)!r} is not a directory; name the model zoo")
    if wheel is not None and not wheel.is_file():
        raise BadSetting(f"--wheel: {str(wheel)!r} is not a file; `make wheel` makes one in dist/")
    check_new_image("image", image)
    tool = find_tool(tool)
    with tempfile.TemporaryDirectory(prefix="elasticdl-zoo-") as folder:
        context = Path(folder)
        package = _fill(context, directory, wheel)
        extras = _EXTRAS_WITH_GPU if gpu else _EXTRAS
        # A path, never a name: a name in the package index may be somebody else's.
        _run(build_command(tool, context, image, f"/tmp/package/{package.name}[{extras}]", more))


def push(image: str, tool: str, more: Sequence[str]) -> None:
    """Push an image to its registry. Raises BadSetting, JobFailed."""
    _run([find_tool(tool), "push", *more, image])


def find_tool(tool: str) -> str:
    """Return the tool that builds images. Raises BadSetting if there is none."""
    for known in (tool,) if tool else TOOLS:
        if shutil.which(known):
            return known
    raise BadSetting(
        f"{tool or 'none of ' + ', '.join(TOOLS)} is installed; images are built by one of {', '.join(TOOLS)}"
    )


def build_command(tool: str, context: Path, image: str, package: str, more: Sequence[str]) -> list[str]:
    """Return the command that builds `image` from `context`."""
    verb = "bud" if tool == "buildah" else "build"
    return [tool, verb, f"--tag={image}", f"--build-arg=PACKAGE={package}", *more, str(context)]


def _fill(context: Path, directory: Path, wheel: Path | None) -> Path:
    """Put into `context` what the image is built from, and return the wheel in it. Raises BadSetting."""
    own = directory / DOCKERFILE
    text = own.read_text(encoding="utf-8") if own.exists() else dockerfile()
    (context / DOCKERFILE).write_text(text, encoding="utf-8")
    folder = context / "package"
    folder.mkdir()
    package = ownwheel.make(folder) if wheel is None else Path(shutil.copy2(wheel, folder))
    ignored = shutil.ignore_patterns(".*", "__pycache__", DOCKERFILE)
    try:
        shutil.copytree(directory, context / "zoo", ignore=ignored)
    except shutil.Error as error:
        (source, _, why), *_ = error.args[0]
        raise BadSetting(f"{source} can't be put into the image: {why}") from None
    return package


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, check=False)
    if done.returncode:
        raise JobFailed(f"`{' '.join(command)}` ended with code {done.returncode}; its messages are above")
