"""Make the site of the documentation: its pages with a search, and the reference of the Python API. `conf.py` says how they look."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from sphinx.cmd.build import main as sphinx

ROOT = Path(__file__).resolve().parent.parent
FLAGS = ["--quiet", "--fail-on-warning", "--fresh-env"]
"""Without the last one, what a run has warned of is forgotten in the next."""


def main(folder: str) -> int:
    """Make it in a folder; the exit code is not 0 if anything is wrong with a page."""
    site = Path(folder)
    with tempfile.TemporaryDirectory() as trees:
        code = sphinx([*FLAGS, f"--conf-dir={ROOT / 'docs'}", f"--doctree-dir={trees}", str(ROOT), str(site)])
    if code == 0:
        shutil.copyfile(site / "README.html", site / "index.html")
        print(f"wrote {site / 'index.html'}")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
