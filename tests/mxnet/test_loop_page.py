"""The guide's loop in MXNet runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.mxnet import need_mxnet

PAGE = Path(__file__).parents[2] / "docs/guides/custom-loops-arrays.md"
DATA = """
import numpy as np

rows = np.random.default_rng(0).normal(size=(400, 4)).astype(np.float32)
labels = rows @ np.arange(4, dtype=np.float32)
"""


def test_the_loop_of_the_guide_trains_alone() -> None:
    need_mxnet()
    (block,) = (
        found
        for found in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
        if "import_mxnet" in found
    )
    shows = "\nassert np.abs(model.weight.data().asnumpy() - np.arange(4)).max() < 0.01, model.weight.data()\nprint(job.steps)\n"
    ran = subprocess.run(
        [sys.executable, "-c", DATA + block + shows], capture_output=True, text=True, check=True, timeout=600
    )
    assert ran.stdout == "39\n"
