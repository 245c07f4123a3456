"""Write the pages of `docs/reference/` that are made from the code: the settings.

`make docs` writes them, `make check` runs this with `--check`, which changes nothing and fails if a page is not what it would write.
"""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

from elasticdl.spec.jobspec import SETTINGS
from elasticdl.spec.setting import Setting

REFERENCE = Path(__file__).resolve().parent / "reference"

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
    default = "required" if setting.required else f"default {_default(setting)}"
    return f"**`{setting.name}`**{unit}: {setting.what}\n*Takes {setting.kind.expected}; {default}.* {setting.why}\n"


def _default(setting: Setting) -> str:
    written = setting.kind.write(setting.default)
    if isinstance(written, bool):
        return f"`{str(written).lower()}`"
    return f"`{written}`" if written not in ("", {}) else "empty"


PAGES = {"settings.md": settings_page}


def main(arguments: list[str]) -> int:
    """Write the pages, or with `--check` compare them; the exit code is 1 if one is not current."""
    stale = []
    for name, page in PAGES.items():
        path, text = REFERENCE / name, page()
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
