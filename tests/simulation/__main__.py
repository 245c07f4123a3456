"""Run schedules from the command line.

``python -m tests.simulation --seed N --trace`` replays one schedule, event by event;
``python -m tests.simulation --schedules 100000 --seed N`` runs many, over all cores.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation import schedules
from tests.simulation.oracle import Violation


def main() -> int:
    """Run what the command line says; return the number of failed schedules, at most 100."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--schedules", type=int, default=1, help="how many")
    parser.add_argument("--trace", action="store_true", help="print every event of one schedule")
    arguments = parser.parse_args()
    if arguments.trace:
        print(schedules.plan_of(arguments.seed))
        try:
            events = schedules.run(arguments.seed, trace=print)
        except Violation as violation:
            print(f"VIOLATION: {violation}")
            return 1
        print(f"seed {arguments.seed}: {events} events, no violation")
        return 0
    began, failed, events = time.monotonic(), 0, 0
    for seed, length, violation in schedules.many(arguments.seed, arguments.schedules):
        events += length
        if violation is not None:
            failed += 1
            print(f"seed {seed}: {violation}", flush=True)
            print(f"  replay: python -m tests.simulation --seed {seed} --trace", flush=True)
    seconds = time.monotonic() - began
    print(f"{arguments.schedules} schedules, {events} events, {failed} violations, {seconds:.0f} s")
    return min(failed, 100)


if __name__ == "__main__":
    sys.exit(main())
