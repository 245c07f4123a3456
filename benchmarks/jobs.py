"""What a job adds: an evaluation beside `model.evaluate`, a gate beside a step, and an open page beside a closed one.

Run it alone: `python -m benchmarks jobs`. Evaluations are those of a job of two workers that trains the model zoo's digits; the master says
how long each took. The peer evaluates the same model over the same file by Keras alone, with as many threads as a worker has; that with all
cores stands beside it. The page is asked for as its script does it, by a thread of this process, and the master's processor time is taken
with it and without it in turns. The gate is that of a model which computes next to nothing and has one minibatch of validation data: what
a gate adds to the time between two steps, the evaluation of that minibatch included.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import fit
from benchmarks.masters import children
from benchmarks.recovery import PATIENCE, commits, gaps, job, tiny_data, wait_for
from benchmarks.servers import ROOT, Row, busy
from benchmarks.servers import table as table
from elasticdl.cluster.local.place import JobPlace
from elasticdl.control.protocol.status import EventKind, JobStatus, count_of
from elasticdl.control.transport.client import JobClient
from elasticdl.errors import MasterAway

BATCH = 64
EVERY = 20
"""Steps from one gate to the next."""
AT_WORK = ("training", "evaluating")
LOOK = 0.7
"""Seconds between two looks of the page's script; every third one asks for more."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Attributes:
        workers: of the jobs.
        records: digits that are evaluated.
        evaluations: whose seconds count, after one that warms up; of the peer as many.
        turns: of the page, closed and open.
        seconds: of each.
        gates: that count.
        peers: turns of Keras alone, before the job and after it.
        pace: seconds by which a step of the tiny model is made longer.
    """

    workers: int = 2
    records: int = 8192
    evaluations: int = 5
    turns: int = 3
    seconds: float = 8.0
    gates: int = 40
    peers: int = 2
    pace: float = 0.0


FULL = Sizes()
SMALLEST = Sizes(
    workers=1, records=64, evaluations=1, turns=1, seconds=0.5, gates=1, peers=1, pace=0.01
)  # fmt: skip


def rows(sizes: Sizes = FULL) -> list[Row]:
    """Measure both jobs. Raises RuntimeError if one fails or hangs."""
    with tempfile.TemporaryDirectory(prefix="edl-") as folder:
        directory = Path(folder)
        os.environ["XDG_STATE_HOME"] = str(directory / "state")
        fit.write_records(directory / "images.tfrecord", sizes.records)
        return [*digits(directory, sizes), gate(directory, sizes)]


# ------------------------------------------------------------------ evaluation and page


def digits(directory: Path, sizes: Sizes) -> list[Row]:
    """Return the rows on evaluations and on the page of a job that trains digits."""
    cores = len(os.sched_getaffinity(0))
    each = max(1, cores // sizes.workers)
    peers: dict[int, list[float]] = {each: [], cores: []}

    def peer() -> None:
        for threads, seconds in peers.items():
            seconds += evaluated_by_keras(directory, threads, sizes)

    peer()
    data = directory / "train"
    data.mkdir()
    shutil.copy(directory / "images.tfrecord", data)
    settings: dict[str, Any] = {
        "model_zoo": ROOT / "model_zoo",
        "model_def": fit.MODEL,
        "validation_data": directory / "images.tfrecord",
        "evaluation_steps": 1,
        "minibatch_size": BATCH,
    }
    with job(directory, data, sizes.workers, **settings) as (place, _):
        ours = statistics.median(evaluations(place, sizes)[1:])
        closed, opened = page(place, sizes)
    for _ in range(sizes.peers - 1):
        peer()
    equal, most = (statistics.median(peers[threads]) for threads in (each, cores))
    return [
        Row(
            f"evaluation of {sizes.records:,} digits, {count_of(sizes.workers, 'worker')} with {count_of(each, 'thread')} each",
            f"{ours:.2f} s", f"model.evaluate {equal:.2f} s with as many threads, {most:.2f} s with {cores}", equal / ours, 1.6, 1.9,
        ),
        Row(
            "the master's processor time, page open", f"{opened:.2f} % of a core", f"closed {closed:.2f} %", opened - closed, 1, 0.5, " %"
        ),
    ]  # fmt: skip


def evaluations(place: JobPlace, sizes: Sizes) -> list[float]:
    """Return the seconds of evaluations of the whole group. Raises RuntimeError if there are none."""
    found: list[float] = []
    whole, until = False, time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            with JobClient(place.control_address, place.token()) as client:
                for seen in client.watch(time.time()):
                    if isinstance(seen, JobStatus):
                        whole = sum(one.state in AT_WORK for one in seen.workers) == sizes.workers
                    elif whole and seen.kind == EventKind.EVALUATED and seen.seconds is not None:
                        found.append(seen.seconds)
                    if len(found) > sizes.evaluations:
                        return found
                    if time.monotonic() > until:
                        break
        except MasterAway:
            time.sleep(0.1)
    raise RuntimeError("the job does not evaluate")


def evaluated_by_keras(directory: Path, threads: int, sizes: Sizes) -> list[float]:
    """Return the seconds of evaluations in a process of their own."""
    command = [sys.executable, "-m", "benchmarks.jobs", str(directory), str(threads), str(sizes.evaluations)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=ROOT)
    if run.returncode:
        raise RuntimeError(f"the evaluation by Keras failed:\n{run.stderr[-4000:]}")
    return [float(one) for one in json.loads(run.stdout.splitlines()[-1])]


def be_keras(directory: Path, threads: int, evaluations: int) -> list[float]:
    """Time `model.evaluate`, as a plain script would write it, after one that warms up."""
    from elasticdl.keras import runtime

    runtime.start(threads)
    import tensorflow as tf

    from elasticdl.keras.framework import FRAMEWORK

    user = FRAMEWORK.load(fit.spec(fit.Case(BATCH, "auto"), directory))
    model = user.model()
    assert user.eval_metrics_fn is not None
    model.compile(user.optimizer(), user.loss, metrics=[*user.eval_metrics_fn().values()])
    batches = tf.data.TFRecordDataset(str(directory / "images.tfrecord")).batch(BATCH)
    dataset = user.feed(batches, "evaluation", None).prefetch(tf.data.AUTOTUNE)
    times = []
    for _ in range(evaluations + 1):
        began = time.perf_counter()
        model.evaluate(dataset, verbose=0)
        times.append(time.perf_counter() - began)
    return times[1:]


def page(place: JobPlace, sizes: Sizes) -> tuple[float, float]:
    """Return the percent of a core that the master takes with a closed page, and with an open one."""
    until = time.monotonic() + PATIENCE
    while not place.page_path.exists():
        if time.monotonic() > until:
            raise RuntimeError("the job has no page")
        time.sleep(0.1)
    master = children()["master"]
    shares: tuple[list[float], list[float]] = ([], [])
    with ThreadPoolExecutor(1) as readers:
        for _ in range(sizes.turns):
            for is_open, found in zip((False, True), shares, strict=True):
                stop = threading.Event()
                address = json.loads(place.page_path.read_text())
                reader = readers.submit(read, address, stop) if is_open else None
                before, began = busy(master), time.monotonic()
                time.sleep(sizes.seconds)
                found.append(100 * (busy(master) - before) / (time.monotonic() - began))
                stop.set()
                if reader is not None:
                    reader.result()  # a page that can't be read costs nothing
    closed, opened = map(statistics.median, shares)
    return closed, opened


def read(page: dict[str, str], stop: threading.Event) -> None:
    """Ask for what a page shows that is open, as often as its script does, until `stop`."""
    looks, last, version = 0, 0.0, None

    def ask(path: str) -> bytes:
        request = urllib.request.Request(
            f"{page['address']}/api/v1/{path}", headers={"Authorization": f"Bearer {page['token']}"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            body: bytes = answer.read()
            return body

    while not stop.is_set():
        seen = json.loads(ask("status"))
        if seen["timeline"] != version:
            version = json.loads(ask("timeline"))["version"]
        if seen["last_event"] > last:
            ask(f"events?since={last}")
            last = seen["last_event"]
        if looks % 3 == 0:
            ask("series")
            ask("logs")
        looks += 1
        stop.wait(LOOK)


# ------------------------------------------------------------------ a gate


def gate(directory: Path, sizes: Sizes) -> Row:
    """Return the row on gates of the tiny model."""
    settings: dict[str, Any] = {
        "validation_data": tiny_data(directory / "judged", 16),
        "evaluation_steps": EVERY,
        "evaluate_at_epoch_end": "false",
    }
    data = tiny_data(directory / "values")
    with job(directory, data, sizes.workers, sizes.pace, **settings) as (place, stamps):
        status, _ = wait_for(place, sizes.workers)
        pid = next(worker.pid for worker in status.workers if worker.pid is not None)
        began, until = status.step, time.monotonic() + PATIENCE
        while len(commits(stamps, pid)) < began + (sizes.gates + 2) * EVERY:
            if time.monotonic() > until:
                raise RuntimeError("the job has stopped")
            time.sleep(0.1)
        times = commits(stamps, pid)
    first = -(-began // EVERY) + 1
    at_gates = [number * EVERY for number in range(first, first + sizes.gates)]
    plain = statistics.median(gaps(times, times[began], times[-1]))
    # Line n is of step n + 1; that of a gate may be written before the gate or after it.
    added = [times[step] - times[step - 2] - 2 * plain for step in at_gates]
    took = statistics.median(added)
    return Row(
        f"a gate, {count_of(sizes.workers, 'worker')}, one minibatch of validation data, tiny model",
        f"{1e3 * took:.1f} ms, the longest of {len(added)} {1e3 * max(added):.1f} ms",
        f"a step of {1e3 * plain:.1f} ms",
        1e3 * took,
        20,
        10,
        " ms",
    )


def main() -> None:
    """Evaluate by Keras alone, and print the seconds as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("threads", type=int, help=argparse.SUPPRESS)
    parser.add_argument("evaluations", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    print(json.dumps(be_keras(options.directory, options.threads, options.evaluations)))


if __name__ == "__main__":
    main()
