"""What predictions depend on: literal scores, shuffles, and gradients that sum to the difference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl.errors import BadData
from elasticdl.keras import runtime
from elasticdl.tabular import importance
from elasticdl.tabular.columns import Call, ColumnList, Function, Name, Star
from elasticdl.tabular.features import Label, LabelKind
from elasticdl.tabular.importance import attributions, columns_of, permuted, score

runtime.start(1)

import tensorflow as tf  # noqa: E402  # with its settings first

from tests.tabular.feeding import loaded  # noqa: E402
from tests.tabular.tables import employees, planned, snapshot  # noqa: E402  # TensorFlow is imported with its settings first

BOTH = Label("y", LabelKind.TEXT, ("no", "yes"))
NUMBER = Label("y", LabelKind.NUMBER)


def probabilities(yes: list[float]) -> dict[str, Any]:
    return {"probabilities": np.array([[1 - one, one] for one in yes])}


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

    found = permuted(worth, columns)
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
    parts = importance.integrated_gradients(tmp_path, plan, rows)
    assert parts.column("city").to_pylist() == pytest.approx(
        found.values[:, found.columns.index("city")].tolist()
    )
    losses = importance.permutation(tmp_path, plan, rows, seed=3, shuffles=2)
    assert {one.feature for one in losses} == set(found.columns)


def test_shuffled_features_are_those_of_shuffled_columns(tmp_path: Path) -> None:
    """A column takes its numbers, ids and lists along; one that is crossed with another does not."""
    table = employees(240)
    asked = (
        ColumnList((Star(), Call(Function.CROSS, (Name("city"), Name("team")), (50,)))),
        ColumnList((Name("remote"),)),
    )
    plan = planned(snapshot(tmp_path, table), table, "income", columns=asked)
    model = loaded(tmp_path, plan)
    served = model.serving_model(model.custom_model())
    served.save(tmp_path / "model.keras")
    rows = table.slice(0, 60)
    columns = columns_of(plan, rows)

    def worth(changed: Any) -> float:
        outputs = served({name: tf.constant(one) for name, one in {**columns, **changed}.items()})
        return score(
            plan.label, {name: one.numpy() for name, one in outputs.items()}, rows["income"].to_numpy()
        )

    found = importance.permutation(tmp_path, plan, rows, shuffles=2)
    expected = {one.feature: one for one in permuted(worth, columns, shuffles=2)}
    assert len(found) == len(expected) == len(plan.inputs)
    for one in found:
        assert (one.importance, one.stddev) == pytest.approx(
            (expected[one.feature].importance, expected[one.feature].stddev), abs=1e-6
        )
    assert sum(one.importance != 0 for one in found) > 5
