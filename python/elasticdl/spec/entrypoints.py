"""What other packages add: objects that they name in an entry point group, found by their names."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from elasticdl.errors import BadSetting

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def names(group: str) -> list[str]:
    """Return the names in a group."""
    return sorted(_entries(group))


def find(group: str, name: str, flag: str) -> Any:
    """Return the object of a name in a group, None if there is none. Raises BadSetting, naming the flag, if it can't be loaded."""
    entry = _entries(group).get(name)
    if entry is None:
        return None
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        raise BadSetting(f"--{flag}: {name} ({entry.value}) can't be loaded: {error}") from error


@cache
def _entries(group: str) -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # not at the top: `elasticdl --help` needs none

    return {entry.name: entry for entry in entry_points(group=group)}
