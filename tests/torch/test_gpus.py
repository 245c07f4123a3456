"""GPUs that are reserved for a worker and that PyTorch does not see."""

from __future__ import annotations

import pytest

from elasticdl.spec import framework

torch = pytest.importorskip("torch", reason="make setup-torch")


@pytest.mark.parametrize(
    ("cuda", "why"),
    [
        (None, "it is built for CPUs only; put PyTorch for CUDA into the image, or leave gpu out of"),
        (
            "13.0",
            "the node's driver is missing or older than PyTorch's CUDA 13.0; see whether `nvidia-smi` works",
        ),
    ],
)
def test_a_gpu_that_is_reserved_and_not_seen(
    monkeypatch: pytest.MonkeyPatch, cuda: str | None, why: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    found = framework.find("torch")
    begins = "1 GPU is reserved for each worker, PyTorch sees none, and trains on CPUs: "
    assert found.unused_gpus(1).startswith(begins + why)
    assert found.unused_gpus(0) == ""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert found.unused_gpus(1) == ""
