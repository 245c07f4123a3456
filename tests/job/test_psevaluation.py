"""Jobs with parameter servers that evaluate while they train: at barriers, where nothing is trained before the metrics are journalled."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from .conftest import Start

EVERY = 20
EPOCHS = 2
BARRIERS = [21, 33, 42, 60, 66]
"""Steps: an epoch has 33, in waves of 3 (the last of 3, too), and evaluations are at the first wave at or after each 20."""


@pytest.fixture
def begin(plain: Start, tmp_path: Path) -> Start:
    """Start jobs of which every step depends on those before."""
    return functools.partial(
        plain,
        model_def="weighed.custom_model",
        validation_data=tmp_path / "ids.csv",
        evaluation_steps=EVERY,
        use_async=False,
        grads_to_wait=4,
        num_minibatches_per_task=3,
        threads_per_worker=1,
        output=tmp_path / "weighed.npz",
        audit=tmp_path / "audit",
    )


def test_a_small_job(begin: Start, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    result = begin(num_workers=1, num_ps_pods=1).wait().succeeded()
    print(result.err, result.summary)
    assert 0
