"""Models by defaults are as good as scikit-learn's linear models on its small tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn import datasets
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import r2_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from elasticdl.keras import runtime

runtime.start(1)

from tests.tabular.tables import planned, snapshot  # noqa: E402  # TensorFlow is imported with its settings first
from tests.tabular.training import fed, loaded, trained  # noqa: E402


def table_of(names: Any, rows: Any, labels: Any) -> pa.Table:
    return pa.table({**{str(name): rows[:, place] for place, name in enumerate(names)}, "label": labels})


@pytest.mark.parametrize("name", ["iris", "wine", "breast_cancer", "diabetes"])
def test_defaults_are_as_good_as_linear_models(name: str, tmp_path: Path) -> None:
    data = getattr(datasets, f"load_{name}")()
    rows, held_out, labels, expected = train_test_split(
        data.data, data.target, test_size=0.25, random_state=0
    )
    classifies = name != "diabetes"
    linear = make_pipeline(StandardScaler(), LogisticRegression() if classifies else LinearRegression())
    linear.fit(rows, labels)
    score = linear.score(held_out, expected)
    table = table_of(data.feature_names, rows, labels)
    validated = table.num_rows // 10 if table.num_rows >= 200 else 0
    training = table.slice(validated)
    plan = planned(snapshot(tmp_path, training), training, "label", rows=training.num_rows)
    model = loaded(tmp_path, plan)
    part = trained(model, training, table.slice(0, validated) if validated else None)
    features, _ = fed(model, table_of(data.feature_names, held_out, expected))
    predicted = part(features, training=False)["label"].numpy()
    ours = float(np.mean(predicted == expected)) if classifies else float(r2_score(expected, predicted))
    print(f"{name}: {ours:.4f} beside {score:.4f}")
    assert ours >= score - 0.03
