"""A linear regression on the iris flowers with momentum, in NumPy, at the pace of a larger model: `regression.py DATA RESULT`.

DATA is a CSV file, RESULT the path of the weights if it runs alone.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np

import elasticdl

SECONDS = float(os.environ.get("PACE", "0.5"))
"""Of a batch, while the file in the environment variable GO is missing: faults have their moments."""

job = elasticdl.init(seed=3)
table = np.loadtxt(sys.argv[1], delimiter=",", skiprows=1)
rows, labels = table[:, :4], table[:, 4]
weights, momentum = np.zeros(4), np.zeros(4)
job.state["weights"], job.state["momentum"] = weights, momentum
job.state["rate"], job.state["epoch"] = 0.01, 0


def write(path):
    # what is done at the end takes as long as with a larger model: faults have their moments in the final view
    while "HOLD" in os.environ and Path(os.environ["HOLD"]).exists():
        time.sleep(0.05)
    with open(path, "wb") as file:
        np.savez(file, weights=weights, momentum=momentum, rate=job.state["rate"])


job.result(write)
for chunk in job.chunks(
    len(rows), batch_size=8, num_epochs=int(os.environ["EPOCHS"]), global_batch_size=16, parameters=weights
):
    error = rows[chunk] @ weights - labels[chunk]
    mean = job.step(2 * rows[chunk].T @ error / len(chunk), loss=float((error**2).mean()))
    if mean is not None:
        momentum *= 0.9
        momentum += mean
        weights -= job.state["rate"] * momentum
        if job.epoch > job.state["epoch"]:
            job.state["rate"] *= 0.9
            job.state["epoch"] = job.epoch
    if "GO" in os.environ and not Path(os.environ["GO"]).exists():
        time.sleep(SECONDS)
job.print(f"trained to step {job.steps}")
if len(sys.argv) > 2:
    write(sys.argv[2])
