"""Without JAX, Flax or optax a job ends with what to install."""

from __future__ import annotations

import sys

import pytest

from elasticdl.errors import BadSetting
from elasticdl.spec import framework

from . import need_jax


@pytest.mark.parametrize(("module", "library"), [("jax", "JAX"), ("flax", "Flax"), ("optax", "optax")])
def test_a_worker_without_one_of_them_says_what_to_install(
    module: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if module != "jax":
        need_jax()  # those before it are there
    for name in [one for one in sys.modules if one == module or one.startswith(f"{module}.")]:
        monkeypatch.setitem(sys.modules, name, None)  # the documented way to block an import
    monkeypatch.setitem(sys.modules, module, None)
    found = framework.find("jax")
    for begin in (found.import_library, lambda: found.start(1)):
        with pytest.raises(
            BadSetting,
            match=rf"{library} is not installed where workers run; pip install 'elasticdl\[jax\]' does",
        ):
            begin()
