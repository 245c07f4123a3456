"""Opening an address in the person's browser, where there is one.

The address has a token in it, and other users see the arguments of processes: so the browser is given a file that only its owner can
read, which leads to the address.
"""

from __future__ import annotations

import html
import os
import sys
import webbrowser
from pathlib import Path

from elasticdl.files.drafts import replace_file
from elasticdl.files.permissions import PRIVATE


def show(address: str, folder: Path) -> bool:
    """Open an address by way of a file in `folder`; return whether there is a browser to do it."""
    has_screen = sys.platform == "darwin" or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
    if not has_screen:
        return False
    path = folder / "page.html"
    target = html.escape(address, quote=True)
    replace_file(
        path,
        f'<!doctype html><meta http-equiv="refresh" content="0; url={target}"><a href="{target}">page</a>\n',
        PRIVATE,
    )
    return webbrowser.open(path.as_uri())
