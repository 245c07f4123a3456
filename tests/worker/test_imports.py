"""How large libraries are imported."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable

import pytest

from elasticdl.worker.imports import uncollected
from tests.jax import need_jax
from tests.torch import need_torch


def test_what_is_imported_meanwhile_is_nothing_for_the_garbage_collector() -> None:
    frozen = gc.get_freeze_count()
    with uncollected():
        assert not gc.isenabled()
        made = [[one] for one in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= frozen + len(made)


def test_after_an_import_that_fails_it_collects_again() -> None:
    with pytest.raises(ModuleNotFoundError), uncollected():
        raise ModuleNotFoundError
    assert gc.isenabled()


@pytest.mark.parametrize(("name", "need"), [("torch", need_torch), ("jax", need_jax)])
def test_a_worker_imports_its_library_so(name: str, need: Callable[[], None]) -> None:
    need()
    program = (
        "import gc\n"
        f"from elasticdl.{name} import runtime\n"
        "runtime.start(1)\n"
        "print(gc.isenabled(), gc.get_freeze_count() > 50_000)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.split() == ["True", "True"]
