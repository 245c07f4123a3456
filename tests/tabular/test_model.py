"""The model of a plan: features of literal values, training, what is exported, and all networks."""

from __future__ import annotations

from elasticdl.keras import runtime

runtime.start(1)

import keras  # noqa: E402  # TensorFlow is imported with its settings first
import tensorflow as tf  # noqa: E402

from elasticdl.tabular import template  # noqa: E402
from elasticdl.tabular.modelfile import TableModel  # noqa: E402
from tests.tabular.tables import employees, planned, snapshot  # noqa: E402


def columns(table, rows=slice(None)):
    out = {}
    for name in table.column_names:
        values = table.column(name).to_pylist()[rows]
        if isinstance(values[0], list):
            out[name] = tf.ragged.constant(values, dtype=tf.string if name == "tags" else tf.float64)
        elif isinstance(values[0], str) or values[0] is None:
            out[name] = tf.constant(["" if v is None else v for v in values])
        else:
            out[name] = tf.constant(table.column(name).to_numpy()[rows])
    return out


def test_thin(tmp_path):
    table = employees()
    plan = planned(snapshot(tmp_path, table), table, "income")
    for r in plan.reasons:
        print(r)
    print(plan.settings)
    template.write(tmp_path, plan)
    model = TableModel(tmp_path / "plan.json")
    trained = model.custom_model()
    ds = model.feed(tf.data.Dataset.from_tensors(columns(table)), "training", None)
    features, labels = ds.get_single_element()
    print({k: v.shape for k, v in features.items()})
    print(features["numbers"][:3])
    out = trained(features)
    print({k: v[:3] for k, v in out.items()})
    served = model.serving_model(trained)
    served.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
