"""Trains, evaluates and predicts with each model file of this folder by the commands, by hand: `python -m tests.compat.running DIRECTORY`.

Two minutes on two processors, so no test does it: `driving.py` has the same models in one process, and `test_jobs.py` two of them as jobs.
Nothing but `--framework` is said to them that ElasticDL 0.2 was not told.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from elasticdl.data.readers.writing import write_recordio
from tests.compat.driving import ZOO, examples, rows

RECORDS = 96
MODELS = {
    "mnist_functional.custom_model": [28, 28],
    "mnist_subclass.CustomModel": [28, 28],
    "cifar10.custom_model": [32, 32, 3],
    "census.custom_model": None,
    "heart.custom_model": None,
    "deepfm.custom_model": None,
}


def write(directory: Path, name: str, side: Sequence[int] | None) -> None:
    """Write records as ElasticDL 0.2 had them: a RecordIO file without a suffix, or CSV with a header."""
    directory.mkdir(parents=True)
    if side is not None:
        write_recordio(directory / "data-00000", examples(RECORDS, side))
        return
    found = rows(name, RECORDS)
    with (directory / f"{name}.csv").open("w", newline="") as file:
        csv.writer(file).writerows([[f"column{one}" for one in range(len(found[0]))], *found])


def run(directory: Path, command: str, name: str, *flags: str) -> dict[str, object]:
    """Run a job, and return its summary."""
    summary = directory / f"{command}.json"
    line = [
        str(Path(sys.executable).with_name("elasticdl")), command, f"--model_zoo={ZOO}", f"--model_def={name}", "--minibatch_size=8",
        "--framework=tf_keras", f"--job_name={command}", f"--summary={summary}", *flags,
    ]  # fmt: skip
    environment = {**os.environ, "XDG_STATE_HOME": str(directory / "state")}
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, object] = json.loads(summary.read_text())
    return found


def main() -> None:
    """Run them all."""
    for name, side in MODELS.items():
        directory = Path(sys.argv[1]) / name
        data = directory / "data"
        write(data, name.partition(".")[0], side)
        # what 0.2 wrote: a directory with a SavedModel
        output = directory / "saved_model"
        trained = run(
            directory, "train", name, f"--training_data={data}", f"--validation_data={data}", f"--output={output}",
            "--output_format=saved_model", "--num_epochs=4", "--num_workers=2", f"--audit={directory}/audit",
        )  # fmt: skip
        evaluated = run(directory, "evaluate", name, f"--trained_model={output}", f"--validation_data={data}")
        predicted = run(
            directory, "predict", name, f"--trained_model={output}", f"--prediction_data={data}",
            f"--output={directory}/predictions",
        )  # fmt: skip
        assert trained["metrics"] == evaluated["metrics"], (trained["metrics"], evaluated["metrics"])
        print("ran", name, trained["records_trained"], trained["metrics"], predicted["reason"], flush=True)


if __name__ == "__main__":
    main()
