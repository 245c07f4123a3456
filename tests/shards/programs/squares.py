"""Write the squares of the numbers in a CSV file, a file for each task, with faults on the way: `squares.py DATA [OUTPUT]`.

The first life of worker 0 and that of worker 1 end by SIGKILL when the file of a task is half written, worker 2 gets a SIGTERM there.
"""

import os
import signal
import sys
import time
from pathlib import Path

import elasticdl

FAULTS = {"worker-0-1": signal.SIGKILL, "worker-1-1": signal.SIGKILL, "worker-2-1": signal.SIGTERM}
SECONDS = 0.1
"""Of a task, while the file in the environment variable GO is missing: faults from outside have their moments."""

name = os.environ.get("ELASTICDL_PROCESS", "")
output = sys.argv[2] if len(sys.argv) > 2 else ""
tasks = elasticdl.shards(sys.argv[1], records_per_task=4, output=output, reader_params={"header": True})
for done, task in enumerate(tasks):
    with task.output(suffix=".csv") as path, open(path, "w") as file:
        for place, (number, _) in enumerate(task):
            file.write(f"{number},{int(number) ** 2}\n")
            if done == 1 and place == 1 and name in FAULTS:
                file.flush()
                os.kill(os.getpid(), FAULTS[name])
    if "GO" in os.environ and not Path(os.environ["GO"]).exists():
        time.sleep(SECONDS)
