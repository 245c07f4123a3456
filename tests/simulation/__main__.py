"""Run schedules from the command line.

``python -m tests.simulation --seed N --trace`` replays one schedule, event by event;
``python -m tests.simulation --schedules 100000 --seed N`` runs many, over all cores, and a twentieth as many of jobs with parameter
servers, which take longer, and of jobs that evaluate or predict; ``--servers`` and ``--tasks`` mean these alone.
"""

from __future__ import annotations

import argparse
import sys
import time
from types import ModuleType

from tests.simulation import schedules
from tests.simulation.oracle import Violation
from tests.simulation.servers import schedules as of_servers
from tests.simulation.tasks import schedules as of_tasks

SHARE = 20
"""For so many schedules there is one more of a job with parameter servers, and one of a job that evaluates or predicts."""


def main() -> int:
    """Run what the command line says; return the number of failed schedules, at most 100."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--schedules", type=int, default=1, help="how many")
    parser.add_argument("--trace", action="store_true", help="print every event of one schedule")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--servers", action="store_true", help="jobs with parameter servers only")
    only.add_argument("--tasks", action="store_true", help="jobs that evaluate or predict only")
    arguments = parser.parse_args()
    if arguments.trace:
        kind = of_servers if arguments.servers else of_tasks if arguments.tasks else schedules
        print(kind.plan_of(arguments.seed))
        try:
            events = kind.run(arguments.seed, trace=print)
        except Violation as violation:
            print(f"VIOLATION: {violation}")
            return 1
        print(f"seed {arguments.seed}: {events} events, no violation")
        return 0
    first, count = arguments.seed, arguments.schedules
    if arguments.servers:
        return min(_many(of_servers, first, count, " --servers"), 100)
    if arguments.tasks:
        return min(_many(of_tasks, first, count, " --tasks"), 100)
    failed = _many(schedules, first, count, "")
    failed += _many(of_servers, first, -(-count // SHARE), " --servers")
    return min(failed + _many(of_tasks, first, -(-count // SHARE), " --tasks"), 100)


def _many(kind: ModuleType, first: int, count: int, option: str) -> int:
    """Run schedules of one kind and print what fails; return how many."""
    began, failed, events = time.monotonic(), 0, 0
    for seed, length, violation in schedules.many(first, count, kind.attempt):
        events += length
        if violation is not None:
            failed += 1
            print(f"seed {seed}: {violation}", flush=True)
            print(f"  replay: python -m tests.simulation{option} --seed {seed} --trace", flush=True)
    seconds = time.monotonic() - began
    print(f"{count} schedules{option}, {events} events, {failed} violations, {seconds:.0f} s")
    return failed


if __name__ == "__main__":
    sys.exit(main())
