"""What somebody may have meant, who wrote a name that there is not."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, names: Iterable[str], prefix: str = "") -> str:
    """Return `; did you mean X?`, or nothing if no name is near; `y` is near `Y`."""
    known = list(names)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    near = near or [one for one in known if one.casefold() == name.casefold()]
    return f"; did you mean {prefix}{near[0]}?" if near else ""
