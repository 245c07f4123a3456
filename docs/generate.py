"""Write what the documentation has from the code: settings, drawings of the architecture, the table of its rooms; and from benchmarks.

`make docs` writes them, `make check` runs this with `--check`, which changes nothing and fails if a file is not what it would write.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

from docs import figures, house
from elasticdl.spec.jobspec import REQUIRED, SETTINGS, JobKind, settings_of
from elasticdl.spec.setting import Setting

DOCS = Path(__file__).resolve().parent
ARCHITECTURE = DOCS / "concepts" / "architecture.md"

_HEAD = """\
# Settings

Every setting of a job, made from the code by `make docs`. The command line takes them as flags (`--num_workers=3`; hyphens instead of
underscores are accepted), a job file as YAML keys (`num_workers: 3`), Python as keyword arguments (`elasticdl.train(num_workers=3, …)`).
"""


def settings_page() -> str:
    """Return `settings.md`."""
    parts = [_HEAD]
    for group, settings in groupby(SETTINGS.values(), key=lambda one: one.group):
        parts.append(f"## {group.capitalize()}\n")
        parts += [_entry(setting) for setting in settings]
    return "\n".join(parts)


def _entry(setting: Setting) -> str:
    unit = f" ({setting.unit})" if setting.unit else ""
    users = [kind for kind in JobKind if setting.name in settings_of(kind)]
    needing = [kind for kind in users if setting.name in REQUIRED[kind]]
    default = "required" if needing == users else f"default {_default(setting)}"
    if needing and needing != users:
        default += f", required by {', '.join(map(_command, needing))}"
    commands = "" if users == [JobKind.TRAIN] else f" Of {', '.join(map(_command, users))}."
    return f"**`{setting.name}`**{unit}: {setting.what}\n*Takes {setting.kind.expected}; {default}.*{commands} {setting.why}\n"


def _command(kind: JobKind) -> str:
    return "`run --work=tasks`" if kind is JobKind.PROCESS else f"`{kind}`"


def _default(setting: Setting) -> str:
    written = setting.kind.write(setting.default)
    if isinstance(written, bool):
        return f"`{str(written).lower()}`"
    return f"`{written}`" if written not in ("", {}) else "empty"


def architecture_page() -> str:
    """Return `architecture.md` with a current table of rooms."""
    page = ARCHITECTURE.read_text(encoding="utf-8")
    between = re.compile(r"(?<=<!-- made by `make docs` -->\n).*?(?=<!-- end -->)", re.S)
    return between.sub(lambda _: f"\n{house.table()}\n", page, count=1)


PAGES: dict[str, Callable[[], str]] = {
    "reference/settings.md": settings_page,
    "concepts/architecture.md": architecture_page,
    "concepts/rooms.svg": house.python_rooms,
    "concepts/core.svg": house.rust_rooms,
    "concepts/chunk.svg": lambda: house.CHUNK,
    "concepts/push.svg": lambda: house.PUSH,
    "reference/benchmarks.md": figures.page,
    "reference/benchmarks.svg": figures.picture,
    "reference/elastic.md": figures.elastic_page,
}


def main(arguments: list[str]) -> int:
    """Write the files, or with `--check` compare them; the exit code is 1 if one is not current."""
    stale = []
    for name, page in PAGES.items():
        path, text = DOCS / name, page()
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(path)
        if arguments != ["--check"]:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path}")
    if stale and arguments == ["--check"]:
        print(f"not current: {', '.join(map(str, stale))}; run `make docs`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
