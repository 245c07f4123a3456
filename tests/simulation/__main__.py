"""Run schedules from the command line.

``python -m tests.simulation --seed N --trace`` replays one schedule, event by event;
``python -m tests.simulation --schedules 100000 --seed N`` runs many, over all cores, and a twentieth as many of jobs with parameter
servers, which take longer, of jobs that evaluate or predict, and of programs with training loops; ``--servers``, ``--tasks`` and
``--programs`` mean these alone.
"""

from __future__ import annotations

import argparse
import sys
import time
from types import ModuleType

from tests.simulation import schedules
from tests.simulation.oracle import Violation
from tests.simulation.programs import schedules as of_programs
from tests.simulation.servers import schedules as of_servers
from tests.simulation.tasks import schedules as of_tasks

SHARE = 20
"""For so many schedules there is one more of a job with parameter servers, of a job that evaluates or predicts, and of programs."""

KINDS = {"servers": of_servers, "tasks": of_tasks, "programs": of_programs}
"""By option."""


def main() -> int:
    """Run what the command line says; return the number of failed schedules, at most 100."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--schedules", type=int, default=1, help="how many")
    parser.add_argument("--trace", action="store_true", help="print every event of one schedule")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--servers", action="store_true", help="jobs with parameter servers only")
    only.add_argument("--tasks", action="store_true", help="jobs that evaluate or predict only")
    only.add_argument("--programs", action="store_true", help="programs with training loops only")
    arguments = parser.parse_args()
    chosen = next((name for name in KINDS if getattr(arguments, name)), "")
    if arguments.trace:
        kind = KINDS.get(chosen, schedules)
        print(kind.plan_of(arguments.seed))
        try:
            events = kind.run(arguments.seed, trace=print)
        except Violation as violation:
            print(f"VIOLATION: {violation}")
            return 1
        print(f"seed {arguments.seed}: {events} events, no violation")
        return 0
    first, count = arguments.seed, arguments.schedules
    if chosen:
        return min(_many(KINDS[chosen], first, count, f" --{chosen}"), 100)
    failed = _many(schedules, first, count, "")
    for name, kind in KINDS.items():
        failed += _many(kind, first, -(-count // SHARE), f" --{name}")
    return min(failed, 100)


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
