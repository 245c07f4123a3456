"""Loaded by every Python process that tests start: those of a job lack what an image lacks that is made for jobs.

Keras imports these if they are there, and trains the same without them: a quarter of the start of each worker. They are here because
programs that make data, and people, need them.
"""

import os
import sys


class Absent:
    """Finds no module of these names, as where they are not installed; pyarrow takes one that is None in `sys.modules` for a real one."""

    names = frozenset({"IPython", "matplotlib", "pandas"})

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> None:
        """Raise ModuleNotFoundError for these names; leave others to those that are asked next."""
        if name in cls.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


if "ELASTICDL_PROCESS" in os.environ:
    sys.meta_path.insert(0, Absent)
