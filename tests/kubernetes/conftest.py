"""A control plane for tests of the API, and a whole cluster for tests with pods; each is brought up once, when it is first needed."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticdl.cluster.api import Api, connect

from . import binaries, testbed
from .control_plane import ControlPlane
from .testbed import Testbed


def need(reason: str) -> None:
    """Skip the test if there is a reason to; where everything has to be tested that is a failure."""
    if reason:
        if os.environ.get("CI") == "true":
            pytest.fail(f"not to be skipped here: {reason}")
        pytest.skip(reason)


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane without nodes, on loopback."""
    need("" if shutil.which("go") or binaries.folder().exists() else "Go is not installed")
    plane = ControlPlane(binaries.build() / "cluster", tmp_path_factory.mktemp("cluster"))
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()


@pytest.fixture
def api(control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """A namespace of its own, as the administrator."""
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    yield from _namespace(control_plane)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Testbed]:
    """A cluster with two nodes."""
    need(testbed.missing())
    with Testbed() as bed:
        yield bed


def _namespace(plane: ControlPlane) -> Iterator[Api]:
    name = f"test-{uuid.uuid4().hex[:8]}"
    plane.kubectl("create", "namespace", name)
    yield connect(name)
    plane.kubectl("delete", "namespace", name, "--wait=false")


def kubeconfig_of(path: Path) -> dict[str, str]:
    """Return the environment of a command that uses this cluster."""
    return {**os.environ, "KUBECONFIG": str(path)}
