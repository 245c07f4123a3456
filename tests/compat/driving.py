"""Drives the model files of this folder by hand: `python -m tests.compat.driving DIRECTORY`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticdl.control.protocol.metricstates import combine
from elasticdl.spec import framework
from elasticdl.spec.edge import build, from_arguments
from elasticdl.spec.jobspec import JobKind, JobSpec
from elasticdl.spec.modelfile import check_model_file
from tests.modelfiles import LIFE, commit

ZOO = Path(__file__).parent / "zoo"


def examples(size: int, side: Sequence[int]) -> list[bytes]:
    """Return records with an image, and a label that its brightness tells."""
    import tensorflow as tf

    def record(number: int) -> bytes:
        pixels = np.full(side, number % 10 * 25.0, np.float32).reshape(-1)
        feature = {
            "image": tf.train.Feature(float_list=tf.train.FloatList(value=pixels)),
            "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[number % 10])),
        }
        return bytes(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())

    return [record(number) for number in range(size)]


def rows(name: str, size: int) -> list[list[str]]:
    """Return rows of a CSV file."""
    match name:
        case "census":
            return [[str(20 + n), str(30 + n % 9), f"w{n % 3}", f"e{n % 5}", str(n % 2)] for n in range(size)]
        case "heart":
            return [[str(20 + n), ("fixed", "normal", "odd")[n % 3], str(n % 2)] for n in range(size)]
        case _:
            return [[str(n % 50), str(n * 3 % 50), str(n * 7 % 50), str(n % 2)] for n in range(size)]


def job(name: str, model: str, kind: JobKind = JobKind.TRAIN, **settings: Any) -> JobSpec:
    """Return a job of a model file."""
    data = {
        JobKind.TRAIN: "training_data",
        JobKind.EVALUATE: "validation_data",
        JobKind.PREDICT: "prediction_data",
    }
    asked: dict[str, object] = {"model_zoo": str(ZOO), "model_def": f"{name}.{model}", data[kind]: "x"}
    asked |= {"framework": "tf_keras", "minibatch_size": 8, "seed": 7}
    if kind is JobKind.PREDICT:
        asked["output"] = "predictions"
    spec = build(from_arguments({**asked, **settings}), kind)
    if kind is JobKind.TRAIN:
        check_model_file(spec)
    return spec


def drive(made: Any, name: str, model: str, raw: Sequence[Any], where: Path) -> str:
    """Train a few steps, write the model, evaluate and predict with what was written."""
    spec = job(name, model)
    user = made.load(spec)
    adapter = made.adapter(user, spec, None, LIFE)
    adapter.prepare(raw[:8])
    begun = adapter.digest()
    for step in range(1, 4):
        commit([adapter], [raw[:8], raw[8:13]], step)
    assert adapter.digest() != begun
    results = []
    evaluator = adapter.evaluator(None)
    functional = getattr(adapter.model, "inputs", None)
    output = where / (f"{name}.keras" if functional else name)
    adapter.export(str(output), "keras" if functional else "saved_model")
    weights = job(name, model, JobKind.EVALUATE, trained_model=str(output))
    trained = made.trained(user, weights, None, output)
    trained.prepare(raw[:8])
    for one in (evaluator, trained.evaluator(None)):
        one.prepare(raw[:8])
        one.begin_task(0)
        one.evaluate(one.convert(raw[:13]))
        results.append(one.metric_values(combine(one.catalog(), [one.task_state()])))
    assert results[0] == results[1]
    predicting = made.trained(
        user, job(name, model, JobKind.PREDICT, trained_model=str(output)), None, output
    )
    predicting.prepare(raw[:8])
    predicted = predicting.predict(predicting.convert(raw[:5]), 0, 0)
    assert all(len(one) == 5 for one in predicted.values())
    return f"{results[0]} {sorted(predicted)}"


class Rows:
    """Tables as they would be on servers."""

    def matrix(self, table: int, count: int) -> Iterator[npt.NDArray[np.float32]]:
        """Yield the rows of a table."""
        yield np.full((count, 4), 0.5, np.float32)


def drive_with_servers(made: Any, name: str, raw: Sequence[Any]) -> str:
    """Compute gradients and an evaluation of a model whose rows are given."""
    spec = job(name, "custom_model", num_ps_pods=1)
    user = made.load(spec)
    adapter = made.ps_adapter(user, spec, None, LIFE)
    adapter.prepare(raw[:8])
    batch = adapter.convert(raw[:8])
    tables = adapter.catalog.tables
    given = [
        np.full(len(ids) * table.width, 0.25, np.float32)
        for ids, table in zip(batch.batches, tables, strict=True)
    ]
    found = adapter.compute(batch, given, 0, 0)
    assert all(np.any(values) for values in found.rows)
    evaluator = adapter.evaluator(None)
    evaluator.prepare(raw[:8])
    evaluator.begin_task(0)
    again = evaluator.convert(raw[:8])
    evaluator.evaluate(again, given)
    return f"{[table.name for table in tables]}"


def main() -> None:
    """Drive them all."""
    made: Any = framework.find("tf_keras")
    made.start(1)
    where = Path(sys.argv[1])
    for name, model, raw in (
        ("mnist_functional", "custom_model", examples(16, [28, 28])),
        ("mnist_subclass", "CustomModel", examples(16, [28, 28])),
        ("cifar10", "custom_model", examples(16, [32, 32, 3])),
        *((name, "custom_model", rows(name, 16)) for name in ("census", "heart", "deepfm")),
    ):
        print("driven", name, drive(made, name, model, raw, where), flush=True)
    for name in ("census", "deepfm"):
        print("driven", f"{name}-servers", drive_with_servers(made, name, rows(name, 16)), flush=True)
    assert not [one for one in sys.modules if one.startswith("elasticdl.python")]


if __name__ == "__main__":
    main()
