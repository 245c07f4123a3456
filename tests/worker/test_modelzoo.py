"""What can be imported from a model zoo, under which names, and what it must not hide."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticdl.worker.modelzoo import ModelZoo, open_zoo


@pytest.fixture(autouse=True)
def imports() -> Iterator[None]:
    """Begin without the zoo of an earlier test, and put back what importing changes in this process."""
    for zoo in [one for one in sys.meta_path if isinstance(one, ModelZoo)]:
        zoo.close()
    path, finders, modules = [*sys.path], [*sys.meta_path], {*sys.modules}
    yield
    sys.path[:], sys.meta_path[:] = path, finders
    for name in {*sys.modules} - modules:
        del sys.modules[name]


def files(directory: Path, **sources: str) -> Path:
    """Write files, `a__b` being a/b.py; return the directory."""
    for name, source in sources.items():
        path = directory.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    importlib.invalidate_caches()
    return directory


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A directory of installed packages: a package `digits` and a module `requesting`."""
    (tmp_path / "site" / "digits").mkdir(parents=True)
    (tmp_path / "site" / "digits" / "__init__.py").write_text("whose = 'installed'\n")
    sys.path.append(str(files(tmp_path / "site", requesting="whose = 'installed'")))
    return tmp_path


def test_the_zoo_hides_nothing_that_is_installed(installed: Path) -> None:
    zoo = files(installed / "zoo", requesting="whose = 'zoo'", digits__model="")
    (zoo / "digits" / "__init__.py").write_text("whose = 'zoo'")
    open_zoo(zoo)
    assert importlib.import_module("requesting").whose == "installed"
    assert importlib.import_module("digits").whose == "installed"
    assert sys.path[-1] == str(zoo)


def test_the_zoo_is_importable_by_its_name_and_its_neighbours_are_not(tmp_path: Path) -> None:
    files(tmp_path, neighbour_of_the_zoo="x = 1", some_zoo__parts__layers="from some_zoo.parts import sizes")
    files(tmp_path, some_zoo__parts__sizes="units = 3")
    open_zoo(tmp_path / "some_zoo")
    layers = importlib.import_module("some_zoo.parts.layers")
    assert layers.__file__ == str(tmp_path / "some_zoo" / "parts" / "layers.py")
    assert layers.sizes.units == 3
    assert importlib.import_module("parts.sizes").units == 3  # also as a path below the zoo
    assert str(tmp_path) not in sys.path
    for name in ("neighbour_of_the_zoo", "some_zoo.neighbour_of_the_zoo"):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(name)


def test_a_zoo_that_is_a_package_is_run_when_it_is_imported_by_its_name(tmp_path: Path) -> None:
    zoo = files(tmp_path / "whole_zoo", model="")
    (zoo / "__init__.py").write_text("from whole_zoo import model\n")
    open_zoo(zoo)
    assert importlib.import_module("whole_zoo").model.__name__ == "whole_zoo.model"


def test_a_link_has_its_own_name(tmp_path: Path) -> None:
    files(tmp_path / "zoo-2026-11", model="x = 5")
    (tmp_path / "linked_zoo").symlink_to("zoo-2026-11")
    open_zoo(tmp_path / "linked_zoo")
    assert importlib.import_module("linked_zoo.model").x == 5


def test_a_folder_that_is_a_link_is_the_zoos(tmp_path: Path) -> None:
    files(tmp_path / "shared", linked_part="x = 6")
    zoo = files(tmp_path / "zoo_with_links", model="")
    (zoo / "linked_folder").symlink_to(tmp_path / "shared")
    (zoo / "linked_file.py").symlink_to(tmp_path / "shared" / "linked_part.py")
    opened = open_zoo(zoo)
    assert opened.module_name("linked_folder.linked_part") == "linked_folder.linked_part"
    assert opened.module_name("linked_file") == "linked_file"


def test_an_installed_package_keeps_its_name_from_the_zoo_itself(installed: Path) -> None:
    zoo = open_zoo(files(installed / "digits", requesting="whose = 'zoo'", mine="whose = 'zoo'"))
    assert importlib.import_module("digits").whose == "installed"
    assert zoo.module_name("mine") == "mine"
    name = zoo.module_name("requesting")
    assert name != "requesting"
    assert importlib.import_module(name).whose == "zoo"


@pytest.mark.parametrize("module", ["math", "json", "digits.model", "requesting"])
def test_a_name_that_is_something_else_is_looked_for_below_the_zoo(installed: Path, module: str) -> None:
    zoo = files(installed / "my_zoo", **{module.replace(".", "__"): "whose = 'zoo'"})
    name = open_zoo(zoo).module_name(module)
    assert name == f"my_zoo.{module}"
    assert importlib.import_module(name).whose == "zoo"


def test_the_next_zoo_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    for number in ("1", "2"):
        files(tmp_path / number / "same_zoo", model_of_zoo=f"number = {number}")
    path = [*sys.path]
    for number in ("1", "2"):
        opened = open_zoo(tmp_path / number / "same_zoo")
        assert open_zoo(tmp_path / number / "same_zoo") is opened
        assert importlib.import_module("same_zoo.model_of_zoo").number == int(number)
        assert sys.path == [*path, str(tmp_path / number / "same_zoo")]
    assert sum(isinstance(finder, ModelZoo) for finder in sys.meta_path) == 1
