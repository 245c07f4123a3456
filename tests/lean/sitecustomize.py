"""Loaded by every Python process that tests start, and by those that run tests: they lack what their libraries import for nothing.

A process of a job lacks what an image lacks that is made for jobs: Keras imports these if they are there, and trains the same without
them. They are here because programs that make data, and people, need them. In all processes Keras and TensorFlow find neither
scikit-learn nor JAX nor Matplotlib, for wrappers, conversions and pictures that no test uses; everybody else finds them.
"""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import ClassVar


class Lean(PathFinder):
    """Finds no module of some names, as where they are not installed."""

    nowhere: frozenset[str] = (
        frozenset({"IPython", "matplotlib", "pandas"}) if "ELASTICDL_JOB" in os.environ else frozenset()
    )
    not_for: ClassVar = {"IPython": "keras", "jax": "tensorflow", "matplotlib": "keras", "sklearn": "keras"}
    """The package that does not find a module which others do."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return nothing for these names."""
        if fullname in cls.nowhere or (fullname in cls.not_for and importer() == cls.not_for[fullname]):
            return None
        return super().find_spec(fullname, path, target)


def importer() -> str:
    """Return the package whose statement imports what is looked for now."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(
        (__name__, "importlib", "_frozen_importlib")
    ):
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals.get("__name__", "")).partition(".")[0]


if PathFinder in sys.meta_path:
    sys.meta_path[sys.meta_path.index(PathFinder)] = Lean
