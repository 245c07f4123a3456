"""`make bench-elastic`: elastic jobs beside gangs and beside a service, in the pods of a real cluster.

It needs root, what `make setup-cluster` installs, and a machine that does nothing else. All experiments take two hours, each less than
ten minutes with `--short`, after the image has been built once. Figures of the short form are lower: workers that start on two cores take
most of a minute, whatever the length of the jobs. With `--record` what was measured replaces what the documentation has of an experiment.
"""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks import recorded
from benchmarks.elastic.batch import Sizes, Way
from benchmarks.elastic.cluster import cluster
from benchmarks.elastic.jobs import ROOT
from benchmarks.elastic.outcome import Outcome
from benchmarks.elastic.telling import draw
from elasticdl.cluster.kubernetes.api import Api
from tests.kubernetes import testbed
from tests.kubernetes.image import missing_tools

EXPERIMENTS = ("two", "service", "eight")
"""Modules with WAYS, the sizes FULL and SHORT, `run(api, way, sizes, folder) -> Outcome`, and, of all outcomes, `table`, `verdicts`, and
`mistakes`, which has to be empty."""
BENCH = ROOT / ".bench"


def measure(name: str, api: Api, ways: Sequence[Way], sizes: Sizes, folder: Path, commit: str) -> bool:
    """Run an experiment, print its figures and write them to `.bench`; tell whether all that must be is. A commit's are recorded."""
    module: Any = importlib.import_module(f"benchmarks.elastic.{name}")
    began = time.monotonic()
    outcomes = []
    for way in ways:
        outcomes.append(module.run(api, way, sizes, folder / name / way.name))
        print(f"{name}: {way.name} took {outcomes[-1].makespan:.0f} s", file=sys.stderr, flush=True)
    seconds = round(time.monotonic() - began)
    table, bars, mistakes = module.table(outcomes), module.verdicts(outcomes), module.mistakes(outcomes)
    BENCH.mkdir(exist_ok=True)
    picture = BENCH / f"elastic-{name}.svg"
    write(outcomes, sizes, BENCH / f"elastic-{name}.json")
    draw(outcomes, picture, sizes.chunk_seconds)
    doc = module.__doc__.partition("\n")[0]
    print(f"{doc}\n\n{table}\n")
    for outcome in outcomes:
        print(f"{outcome.way}: the machine's processors were idle for {outcome.idle:.0%} of the time")
    for bar in bars:
        print(f"{bar.verdict:5} {bar.what}: {bar.figure}")
    for mistake in mistakes:
        print(f"wrong {mistake}")
    print(f"the picture is {picture}, all times are beside it; {name} took {seconds} s\n", flush=True)
    if commit and not mistakes:
        about = f"{doc} Sizes: {sizes.seconds:g} s, a chunk takes {sizes.chunk_seconds:g} s."
        part = recorded.Part(
            name, about, recorded.today(), commit, recorded.machine(), seconds, table, tuple(bars)
        )
        recorded.save(part, EXPERIMENTS, recorded.ELASTIC)
        shutil.copyfile(picture, recorded.ELASTIC.with_name(picture.name))
    return not mistakes and all(bar.verdict != "short" for bar in bars)


def write(outcomes: Sequence[Outcome], sizes: Sizes, path: Path) -> None:
    """Write all times of an experiment as JSON."""
    body = {**asdict(sizes), "outcomes": [{**asdict(one), "used": one.used} for one in outcomes]}
    path.write_text(json.dumps(body))


def main() -> int:
    """Run the wanted experiments in a cluster of their own; the exit code is 1 if something is short of what must be."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.elastic",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "experiments",
        nargs="*",
        metavar="EXPERIMENT",
        help=f"one of {', '.join(EXPERIMENTS)}; all if none is named",
    )
    parser.add_argument(
        "--short", action="store_true", help="the short form: each experiment in less than ten minutes"
    )
    parser.add_argument(
        "--seconds", type=float, help="time of one job's chunks with all its workers, or of the day"
    )
    parser.add_argument("--chunk-seconds", type=float, help="time of one chunk")
    parser.add_argument("--way", help="one of the ways of an experiment alone")
    parser.add_argument(
        "--image", type=Path, help="archive of the image; built if not given, which takes minutes"
    )
    parser.add_argument("--record", action="store_true", help="keep the figures in the documentation")
    options = parser.parse_args()
    plan = []
    for name in options.experiments or EXPERIMENTS:
        if name not in EXPERIMENTS:
            parser.error(f"there is no {name}; experiments are {', '.join(EXPERIMENTS)}")
        module: Any = importlib.import_module(f"benchmarks.elastic.{name}")
        ways = [way for way in module.WAYS if options.way in (None, way.name)]
        if not ways:
            parser.error(
                f"{name} has no way {options.way}; ways are {', '.join(way.name for way in module.WAYS)}"
            )
        sizes = module.SHORT if options.short else module.FULL
        given = {"seconds": options.seconds, "chunk_seconds": options.chunk_seconds}
        plan.append((name, ways, replace(sizes, **{key: value for key, value in given.items() if value})))
    commit = ""
    if options.record:
        if options.way:
            parser.error("figures of one way alone mean nothing; record those of all")
        try:
            commit = recorded.commit()
        except RuntimeError as error:
            parser.error(str(error))
    reason = testbed.missing() or ("" if options.image else missing_tools())
    if reason:
        print(f"benchmarks.elastic: {reason}", file=sys.stderr)
        return 2
    folder = Path(tempfile.mkdtemp(prefix="edl-elastic-"))
    folder.chmod(0o755)
    try:
        with cluster(folder, options.image) as api:
            met = [measure(name, api, ways, sizes, folder, commit) for name, ways, sizes in plan]
        return 0 if all(met) else 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
