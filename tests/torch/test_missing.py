"""Without PyTorch a job ends with what to install."""

from __future__ import annotations

import sys

import pytest

from elasticdl.errors import BadSetting
from elasticdl.spec import framework


def test_a_worker_without_pytorch_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # the documented way to block an import
    found = framework.find("torch")
    for begin in (found.import_library, lambda: found.start(1)):
        with pytest.raises(
            BadSetting,
            match=r"PyTorch is not installed where workers run; pip install 'elasticdl\[torch\]' does",
        ):
            begin()
