"""A model zoo as a place to import from: after everything that is installed, and by the name of its directory.

The files of a zoo import each other as `mnist.layers`, as a path below the zoo, and as `model_zoo.mnist.layers` where the zoo's directory
is called model_zoo. Only that one name leads there, so nothing else of the directory above can be imported or hides anything.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from elasticdl.spec.zoo import leads_to, zoo_name

_ANY_ZOO = "elasticdl_model_zoo"
"""Name of the zoo as a package where something that is installed has the name of its directory."""


class ModelZoo(MetaPathFinder):
    """The model zoo of this process."""

    def __init__(self, directory: Path) -> None:
        """Nothing can be imported from there before `open`."""
        self.directory = directory.resolve()
        self._name = zoo_name(directory)
        self._path: list[str] = []
        """What `open` added to sys.path: not what a person has put there."""

    def module_name(self, dotted: str) -> str:
        """Return the name under which the file of `a.b` is to be imported: `a.b`, or below the zoo if `a` is something else here."""
        top = self.directory / dotted.partition(".")[0]
        if leads_to(top.name, {top, top.with_suffix(".py")}):
            return dotted
        package = self._name if leads_to(self._name, {self.directory}) else _ANY_ZOO
        return f"{package}.{dotted}"

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the zoo itself, for the import system."""
        if fullname not in (self._name, _ANY_ZOO):
            return None
        init = self.directory / "__init__.py"
        if init.is_file():
            return importlib.util.spec_from_file_location(
                fullname, init, submodule_search_locations=[str(self.directory)]
            )
        found = ModuleSpec(fullname, None, is_package=True)
        found.submodule_search_locations = [str(self.directory)]
        return found

    def open(self) -> None:
        """Make the zoo importable, after everything else."""
        if str(self.directory) not in sys.path:
            self._path = [str(self.directory)]
            sys.path += self._path
        sys.meta_path.append(self)

    def close(self) -> None:
        """Forget the zoo, with what was imported by its name; modules that were imported otherwise stay."""
        sys.meta_path.remove(self)
        sys.path[:] = [entry for entry in sys.path if entry not in self._path]
        for package in (self._name, _ANY_ZOO):
            if list(getattr(sys.modules.get(package), "__path__", ())) == [str(self.directory)]:
                for name in [one for one in list(sys.modules) if f"{one}.".startswith(f"{package}.")]:
                    del sys.modules[name]


def open_zoo(directory: Path) -> ModelZoo:
    """Make a model zoo importable in this process, in place of the one before."""
    zoo = ModelZoo(directory)
    for other in [one for one in sys.meta_path if isinstance(one, ModelZoo)]:
        if other.directory == zoo.directory:
            return other
        other.close()
    zoo.open()
    return zoo
