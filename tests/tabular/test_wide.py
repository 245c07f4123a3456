"""Tables of many columns: which of them share a layer, and that each has weights, ids and an explanation of its own all the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from elasticdl.errors import BadData
from elasticdl.keras import runtime

runtime.start(1)

from elasticdl.tabular.columns import Call, ColumnList, Function, Name, Star  # noqa: E402  # TensorFlow is imported with its settings first
from elasticdl.tabular.features import Plan  # noqa: E402
from elasticdl.tabular.idlayers import Use, id_layers, id_layers_of  # noqa: E402
from elasticdl.tabular.importance import attributions, columns_of  # noqa: E402
from elasticdl.tabular.inputs import IDS, NUMBERS  # noqa: E402
from elasticdl.tabular.models import trained_part  # noqa: E402
from tests.tabular.feeding import fed, loaded  # noqa: E402
from tests.tabular.tables import planned, snapshot  # noqa: E402

F = Function
ROWS = 240


def wide(columns: int, classes: int = 2) -> pa.Table:
    """Return a table with numbers, integers that are categories, and texts, in turn."""
    random = np.random.default_rng(columns)
    table: dict[str, Any] = {}
    for place in range(columns):
        values = random.integers(0, 3 + place % 4, ROWS)
        match place % 3:
            case 0:
                table[f"n{place}"] = random.normal(size=ROWS)
            case 1:
                table[f"i{place}"] = values
            case 2:
                table[f"t{place}"] = [None if value == 0 else f"v{value}" for value in values]
    score = table["n0"] + table["i1"] + random.normal(0, 0.1, ROWS)
    table["y"] = [f"c{place}" for place in np.argsort(np.argsort(score)) * classes // ROWS]
    return pa.table(table)


def derived(folder: Path, table: pa.Table, **asked: Any) -> Plan:
    return planned(snapshot(folder, table), table, "y", **asked)


@pytest.mark.parametrize("target", ["dnn", "linear", "wide_deep", "deepfm", "dcn"])
def test_a_model_has_as_many_layers_for_many_columns_as_for_some(target: str, tmp_path: Path) -> None:
    some, many = (derived(tmp_path / str(n), wide(n), target=target) for n in (30, 120))
    assert len(many.ids) == 4 * len(some.ids)
    assert len(trained_part(many).layers) == len(trained_part(some).layers)
    for plan in (some, many):
        columns = [one.feature.name for one in id_layers(plan, Use.WIDE)[0].columns]
        assert columns == [one.name for one in plan.ids], "one matrix has the weights of all"


def test_each_column_has_rows_of_its_own_in_a_matrix_of_several(tmp_path: Path) -> None:
    """What a linear model makes of a table is computed of the weights of each column."""
    table = wide(30, classes=3)
    plan = derived(tmp_path, table, target="linear")
    model = loaded(tmp_path, plan)
    part = model.custom_model()
    random = np.random.default_rng(3)
    part.set_weights([random.normal(size=one.shape) for one in part.weights])
    features, _ = fed(model, table)
    (layer,) = id_layers_of(plan)
    matrix = part.get_layer(layer.name).get_weights()[0]
    kernel, bias = part.get_layer("wide_numbers").get_weights()
    logits, first = features[NUMBERS].numpy() @ kernel + bias, 0
    for place, feature in enumerate(plan.ids):
        logits = logits + matrix[first : first + feature.size][features[IDS].numpy()[:, place]]
        first += feature.size
    assert first == len(matrix)
    exponents = np.exp(logits)
    expected = exponents / exponents.sum(1, keepdims=True)
    np.testing.assert_allclose(part(features)["probabilities"], expected, rtol=1e-4, atol=1e-6)


def test_a_large_matrix_is_no_part_of_another(tmp_path: Path) -> None:
    """Those of more than 2 MiB are on servers, if there are any; those of less travel whole."""
    table = wide(12)
    sizes = {"t2": 1000, "t5": 1 << 16, "t8": 1 << 14, "t11": 1 << 15}
    asked = ColumnList(
        tuple(
            Call(F.EMBEDDING, (Call(F.HASH_BUCKET, (Name(name),), (size,)),), (16,))
            for name, size in sizes.items()
        )
    )
    layers = id_layers(derived(tmp_path, table, columns=(asked,)), Use.EMBEDDING)
    of_16 = [[one.feature.columns[0] for one in layer.columns] for layer in layers if layer.width == 16]
    assert of_16 == [["t2", "t8"], ["t5"], ["t11"]]
    assert [layer.offsets for layer in layers if layer.width == 16] == [[0, 1000], [0], [0]]


def test_zeros_and_ones_of_several_columns(tmp_path: Path) -> None:
    table = wide(12, classes=4)
    asked = (
        ColumnList((Star(), Call(F.INDICATOR, (Call(F.CONCAT, (Name("t2"), Name("i4"), Name("i7"))),)))),
    )
    plan = derived(tmp_path, table, columns=asked, target="wide_deep")
    model = loaded(tmp_path, plan)
    part = model.custom_model()
    features, _ = fed(model, table)
    (layer,) = [one for one in id_layers_of(plan) if one.use is Use.INDICATOR]
    assert [one.feature.columns for one in layer.columns] == [("t2",), ("i4",), ("i7",)]
    found = type(part)(part.inputs, part.get_layer(layer.name).output)(
        [features[one.name] for one in part.inputs]
    )
    ids = features[IDS].numpy()[:, layer.places]
    expected = np.concatenate(
        [np.eye(size)[column] for size, column in zip(layer.sizes, ids.T, strict=True)], axis=1
    )
    np.testing.assert_array_equal(found, expected)
    assert part(features)["probabilities"].shape == (ROWS, 4), (
        "in the linear part they have a weight for each class"
    )
    model.serving_model(part).save(tmp_path / "model.keras")
    explained = attributions(tmp_path / "model.keras", plan, columns_of(plan, table.slice(0, 20)))
    difference = explained.outputs - explained.baseline
    np.testing.assert_allclose(
        explained.values.sum(1), difference, rtol=0.01, atol=0.01 * np.abs(difference).max()
    )
    assert np.abs(explained.values[:, explained.columns.index("t2")]).max() > 0
    other = replace(plan, ids=plan.ids[1:])  # other columns share layers, as in another version
    with pytest.raises(BadData, match=r"the model has no layer .*: another version of this package made it"):
        attributions(tmp_path / "model.keras", other, columns_of(plan, table.slice(0, 2)))


def test_ids_of_numbers_on_bounds_and_beyond_them(tmp_path: Path) -> None:
    """Columns are compared with bounds and values of their own, of which they have different numbers."""
    table = pa.table(
        {
            "a": [float(row % 8) for row in range(ROWS)],
            "b": [row % 3 for row in range(ROWS)],
            "c": [(row % 5) * 10 for row in range(ROWS)],
            "y": ["no", "yes"] * (ROWS // 2),
        }
    )
    asked = ColumnList((Call(F.BUCKET, (Name("a"),), ((1, 2, 5),)), Call(F.BUCKET, (Name("b"),), ((2,),))))
    plan = derived(tmp_path, table, columns=(asked, ColumnList((Call(F.CATEGORIZE, (Name("c"),)),))))
    none, far = float("nan"), float("inf")
    other = pa.table(
        {
            "a": [0.9, 1.0, 5.0, far, none],
            "b": [1.999, 2.0, 3.0, -far, none],
            "c": [0.0, 40.0, 41.0, none, -1e18],
            "y": ["no"] * 5,
        }
    )
    features, _ = fed(loaded(tmp_path, plan), other)
    ids = dict(zip([one.columns[0] for one in plan.ids], features[IDS].numpy().T.tolist(), strict=True))
    assert ids == {"a": [1, 2, 4, 0, 0], "b": [1, 2, 2, 0, 0], "c": [2, 6, 1, 0, 1]}
