"""Models by defaults are as good as scikit-learn's linear models on its small tables, where many parameters learn what is chance.

Rows are divided as a snapshot divides them, and each fold's rows have statistics and a plan of their own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from elasticdl.keras import runtime

runtime.start(1)

from elasticdl.query.snapshot import FEWEST_TO_VALIDATE  # noqa: E402  # TensorFlow is imported with its settings first
from elasticdl.tabular import statistics  # noqa: E402
from elasticdl.tabular.plan import derive  # noqa: E402
from tests.tabular.training import Table, Training  # noqa: E402

FOLDS = 5


def table_of(data: Any, rows: Any) -> pa.Table:
    columns = {str(name): data.data[rows, place] for place, name in enumerate(data.feature_names)}
    return pa.table({**columns, "label": data.target[rows]})


@pytest.mark.parametrize("name", ["iris", "wine", "breast_cancer", "diabetes"])
def test_defaults_are_as_good_as_linear_models(name: str, tmp_path: Path, record_property: Any) -> None:
    # here: the import takes seconds, and each process that runs tests collects all of them
    from sklearn import datasets
    from sklearn.linear_model import LinearRegression, LogisticRegression
    from sklearn.metrics import accuracy_score, r2_score
    from sklearn.model_selection import KFold, StratifiedKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    data = getattr(datasets, f"load_{name}")()
    classifies = name != "diabetes"
    folds = (StratifiedKFold if classifies else KFold)(FOLDS, shuffle=True, random_state=0)
    measure = accuracy_score if classifies else r2_score
    linear, ours = [], []
    trainings: dict[Any, Training] = {}
    splits = [*folds.split(data.data, data.target)]
    rows = min(len(given) for given, _ in splits)  # of all folds as many, so that functions are compiled once
    for fold, (given, held_out) in enumerate(splits):
        peer = make_pipeline(StandardScaler(), LogisticRegression() if classifies else LinearRegression())
        peer.fit(data.data[given], data.target[given])
        linear.append(measure(data.target[held_out], peer.predict(data.data[held_out])))
        given = np.random.default_rng(fold).permutation(given)[:rows]
        apart = round(rows / 10) if rows >= FEWEST_TO_VALIDATE else 0
        table = table_of(data, given[apart:])
        plan = derive(table.schema, statistics.finished(statistics.of_table(table)), "label")
        of = Table(tmp_path / str(fold), plan)
        if of.layers not in trainings:
            trainings[of.layers] = Training(of.model)
        training = trainings[of.layers]
        examples = of.examples(
            table_of(data, np.concatenate([given, held_out]))
        )  # row by row, whatever is beside it
        validation = examples.part(0, apart) if apart else None
        training.train(of, examples.part(apart, rows), validation, fold)
        predicted = training.predicted(of, examples.part(rows, len(data.target)).features)
        ours.append(measure(data.target[held_out], predicted))
    found, beside = float(np.mean(ours)), float(np.mean(linear))
    record_property("accuracy", f"{name}: {found:.4f} beside {beside:.4f}")
    assert found >= beside - 0.03, f"{name}: {ours} beside {linear}"
