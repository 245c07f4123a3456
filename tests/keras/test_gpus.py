"""How a worker uses GPUs. No machine of the tests has one: TensorFlow's own functions on devices are replaced at their boundary."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

tf: Any = pytest.importorskip("tensorflow")

from elasticdl.keras import runtime  # noqa: E402
from elasticdl.spec import pods  # noqa: E402


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What TensorFlow says to see."""
    seen: list[str] = []
    monkeypatch.setattr(
        tf.config, "list_physical_devices", lambda kind=None: list(seen) if kind == "GPU" else ["CPU:0"]
    )
    return seen


def test_memory_of_each_visible_gpu_is_taken_as_it_is_needed(
    gpus: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    grown: dict[str, bool] = {}
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", grown.__setitem__)
    runtime.share_gpus()
    assert grown == {}
    gpus += ["GPU:0", "GPU:1"]
    runtime.share_gpus()
    assert grown == {"GPU:0": True, "GPU:1": True}


def test_that_is_set_before_anything_is_computed() -> None:
    """Later TensorFlow refuses it: "Physical devices cannot be modified after being initialized"."""
    program = (
        "import tensorflow as tf\n"
        "from tensorflow.python.eager import context\n"
        "from elasticdl.keras import runtime\n"
        "tf.config.list_physical_devices = lambda kind: ['GPU:0']\n"
        "def grow(gpu, enable): print(gpu, enable, context.context()._initialized)\n"
        "tf.config.experimental.set_memory_growth = grow\n"
        "runtime.start(1)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.stdout == "GPU:0 True False\n", done.stderr


@pytest.mark.parametrize(
    ("built", "why"),
    [(False, "it is built for CPUs only"), (True, "its CUDA libraries or the node's driver are missing")],
)
def test_a_gpu_that_is_reserved_and_not_seen(
    gpus: list[str], monkeypatch: pytest.MonkeyPatch, built: bool, why: str
) -> None:
    monkeypatch.setattr(tf.test, "is_built_with_gpu_support", lambda: built)
    said = runtime.unused_gpus(2)
    assert said.startswith("2 GPUs are reserved for each worker, TensorFlow sees none, and trains on CPUs")
    assert why in said
    assert "elasticdl zoo build --gpu" in said
    assert runtime.unused_gpus(0) == ""
    gpus.append("GPU:0")
    assert runtime.unused_gpus(2) == ""


@pytest.mark.parametrize(
    ("request_", "limit", "count"),
    [("cpu=1,gpu=1", "", 1), ("cpu=1", "nvidia.com/gpu=2", 2), ("cpu=1,vendor.com/card=1", "", 0)],
)
def test_what_is_reserved(request_: str, limit: str, count: int) -> None:
    assert pods.gpus(pods.resources(request_), pods.resources(limit) if limit else {}) == count
