"""Model files as ElasticDL 0.2 had them, with their imports, train, evaluate and predict with Keras 2, and nothing is changed in them.

In a process of its own: `tf.keras` is Keras 2 there from the beginning.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_model_files_train_evaluate_and_predict(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.compat.driving", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("driven ")]
    assert [name for _, name, *_ in lines] == [
        "mnist_functional", "mnist_subclass", "cifar10", "census", "heart", "deepfm", "census-servers", "deepfm-servers",
    ]  # fmt: skip
