"""`make bench`: every table, each figure beside its peer measured in the same run.

Each part can be run alone (`python -m benchmarks ring`); a part that fails says so and does not keep the others from running.
"""

from __future__ import annotations

import importlib
import os
import platform
import sys
from pathlib import Path

PARTS = ("recovery", "fit", "ring", "servers")
"""Modules with `rows() -> list` and `table(rows) -> str`; each row has a `verdict`: aim, must or short."""


def main(wanted: list[str]) -> int:
    """Print the tables of the wanted parts (all if none is named); the exit code is 1 if a row is short or a part failed."""
    unknown = [name for name in wanted if name not in PARTS]
    if unknown:
        print(f"benchmarks: there is no {', '.join(unknown)}; parts are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    cores = len(os.sched_getaffinity(0))
    control = Path("/proc/sys/net/ipv4/tcp_congestion_control")
    congestion = control.read_text().strip() if control.exists() else "unknown"
    print(
        f"{cores} cores, one host, Python {platform.python_version()}; the system's congestion control is {congestion}\n"
    )
    short = 0
    for name in wanted or PARTS:
        module = importlib.import_module(f"benchmarks.{name}")
        try:
            rows = module.rows()
        except Exception as error:  # the other tables are still worth having
            print(f"{name}: failed: {error}\n")
            short += 1
            continue
        print(f"{module.table(rows)}\n", flush=True)
        short += sum(row.verdict == "short" for row in rows)
    print(f"{short} short of what must be" if short else "all that must be is met")
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
