"""Without MXNet, or with a NumPy that it can't use, a job ends with what to install."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
import pytest

from elasticdl.errors import BadSetting
from elasticdl.spec import framework


def test_a_worker_without_mxnet_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np, "__version__", "1.26.4")
    monkeypatch.setitem(sys.modules, "mxnet", None)  # the documented way to block an import
    for name in ("OMP_NUM_THREADS", "MXNET_ENGINE_TYPE", "MXNET_CPU_WORKER_NTHREADS"):
        monkeypatch.setenv(name, "1")  # as it was afterwards
    found = framework.find("mxnet")
    for begin in (found.import_library, lambda: found.start(1)):
        with pytest.raises(
            BadSetting,
            match=r"MXNet is not installed where workers run; pip install 'elasticdl\[mxnet\]' does, in an env.* Python 3.11",
        ):
            begin()


def test_a_numpy_that_mxnet_cannot_use_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np, "__version__", "2.3.1")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    with pytest.raises(
        BadSetting, match=r"MXNet needs a NumPy below 2, and here is 2.3.1; pip install 'numpy<2'"
    ):
        framework.find("mxnet").import_library()
