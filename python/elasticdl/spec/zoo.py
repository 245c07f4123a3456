"""Where the imports of a model zoo's files lead: by the zoo's own names, as far as nothing that is installed has the same ones."""

from __future__ import annotations

import ast
import importlib.util
import os
import warnings
from pathlib import Path


def zoo_name(directory: Path) -> str:
    """Return the name by which a model zoo can be imported: its directory's, of a link the link's own."""
    return os.path.basename(os.path.abspath(directory)) or "model_zoo"  # noqa: PTH100, PTH119 (links keep their names)


def resolve(model_zoo: str | Path, dotted: str) -> tuple[Path, str]:
    """Return file and symbol that `a.b.symbol` names: MODEL_ZOO/a/b.py and `symbol`."""
    *folders, module, symbol = dotted.split(".")
    return Path(model_zoo).joinpath(*folders, f"{module}.py"), symbol


def leads_to(name: str, places: set[Path]) -> bool:
    """Tell whether a name without dots is that of one of `places` and of nothing else."""
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # a module without a spec, such as the program that runs
        return False
    if found is None:
        return True
    found_at = found.submodule_search_locations or [found.origin or ""]
    return {Path(place).resolve() for place in found_at} <= {place.resolve() for place in places}


def parse(path: Path) -> ast.Module:
    """Return a file's syntax tree, without Python's warnings. Raises OSError, SyntaxError, ValueError, RecursionError, MemoryError."""
    source = path.read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source, str(path))


def imported_file(zoo: Path, importer: Path, module: str) -> Path | None:
    """Return the file of the zoo that a module's name leads to in `importer`, None if there is none or something else may be meant.

    `module`: as it is written after `from`, with its dots.
    """
    found = _imported(zoo, importer, module)
    if found is None:
        return None
    file = found.with_name(f"{found.name}.py")
    return file if _is_inside(zoo, file) and not found.is_dir() else None


def imported_package(zoo: Path, importer: Path, module: str) -> Path | None:
    """Return the `__init__.py` of the zoo's package that a module's name leads to in `importer`; as `imported_file`."""
    found = _imported(zoo, importer, module)
    if found is None:
        return None
    file = found / "__init__.py"
    return file if _is_inside(zoo, file) else None


def _is_inside(zoo: Path, file: Path) -> bool:
    return file.resolve().is_relative_to(zoo.resolve()) and file.is_file()


def _imported(zoo: Path, importer: Path, module: str) -> Path | None:
    """Return the path without suffix that a module's name leads to."""
    parts = module.lstrip(".").split(".")
    level = len(module) - len(module.lstrip("."))
    if level:
        found = importer.parents[level - 1].joinpath(*parts) if level <= len(importer.parents) else None
    elif (zoo / parts[0]).exists() or (zoo / f"{parts[0]}.py").exists():
        top = zoo / parts[0]
        found = zoo.joinpath(*parts) if leads_to(parts[0], {top, top.with_suffix(".py")}) else None
    elif parts[0] == zoo_name(zoo) and leads_to(parts[0], {zoo}):
        found = zoo.joinpath(*parts[1:])
    else:
        found = None
    return found if found is not None and found.name else None
