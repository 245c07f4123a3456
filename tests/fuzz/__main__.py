"""Read damaged input for a while: `python -m tests.fuzz --seconds 60`; each of the readers has so long.

The first number is taken from the clock, so that each run looks elsewhere; a failure names the number, and its input is kept in the corpus.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time

from tests.fuzz.targets import TARGETS, keep


def main() -> int:
    """Return 1 if anything came out that should not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--from", dest="first", type=int, default=int(time.time()) * 1_000_000)
    parser.add_argument("targets", nargs="*", default=list(TARGETS), metavar="|".join(TARGETS))
    arguments = parser.parse_args()
    failed = False
    for name in arguments.targets:
        target, until = TARGETS[name], time.monotonic() + arguments.seconds
        for number in itertools.count(arguments.first):
            if time.monotonic() >= until:
                print(f"{name}: {number - arguments.first:,} inputs, all read or refused")
                break
            given = target.case(number)
            try:
                target.takes(given)
            except Exception as error:
                kept = keep(target, given)
                print(f"{name}, case {number}: {error!r}; kept as {kept}")
                failed = True
                break
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
