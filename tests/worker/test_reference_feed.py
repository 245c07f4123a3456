"""What the reference framework takes from a `feed`: features and labels, and of a prediction features alone as well."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from elasticdl.errors import BadData
from elasticdl.reference.building import feed
from elasticdl.spec.jobspec import Mode

ROWS = [np.arange(3.0), np.arange(3.0) + 1]
FEATURES = {"an array": np.stack(ROWS), "several by name": {"a": np.stack(ROWS), "b": np.ones(2)}}


def user_of(made: object) -> Any:
    return SimpleNamespace(feed=lambda records, mode, metadata: made, path=Path("model.py"))


@pytest.mark.parametrize("made", FEATURES.values(), ids=FEATURES)
def test_a_prediction_takes_features_alone(made: object) -> None:
    batch = feed(user_of(made), None, ROWS, Mode.PREDICTION)
    assert batch.examples == 2
    assert batch.features is made
    assert batch.labels.shape == (2,)
    with pytest.raises(BadData, match=r"model\.py: feed returned a .*; expected \(features, labels\)"):
        feed(user_of(made), None, ROWS, Mode.TRAINING)


@pytest.mark.parametrize("made", [None, {}, (1, 2, 3)])
def test_anything_else_is_refused_in_a_prediction_too(made: object) -> None:
    with pytest.raises(BadData, match=r"expected \(features, labels\)"):
        feed(user_of(made), None, ROWS, Mode.PREDICTION)
