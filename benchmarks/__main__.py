"""`make bench`: every table, each figure beside its peer measured in the same run.

Each part can be run alone (`python -m benchmarks ring`); a part that fails says so and does not keep the others from running. With
`--smallest` each part does as little as it can: that it runs is what is found out, its figures mean nothing, and no peer is installed.
With `--record` what was measured replaces what the documentation has of these parts: `make docs` makes the page and its picture from it.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import sys
import time
from pathlib import Path

from benchmarks import recorded

PARTS = (
    "recovery",
    "fit",
    "replacements",
    "goodput",
    "loops",
    "modelfiles",
    "samples",
    "inputs",
    "ring",
    "hosts",
    "servers",
    "masters",
    "scale",
    "streams",
    "jobs",
    "sql",
    "checkpoints",
)
"""Modules with `rows(sizes) -> list`, `table(rows) -> str`, and the sizes FULL and SMALLEST; each row has a `verdict`: aim, must, short, or
missing if there was no peer to compare with, and `bars` for the picture.
"""


def main() -> int:
    """Print the tables of the wanted parts (all if none is named); the exit code is 1 if a part failed, or a row is not what it must be."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"one of {', '.join(PARTS)}; all if none is named"
    )
    parser.add_argument(
        "--smallest", action="store_true", help="try whether the parts run, with the smallest sizes"
    )
    parser.add_argument("--record", action="store_true", help="keep the figures in the documentation")
    options = parser.parse_args()
    unknown = [name for name in options.parts if name not in PARTS]
    if unknown:
        print(f"benchmarks: there is no {', '.join(unknown)}; parts are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    commit = ""
    if options.record:
        if options.smallest:
            parser.error("figures of the smallest sizes mean nothing; record full ones")
        try:
            commit = recorded.commit()
        except RuntimeError as error:
            parser.error(str(error))
    cores = len(os.sched_getaffinity(0))
    control = Path("/proc/sys/net/ipv4/tcp_congestion_control")
    congestion = control.read_text().strip() if control.exists() else "unknown"
    print(
        f"{cores} cores, one host, Python {platform.python_version()}; the system's congestion control is {congestion}\n"
    )
    failed, short, missing = 0, 0, 0
    for name in options.parts or PARTS:
        began = time.monotonic()
        try:
            module = importlib.import_module(f"benchmarks.{name}")
            rows = module.rows(module.SMALLEST if options.smallest else module.FULL)
        except Exception as error:  # the other tables are still worth having
            print(f"{name}: failed after {time.monotonic() - began:.0f} s: {error}\n", flush=True)
            failed += 1
            continue
        table, seconds = module.table(rows), round(time.monotonic() - began)
        bars = tuple(bar for row in rows for bar in row.bars)
        print(f"{table}\n\n{name} took {seconds} s\n", flush=True)
        if options.record:
            about = (module.__doc__ or "").partition("\n")[0]
            part = recorded.Part(
                name, about, recorded.today(), commit, recorded.machine(), seconds, table, bars
            )
            recorded.save(part, PARTS)
        short += sum(row.verdict == "short" for row in rows)
        missing += sum(row.verdict == "missing" for row in rows)
    if options.smallest:
        print(f"parts that failed: {failed}; the figures mean nothing at these sizes")
        return 1 if failed else 0
    counts = {
        "parts failed": failed,
        "short of what must be": short,
        "not compared, as a peer is missing": missing,
    }
    found = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    print(found or "all that must be is met")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
