"""`%%elasticdl` in a notebook, after `%load_ext elasticdl`: the cell is a script, and its data frames are tables.

The line has the options of `elasticdl sql` and the settings of its jobs: `%%elasticdl --database=sqlite:///hr.db --num_workers=4`. The
answer is the value of the cell, so it is shown as a table.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elasticdl.errors import BadInput, BadSetting, Interrupted
from elasticdl.query.answer import Answer
from elasticdl.query.run import run
from elasticdl.spec.edge import Given

_FRAMES = {"pandas": "DataFrame", "polars": "DataFrame", "pyarrow": "Table"}
_OPTION = re.compile(r"--([\w-]+)(?:=(.*))?", re.DOTALL)
_OWN = ("database", "database_secret", "store", "dry_run")


def load_ipython_extension(shell: Any) -> None:
    """Add the magic to a shell of IPython."""

    def elasticdl(line: str, cell: str | None = None) -> Answer | None:
        """Run statements of SQL that train and use models; options are those of `elasticdl sql`."""
        try:
            options, rest = _options(line)
            text = cell if cell is not None else rest
            return _run(text, options, shell.user_ns)
        except (BadInput, Interrupted) as error:
            print(f"error: {error}", file=sys.stderr)  # a traceback of this package would hide it
            return None

    shell.register_magic_function(elasticdl, "line_cell", "elasticdl")


def _run(text: str, options: Mapping[str, str], names: Mapping[str, Any]) -> Answer:
    database, store = options.get("database"), options.get("store")
    secret = options.get("database_secret", "")
    is_duckdb = database is None or database.startswith("duckdb:")
    return run(
        text,
        flags={name: Given(value, f"--{name}") for name, value in options.items() if name not in _OWN},
        tell=lambda line: print(line, file=sys.stderr),
        filename="cell",
        database=database,
        database_secret=secret,
        tables=_frames(text, names) if is_duckdb and not secret else None,
        store=Path(store) if store else None,
        dry_run="dry_run" in options,
    )


def _frames(text: str, names: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data frames whose names are words of a text."""
    return {name: names[name] for name in re.findall(r"[^\W\d]\w*", text) if _is_frame(names.get(name))}


def _is_frame(value: object) -> bool:
    package = type(value).__module__.split(".")[0]
    return _FRAMES.get(package) == type(value).__name__


def _options(line: str) -> tuple[dict[str, str], str]:
    """Return the options at the beginning of a line, and what follows them. Raises BadSetting."""
    options: dict[str, str] = {}
    rest = line.strip()
    while rest.startswith("--"):
        word, _, rest = rest.partition(" ")
        match = _OPTION.fullmatch("".join(shlex.split(word)))
        if match is None:
            raise BadSetting(f"{word!r} is no option; write --name=value")
        options[match[1].replace("-", "_")] = "true" if match[2] is None else match[2]
        rest = rest.lstrip()
    return options, rest
