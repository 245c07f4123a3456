"""The import system's way to the old names, open while a model file is loaded and closed afterwards.

It comes after everything else that finds modules, so what is installed, and what a model zoo has of its own, is found first. When it
closes, its modules are forgotten: no other code can depend on them, and a program that looks for ElasticDL 0.2 does not find it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from elasticdl.spec.earlier import PAGE, successor
from elasticdl.spec.earliernames import SERVED, TOPS, is_package


class EarlierNames(MetaPathFinder, Loader):
    """Finds the modules of ElasticDL 0.2 that model files import."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find an old module. Raises ModuleNotFoundError for one that is gone, with what serves in its place."""
        if not any(f"{fullname}.".startswith(f"{top}.") for top in TOPS):
            return None
        if fullname not in SERVED and not is_package(fullname):
            raise ModuleNotFoundError(_gone(fullname), name=fullname)
        return ModuleSpec(fullname, self, is_package=is_package(fullname))

    def exec_module(self, module: ModuleType) -> None:
        """Let the module's names be found when they are asked for."""
        module.__dict__["__getattr__"] = partial(_found, module)
        module.__dict__["__all__"] = list(SERVED.get(module.__name__, ()))


def _found(module: ModuleType, name: str) -> Any:
    """Return a name of an old module. Raises ImportError for one that is gone, with what serves in its place."""
    if name.startswith("__"):
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
    place = SERVED.get(module.__name__, {}).get(name)
    if place is None:
        if is_package(f"{module.__name__}.{name}") or f"{module.__name__}.{name}" in SERVED:
            raise AttributeError(name)  # a module that is to be imported
        raise ImportError(_gone(f"{module.__name__}.{name}"), name=module.__name__)
    value = module.__dict__[name] = getattr(importlib.import_module(place), name)
    return value


def _gone(dotted: str) -> str:
    return f"{dotted} was a part of ElasticDL 0.2; {successor(dotted)}; {PAGE} says more"


@contextmanager
def importable() -> Iterator[None]:
    """Let the old names be imported meanwhile."""
    finder = EarlierNames()
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        _forget()


def _forget() -> None:
    """Take the modules away that were found here, from their packages, too."""
    for name, module in [*sys.modules.items()]:
        if not isinstance(getattr(getattr(module, "__spec__", None), "loader", None), EarlierNames):
            continue
        del sys.modules[name]
        package, _, last = name.rpartition(".")
        vars(sys.modules[package]).pop(last, None) if package in sys.modules else None
