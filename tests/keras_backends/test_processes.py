"""The contract of frameworks, and what plain Keras does, in processes whose Keras computes with JAX and with PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from . import NEEDS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("backend", NEEDS)
def test_the_contract_holds_where_keras_computes_with(backend: str) -> None:
    NEEDS[backend]()
    program = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [*program, "tests/keras_backends/inprocess.py", "tests/frameworks/test_contract.py"],
        cwd=ROOT,
        env={**os.environ, "KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert not done.returncode, done.stdout[-20_000:] + done.stderr[-2_000:]
    assert " passed" in done.stdout
