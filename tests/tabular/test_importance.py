"""What predictions depend on: literal scores, shuffles, and gradients that sum to the difference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pytest

from elasticdl.errors import BadData
from elasticdl.keras import runtime
from elasticdl.tabular import importance
from elasticdl.tabular.columns import Call, ColumnList, Function, Name, Star
from elasticdl.tabular.features import Label, LabelKind
from elasticdl.tabular.importance import (
    SHUFFLES,
    attributions,
    columns_of,
    permuted,
    scorer,
    sized,
)

runtime.start(1)

import tensorflow as tf  # noqa: E402  # with its settings first

from tests.tabular.feeding import loaded  # noqa: E402
from tests.tabular.tables import employees, planned, snapshot  # noqa: E402  # TensorFlow is imported with its settings first

BOTH = Label("y", LabelKind.TEXT, ("no", "yes"))
NUMBER = Label("y", LabelKind.NUMBER)
INDICATORS = (
    Call(Function.INDICATOR, (Call(Function.HASH_BUCKET, (Name("id"),), (20,)),)),
    Call(Function.INDICATOR, (Name("about"),)),
)


def probabilities(yes: list[float]) -> dict[str, Any]:
    return {"probabilities": np.array([[1 - one, one] for one in yes])}


def score(label: Label, outputs: dict[str, Any], labels: Any) -> float:
    return scorer(label, labels)(outputs)


def test_literal_scores() -> None:
    labels = np.array(["no", "yes", "no", "yes"], object)
    assert score(BOTH, probabilities([0.1, 0.9, 0.2, 0.8]), labels) == 1.0
    assert score(BOTH, probabilities([0.5, 0.5, 0.5, 0.5]), labels) == 0.5
    assert score(BOTH, probabilities([0.3, 0.9, 0.4, 0.35]), labels) == 0.75
    assert score(NUMBER, {"y": np.array([1.0, 2.0, 3.0])}, np.array([1.0, 2.0, 4.0])) == pytest.approx(
        1 - 3 / 14
    )
    three = Label("y", LabelKind.TEXT, ("a", "b", "c"))
    assert score(three, {"y": np.array([b"a", b"b", b"c"])}, np.array(["a", "c", "c"])) == pytest.approx(
        2 / 3
    )
    with pytest.raises(BadData, match="all rows have the same y; choose rows with both values of it"):
        score(BOTH, probabilities([0.1]), np.array(["no"], object))


def test_a_column_that_nothing_depends_on_has_no_importance() -> None:
    random = np.random.default_rng(1)
    columns = {name: random.normal(size=500) for name in ("a", "b", "c")}

    def predict(given: Any) -> Any:
        return {"y": 3 * given["a"] + given["b"]}

    labels = predict(columns)["y"]

    def worth(changed: Any) -> float:
        return score(NUMBER, predict({**columns, **changed}), labels)

    done: list[int] = []
    found = permuted(worth, columns, progress=done.append)
    assert done == [1, 2, 3]
    assert [one.feature for one in found] == ["a", "b", "c"]
    assert found[0].importance == pytest.approx(2 * 0.9, rel=0.2)
    assert (found[2].importance, found[2].stddev) == (0.0, 0.0)
    assert found == permuted(worth, columns), "shuffles are seeded"


@pytest.mark.parametrize(("target", "label"), [("wide_deep", "income"), ("deepfm", "年龄")])
def test_gradients_sum_to_the_difference(target: str, label: str, tmp_path: Path) -> None:
    table = employees(240)
    plan = planned(snapshot(tmp_path, table), table, label, target=target)
    model = loaded(tmp_path, plan)
    model.serving_model(model.custom_model()).save(tmp_path / "model.keras")
    rows = table.slice(0, 50)
    found = attributions(tmp_path / "model.keras", plan, columns_of(plan, rows))
    difference = found.outputs - found.baseline
    assert np.abs(difference).max() > 0
    np.testing.assert_allclose(
        found.values.sum(1), difference, rtol=0.01, atol=0.01 * np.abs(difference).max()
    )
    assert set(found.columns) == {one.column for one in plan.inputs}
    done: list[int] = []
    parts = importance.integrated_gradients(tmp_path, plan, rows, progress=done.append)
    assert (done[0], done[-1], sorted(done)) == (0, 50, done)
    assert parts.column("city").to_pylist() == pytest.approx(
        found.values[:, found.columns.index("city")].tolist()
    )
    losses = importance.permutation(tmp_path, plan, rows, seed=3, shuffles=2)
    assert {one.feature for one in losses} == set(found.columns)


@pytest.mark.parametrize(
    ("target", "label", "attributes", "many"),
    [
        ("dnn", "income", {}, False),
        ("dnn", "city", {"model.hidden_units": (8,), "model.dropout": 0.5}, True),
        ("linear", "年龄", {}, True),
        ("wide_deep", "income", {}, True),
        ("deepfm", "city", {"model.activation": "gelu"}, True),
    ],
)
def test_shuffled_features_are_those_of_shuffled_columns(
    target: str,
    label: str,
    attributes: dict[str, Any],
    many: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A column takes its numbers, ids and lists along; one that is crossed with another does not. Of many, sums are moved."""
    table = employees(240)
    table = table.filter(pa.compute.is_valid(table["city"]))
    asked = ColumnList((Star(), Call(Function.CROSS, (Name("remote"), Name("team")), (50,)), *INDICATORS))
    plan = planned(
        snapshot(tmp_path, table), table, label, columns=(asked,), target=target, attributes=attributes
    )
    model = loaded(tmp_path, plan)
    part = model.custom_model()
    random = np.random.default_rng(1)
    part.set_weights([random.normal(0, 0.3, one.shape) for one in part.weights])
    served = model.serving_model(part)
    served.save(tmp_path / "model.keras")
    rows = table.slice(0, 60)
    columns = columns_of(plan, rows)

    def worth(changed: Any) -> float:
        outputs = served({name: tf.constant(one) for name, one in {**columns, **changed}.items()})
        return score(
            plan.label,
            {name: one.numpy() for name, one in outputs.items()},
            rows[label].to_numpy(zero_copy_only=False),
        )

    moved: list[str] = []
    if many:
        from elasticdl.tabular.sums import Sums

        outputs_of = Sums.outputs
        monkeypatch.setattr(importance, "_SUMMED", 0)
        monkeypatch.setattr(
            Sums, "outputs", lambda sums, order: moved.extend(order) or outputs_of(sums, order)
        )
    found = importance.permutation(tmp_path, plan, rows, shuffles=2)
    is_moved = {one.column for one in plan.inputs} - {"remote", "team"} if many else set()
    assert {*moved} == is_moved, "what is crossed with others is not"
    expected = {one.feature: one for one in permuted(worth, columns, shuffles=2)}
    assert len(found) == len(expected) == len(plan.inputs)
    for one in found:
        assert (one.importance, one.stddev) == pytest.approx(
            (expected[one.feature].importance, expected[one.feature].stddev), abs=1e-5
        )
    assert sum(one.importance != 0 for one in found) > 5


def test_how_much_is_computed_of_a_table() -> None:
    """Five shuffles of all rows, unless the whole model is needed for more evaluations than a person waits for."""
    assert sized(10_000, 14) == (10_000, SHUFFLES)
    assert sized(10_000, 1000, "dnn") == (10_000, SHUFFLES)
    assert sized(10_000, 1000, "dcn") == (2500, 2)
    assert sized(10_000, 1000) == (2500, 2)
    assert sized(10_000, 100_000) == (1000, 2), "no table has fewer"
    assert sized(300, 100_000, asked=True) == (300, 2)
    assert sized(10_000, 1000, asked=True) == (10_000, 2), "as many rows as a person asks for"
    assert sized(10_000, 200, "dcn") == (10_000, 2)
    assert sized(3, 0) == (3, SHUFFLES)
