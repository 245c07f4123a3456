"""A checkpoint of servers is a trained model: it predicts and is evaluated as the model that the job exports, bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from elasticdl.catalog.catalog import Catalog
from elasticdl.checkpoint import savedrows
from elasticdl.checkpoint.savedrows import SavedRows
from elasticdl.control.protocol.metricstates import combine
from elasticdl.errors import BadData, BadModel
from elasticdl.keras.layers import Embedding
from elasticdl.keras.trained import KerasTrained
from elasticdl.spec.edge import build, from_arguments
from elasticdl.spec.jobspec import JobKind
from elasticdl.worker.contract.trained import Weights
from elasticdl.worker.contract.usermodel import UserModel
from tests.control.test_savedrows import manifest_of
from tests.keras.test_psadapter import IDS, RECORDS, Own, adapter_of, feed, figures, functional, pulled

Saved = Callable[[Catalog, list[dict[int, np.ndarray]], list[np.ndarray]], SavedRows]


def combining() -> keras.Model:
    """A layer that combines rows."""
    first, second = (
        keras.Input((2,), dtype="int64", name="first"),
        keras.Input((1,), dtype="int32", name="second"),
    )
    summed = Embedding(3, IDS, "ones", combiner="mean", name="summed")(first)
    plain = keras.layers.Embedding(IDS, 2, embeddings_initializer="ones", name="plain")(second)
    outputs = keras.layers.Dense(1)(keras.layers.Concatenate()([summed, keras.layers.Flatten()(plain)]))
    return keras.Model({"first": first, "second": second}, outputs)


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Saved:
    """Make a checkpoint of one slot."""

    def make(catalog: Catalog, tables: list[dict[int, np.ndarray]], values: list[np.ndarray]) -> SavedRows:
        slot = [
            (np.array(list(rows), np.int64), np.concatenate([np.empty(0, np.float32), *rows.values()]))
            for rows in tables
        ]
        monkeypatch.setattr(savedrows, "contents", lambda *_: [(slot, dict(enumerate(values)))])
        return SavedRows(manifest_of(tmp_path / "checkpoint-1", catalog, IDS), tmp_path / "room")

    return make


def trained(model: Callable[[], keras.Model], kind: JobKind, weights: Weights) -> KerasTrained:
    user = UserModel(
        Path("m.py"),
        model,
        {},
        keras.losses.mean_squared_error,
        keras.optimizers.Adagrad,
        feed,
        None,
        None,
        figures,
    )
    data = "prediction_data" if kind is JobKind.PREDICT else "validation_data"
    given = {"model_def": "m.model", data: "x", "trained_model": "x", "embedding_threshold": 0}
    made = KerasTrained(user, build(from_arguments(given), kind), None, weights)
    made.prepare(RECORDS)
    return made


def predicted(model: Callable[[], keras.Model], weights: Weights) -> np.ndarray:
    made = trained(model, JobKind.PREDICT, weights)
    return made.predict(made.convert(RECORDS), 0, 0)["prediction"]


def evaluated(model: Callable[[], keras.Model], weights: Weights) -> dict[str, Any]:
    evaluator = trained(model, JobKind.EVALUATE, weights).evaluator(None)
    evaluator.prepare(RECORDS)
    evaluator.begin_task(0)
    evaluator.evaluate(evaluator.convert(RECORDS))
    return evaluator.metric_values(combine(evaluator.catalog(), [evaluator.task_state()]))


@pytest.mark.parametrize(
    ("model", "name"),
    [(functional, "m.keras"), (functional, "m"), (Own, "m"), (combining, "m.keras")],
    ids=["keras", "saved model", "subclassed", "combining"],
)
def test_it_is_the_model_that_the_job_exports(
    model: Callable[[], keras.Model], name: str, saved: Saved, tmp_path: Path
) -> None:
    adapter = adapter_of(model)
    catalog, random = adapter.catalog, np.random.default_rng(3)
    # the ids 4 and 7 of the records are not trained
    tables = [
        {one: random.random(table.width, np.float32) for one in (2, 49, 1, 30)} for table in catalog.tables
    ]
    values = [value * 0.9 + 0.1 for value in adapter.first_values()]
    for variable, value in enumerate(values):
        adapter.take(variable, value)

    def read(table: int, ids: Any) -> Any:
        ones = np.ones(catalog.tables[table].width, np.float32)
        return np.stack([tables[table].get(int(one), ones) for one in ids])

    adapter.export(str(tmp_path / name), "keras" if "." in name else "saved_model", pulled(adapter, read))
    checkpoint = saved(catalog, tables, values)
    assert np.array_equal(predicted(model, checkpoint), predicted(model, tmp_path / name))
    assert evaluated(model, checkpoint) == evaluated(model, tmp_path / name)


def test_another_model_and_wrong_ids_are_refused(saved: Saved, tmp_path: Path) -> None:
    adapter = adapter_of(functional)
    checkpoint = saved(adapter.catalog, [{}, {}], [value.copy() for value in adapter.first_values()])
    with pytest.raises(
        BadModel, match="the checkpoint has the tables other, shared, and the model plain, summed"
    ):
        predicted(combining, checkpoint)
    made = trained(functional, JobKind.PREDICT, checkpoint)
    with pytest.raises(BadData, match="the embedding shared has the ids 0 to 49, received 50"):
        made.convert([["1", "50", "2", "1"]])


def test_a_saved_model_of_another_model_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    adapter = adapter_of(Own)
    rows = pulled(
        adapter, lambda table, ids: np.ones((len(ids), adapter.catalog.tables[table].width), np.float32)
    )
    adapter.export(str(tmp_path / "m"), "saved_model", rows)
    with pytest.raises(
        BadModel, match=r"/m is of another model: it has .*, and the model of m.py .* \[50, 2\]"
    ):
        predicted(combining, tmp_path / "m")
    for file in sorted((tmp_path / "m" / "variables").iterdir()):
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(BadModel, match="/m is no SavedModel of a job, or is damaged"):
            predicted(Own, tmp_path / "m")
        file.write_bytes(whole)
    assert predicted(Own, tmp_path / "m").shape == (3, 1)
