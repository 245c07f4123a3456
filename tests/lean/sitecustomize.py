"""Loaded by every Python process that tests start: those of a job lack what an image lacks that is made for jobs.

Keras imports these if they are there, and trains the same without them: a quarter of the start of each worker. They are here because
programs that make data, and people, need them.
"""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


class Lean(PathFinder):
    """Finds no module of these names, as where they are not installed."""

    names = frozenset({"IPython", "matplotlib", "pandas"})

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return nothing for these names."""
        return None if fullname in cls.names else super().find_spec(fullname, path, target)


if "ELASTICDL_JOB" in os.environ:
    sys.meta_path[sys.meta_path.index(PathFinder)] = Lean
