"""The model of a plan: features of literal values, every network, and what plain Keras does with the exported file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elasticdl.keras import runtime

runtime.start(1)

import tensorflow as tf  # noqa: E402  # TensorFlow is imported with its settings first

from elasticdl.data.readers.records import Columns  # noqa: E402
from elasticdl.errors import BadModel  # noqa: E402
from elasticdl.keras.adapter import KerasAdapter  # noqa: E402
from elasticdl.keras.framework import FRAMEWORK  # noqa: E402
from elasticdl.keras.psadapter import KerasPsAdapter  # noqa: E402
from elasticdl.spec.jobspec import JobKind, JobSpec  # noqa: E402
from elasticdl.tabular import modelfile  # noqa: E402
from elasticdl.tabular.columns import Call, ColumnList, Function, Name  # noqa: E402
from elasticdl.tabular.inputs import IDS, NUMBERS  # noqa: E402
from tests.tabular.feeding import fed, loaded  # noqa: E402
from tests.tabular.tables import employees, planned, snapshot  # noqa: E402

F = Function
NONE = float("nan")


def records(table: pa.Table) -> Columns:
    """Return a table as a reader of Parquet gives it."""
    arrays: dict[str, Any] = {}
    for field in table.schema:
        column = table.column(field.name)
        if pa.types.is_list(field.type):
            arrays[field.name] = np.empty(table.num_rows, object)
            kind = object if pa.types.is_string(field.type.value_type) else np.float64
            arrays[field.name][:] = [np.array(one, kind) for one in column.to_pylist()]
        elif pa.types.is_string(field.type):
            arrays[field.name] = np.array(column.fill_null("").to_pylist(), object)
        else:
            arrays[field.name] = column.to_numpy()
    return Columns(table.num_rows, arrays)


def job(zoo: Path, **settings: Any) -> JobSpec:
    return JobSpec(model_zoo=str(zoo), model_def="model.custom_model", training_data="unused", **settings)


def test_features_have_literal_values(tmp_path: Path) -> None:
    """Ids: 0 is missing, 1 unknown; dates are Thursday, 1 January 1970, 2 o'clock, and Monday, 3 July 2000, midnight."""
    table = pa.table(
        {
            "c": ["a", "b", "a", "b"] * 2,
            "n": [3.0, 1.0, 3.0, 1.0] * 2,
            "when": [7200.0, 962_582_400.0] * 4,
            "text": ["Red cars, and boats", "red boats and trains"] * 4,
            "l": [[1.0, 2.0], [5.0]] * 4,
            "s": ["0;2", "1"] * 4,
            "v": ["0.5,1.5", "2,3"] * 4,
            "y": ["no", "yes"] * 4,
        }
    )
    asked = (
        ColumnList(
            (
                Call(F.NORMALIZE, (Name("n"),)),
                Call(F.EMBEDDING, (Call(F.BUCKET, (Name("n"),), ((2,),)),), (3,)),
                Call(F.INDICATOR, (Name("c"),)),
                Call(F.CROSS, (Name("c"), Call(F.BUCKET, (Name("n"),), ((2,),))), (5000,)),
                Call(F.SPARSE, (Name("s"),), (3, ";")),
                Call(F.DENSE, (Name("v"),), (2,)),
            )
        ),
    )
    plan = planned(snapshot(tmp_path, table), table, "y", columns=asked)
    model = loaded(tmp_path, plan)
    other = pa.table(
        {
            "c": ["b", None, "z", "a"],
            "n": [2.0, NONE, 1.0, 5.0],
            "when": [7200.0, NONE, 962_582_400.0, 0.0],
            "text": ["a red, RED car", None, "boats", "and"],
            "l": pa.array([[5.0, 7.0, 9.0], [], [1.0], [2.0]], pa.list_(pa.float64())),
            "s": ["2;0;9", None, "1", ""],
            "v": ["7,8", "9", None, "1,2,3"],
            "y": ["no", "yes", "yes", "no"],
        }
    )
    features, labels = fed(model, other)
    assert labels.numpy().tolist() == [0, 1, 1, 0]
    places = [one.name for one in plan.ids if not one.length]
    ids = features[IDS].numpy()
    assert ids[:, places.index("c")].tolist() == [3, 0, 1, 2]
    assert ids[:, places.index("n in buckets")].tolist() == [2, 0, 1, 2]
    cross = ids[:, places.index("c x n in buckets")]
    assert len(set(cross.tolist())) == 4
    assert 0 <= cross.min() <= cross.max() < 5000
    lists = {
        plan.ids[int(key.removeprefix("list_"))].name: value.numpy().tolist()
        for key, value in features.items()
        if key.startswith("list_")
    }
    assert [one[:2] for one in lists["s"]] == [[3, 1], [0, 0], [2, 0], [0, 0]]
    assert lists["s"][0][2] == 0  # beyond the number asked for
    words = dict(zip(["and", "red", "boats"], (1 + np.array([1, 2, 3])).tolist(), strict=True))
    vocabulary = next(one.values for one in plan.ids if one.name == "text words")
    assert set(words) <= set(vocabulary)
    row = lists["text words"]
    red = vocabulary.index("red") + 2
    assert row[0][:4] == [1, red, red, 1]
    assert row[1] == [0] * len(row[1])
    numbers = features[NUMBERS].numpy()
    assert not np.isnan(numbers).any()
    assert 0.5 in numbers[:, _column(plan, "n")].tolist()


def test_classes_and_values_that_training_never_saw(tmp_path: Path) -> None:
    """Values may be those that Keras has for unknown ones."""
    table = pa.table({"c": ["[UNK]", "b"] * 8, "n": [-1, 1] * 8, "y": ["[UNK]", "yes"] * 8})
    model = loaded(tmp_path, planned(snapshot(tmp_path, table), table, "y"))
    other = pa.table({"c": ["[UNK]", "z"], "n": [-1, 0], "y": ["maybe", "yes"]})
    features, labels, weights = fed(model, other, "evaluation")
    assert features[IDS].numpy().tolist() == [[2, 2], [1, 1]]
    assert (labels.numpy().tolist(), weights.numpy().tolist()) == ([0, 1], [0.0, 1.0])
    outputs = model.custom_model()(features)
    assert set(outputs["y"].numpy().tolist()) <= {b"[UNK]", b"yes"}
    of_numbers = loaded(tmp_path, planned(tmp_path / "training", table, "n"))
    features, labels = fed(of_numbers, table.slice(0, 2))
    assert labels.numpy().tolist() == [0, 1]
    assert set(of_numbers.custom_model()(features)["n"].numpy().tolist()) <= {-1, 1}
    fractions = table.slice(0, 3).set_column(1, "n", pa.array([1.5, 1.0, -1.0]))
    _, labels, weights = fed(of_numbers, fractions, "evaluation")
    assert (labels.numpy().tolist(), weights.numpy().tolist()) == ([0, 1, 0], [0.0, 1.0, 1.0])


def _column(plan: Any, name: str) -> int:
    from elasticdl.tabular.inputs import number_columns

    return next(place for place, one in enumerate(number_columns(plan)) if one.column == name)


def test_the_time_of_the_day_and_the_day_of_the_week(tmp_path: Path) -> None:
    table = employees(240)
    plan = planned(snapshot(tmp_path, table), table, "income")
    model = loaded(tmp_path, plan)
    moments = [7200.0, 962_582_400.0 - 1, NONE, 0.0]
    some = table.slice(0, 4).set_column(table.column_names.index("joined"), "joined", pa.array(moments))
    features, _ = fed(model, some)
    places = [one.name for one in plan.ids if not one.length]
    assert features[IDS].numpy()[:, places.index("joined hour")].tolist() == [3, 24, 0, 1]
    assert features[IDS].numpy()[:, places.index("joined weekday")].tolist() == [4, 7, 0, 4]


@pytest.mark.parametrize(
    ("target", "label"),
    [
        ("dnn", "team"),
        ("linear", "income"),
        ("wide_deep", "年龄"),
        ("deepfm", "team"),
        ("deepfm", "income"),
        ("dcn", "income"),
    ],
)
def test_networks_are_trained_evaluated_and_served(target: str, label: str, tmp_path: Path) -> None:
    """One step of each, for two classes, five classes or a number."""
    table = employees(240)
    plan = planned(snapshot(tmp_path, table), table, label, target=target)
    model = loaded(tmp_path, plan)
    part = model.custom_model()
    features, labels = fed(model, table)
    with tf.GradientTape() as tape:
        outputs = part(features, training=True)
        loss = tf.reduce_mean(model.loss(labels, outputs))
    assert np.isfinite(float(loss))
    gradients = tape.gradient(loss, part.trainable_variables)
    assert all(gradient is not None for gradient in gradients), "each weight is trained"
    expected = [label] if not plan.label.classes else sorted([label, "probabilities"])
    assert sorted(outputs) == expected
    given = outputs if len(outputs) > 1 else outputs[label]  # as a job gives them
    for metric in model.eval_metrics_fn().values():
        metric.update_state(labels, given)
        assert np.isfinite(float(metric.result()))
    served = model.serving_model(part)
    found = served({one.column: value for one, value in zip(plan.inputs, _raw(model, table), strict=True)})
    np.testing.assert_allclose(found[expected[-1]], outputs[expected[-1]], rtol=1e-5)


def test_each_row_counts_once_in_the_metrics_of_a_number(tmp_path: Path) -> None:
    """Keras takes one mean of a batch of vectors: the last row of 1,025 counted as much as the 64 of another batch."""
    table = employees(240)
    plan = planned(snapshot(tmp_path, table), table, "income")
    model = loaded(tmp_path, plan)
    labels = np.array([1.0, 2.0, 3.0, 4.0, 100.0], "float32")
    outputs = np.array([1.5, 2.0, 2.0, 4.0, 0.0], "float32")
    errors = np.abs(labels - outputs)
    expected = {
        "mean_absolute_error": errors.mean(),
        "mean_squared_error": np.square(errors).mean(),
        "root_mean_squared_error": np.sqrt(np.square(errors).mean()),
    }
    for name, value in expected.items():
        found = modelfile.metric(name, model.plan.label)
        for batch in (slice(0, 4), slice(4, 5)):
            found.update_state(labels[batch], outputs[batch])
        assert float(found.result()) == pytest.approx(value, rel=1e-6)


def _raw(model: Any, table: pa.Table) -> list[Any]:
    from elasticdl.tabular.inputs import columns_of
    from tests.tabular.feeding import columns_of as chunk

    return list(columns_of(model.plan, chunk(table)).values())


PLAIN = """
import sys
sys.modules["elasticdl"] = None  # as where it is not installed
import keras, numpy as np, pandas, tensorflow as tf
model = keras.models.load_model(sys.argv[1])
frame = pandas.read_parquet(sys.argv[2])
frame["city"] = frame["city"].fillna("")
frame = frame.drop(columns=["id", "income"])  # the columns that are inputs
found = model.predict(tf.data.Dataset.from_tensor_slices(dict(frame)).batch(64), verbose=0)
np.savez(sys.argv[3], label=np.asarray(found["income"]).astype(str), probabilities=found["probabilities"])
"""


def test_plain_keras_predicts_what_the_job_predicts(tmp_path: Path) -> None:
    table = employees(240).drop_columns(["marks", "tags"])
    for name in ("城市.\"名\"/'x'", "a.b", "it's", "select ;", "c0"):
        table = table.append_column(name, table["about" if name.startswith("城") else "年龄"])
    plan = planned(snapshot(tmp_path, table), table, "income", rows=150)  # so few are not validated
    loaded(tmp_path, plan)
    spec = job(tmp_path)
    sample = records(table.slice(0, 32))
    adapter = KerasAdapter(FRAMEWORK.load(spec), spec)
    adapter.prepare(sample)
    for step in range(5):
        adapter.compute(adapter.convert(sample), step, 0)
        adapter.apply(np.frombuffer(adapter.accumulator(), np.float32).copy(), 32.0)
    adapter.export(str(tmp_path / "model.keras"), "keras")
    adapter.export(str(tmp_path / "saved"), "saved_model")

    def predicted(path: Path) -> Any:
        predicting = JobSpec(
            kind=JobKind.PREDICT,
            model_zoo=str(tmp_path),
            model_def="model.custom_model",
            prediction_data="unused",
            trained_model=str(path),
            output="unused",
        )
        model = FRAMEWORK.trained(FRAMEWORK.load(spec), predicting, None, path)
        model.prepare(sample)
        return model.predict(model.convert(records(table)), 0, 0)

    ours = predicted(tmp_path / "model.keras")
    again = predicted(tmp_path / "saved")
    np.testing.assert_array_equal(again["probabilities"], ours["probabilities"])
    pq.write_table(table, tmp_path / "table.parquet")
    paths = [str(tmp_path / name) for name in ("model.keras", "table.parquet", "found.npz")]
    subprocess.run([sys.executable, "-c", PLAIN, *paths], check=True, timeout=600)
    found = np.load(tmp_path / "found.npz")
    assert found["label"].tolist() == ours["income"].tolist()
    np.testing.assert_allclose(found["probabilities"], ours["probabilities"], atol=1e-6)


class _Rows:
    """What parameter servers have of each table: ones."""

    def matrix(self, table: int, rows: int) -> Any:
        yield np.ones((rows, 4), np.float32)


def test_tables_of_servers_are_in_the_exported_model(tmp_path: Path) -> None:
    table = employees(240).select(["city", "team", "income"])
    asked = (ColumnList((Call(F.EMBEDDING, (Call(F.HASH_BUCKET, (Name("city"),), (5000,)),), (4,)),)),)
    loaded(tmp_path, planned(snapshot(tmp_path, table), table, "income", columns=asked, rows=150))
    spec = job(tmp_path, num_ps_pods=1, embedding_threshold=50_000)
    adapter = KerasPsAdapter(FRAMEWORK.load(spec), spec)
    adapter.prepare(records(table.slice(0, 32)))
    assert [one.width for one in adapter.catalog.tables] == [4]
    adapter.export(str(tmp_path / "model.keras"), "keras", _Rows())  # type: ignore[arg-type]
    model = tf.keras.models.load_model(tmp_path / "model.keras")
    found = model({"city": tf.constant(["Lima", "nowhere"]), "team": tf.constant([1.0, 9.0], tf.float64)})
    assert np.isfinite(found["probabilities"]).all()
    assert any(one.shape == (5000, 4) and (one.numpy() == 1).all() for one in model.weights)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def serving_model():\n    return None", r"serving_model\(\) can't be called as serving_model\(…\)"),
        ("def serving_model(model):\n    return 1", "serving_model returned a int; expected a keras.Model"),
        ("def serving_model(model):\n    raise KeyError('x')", r"serving_model failed: KeyError: 'x' \(line"),
        (
            "def serving_model(model):\n    import keras\n    a = keras.Input((1,))\n"
            "    return keras.Model(a, keras.layers.Dense(1)(a))",
            "without all weights of the one it was given",
        ),
    ],
)
def test_what_serving_model_must_not_do(source: str, message: str, tmp_path: Path) -> None:
    table = employees(240).select(["city", "team", "income"])
    loaded(tmp_path, planned(snapshot(tmp_path, table), table, "income"))
    (tmp_path / f"other_{abs(hash(source))}.py").write_text(
        (tmp_path / "model.py").read_text() + "\n" + source
    )
    spec = JobSpec(
        model_zoo=str(tmp_path), model_def=f"other_{abs(hash(source))}.custom_model", training_data="unused"
    )
    with pytest.raises(BadModel, match=message):
        KerasAdapter(FRAMEWORK.load(spec), spec).prepare(records(table.slice(0, 8)))
