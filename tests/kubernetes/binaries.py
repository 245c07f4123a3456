"""The program with all components of Kubernetes, built once for each version of its source."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).parent / "cluster"


def cache() -> Path:
    """Return where tests keep what takes minutes to make."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(given) if Path(given).is_absolute() else Path.home() / ".cache"
    return root / "elasticdl"


def folder() -> Path:
    """Return where the build of the present source lies, or would."""
    return cache() / "test-cluster" / _digest()


def missing() -> str:
    """Return why tests can't use it, or nothing: they don't build it, because that takes minutes."""
    return "" if folder().exists() else "the test cluster's program is not built; `make setup-cluster` does"


def build() -> Path:
    """Build what is missing and return the folder: `cluster` has all components, `pause` is a sandbox's process.

    The first time takes about six minutes of two cores; after that it is only looked up.
    """
    target = folder()
    if (target / "cluster").exists() and (target / "pause").exists():
        return target
    if shutil.which("go") is None:
        raise RuntimeError("the test cluster is built from source: install Go 1.24 or later")
    draft = target.with_name(f"{target.name}.draft")
    draft.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["go", "build", "-trimpath", "-ldflags=-s -w", "-o", f"{draft}/", "./..."],
        cwd=_SOURCE,
        env={**os.environ, "CGO_ENABLED": "0"},
        check=True,
    )
    shutil.rmtree(target, ignore_errors=True)
    draft.rename(target)
    return target


def _digest() -> str:
    whole = hashlib.sha256()
    for path in sorted(_SOURCE.rglob("*")):
        if path.name in ("go.mod", "go.sum") or path.suffix == ".go":
            whole.update(f"{path.relative_to(_SOURCE)}\0".encode() + path.read_bytes())
    return whole.hexdigest()[:16]


if __name__ == "__main__":
    print(f"the test cluster's program: {build()}")
