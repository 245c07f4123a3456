"""Evaluation: in tasks it gives what `model.evaluate` gives, and nothing of what is trained changes."""

from __future__ import annotations

import itertools
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np
import pytest

from elasticdl.control.protocol.metricstates import combine, pack, unpack
from elasticdl.errors import BadData, BadModel
from elasticdl.keras import evaluation
from elasticdl.keras.adapter import KerasAdapter
from elasticdl.keras.evaluation import KerasEvaluator
from elasticdl.keras.framework import FRAMEWORK
from elasticdl.keras.internals import seed_states
from tests.keras.conftest import HEAD, job, records

Make = Callable[..., KerasAdapter]
Chunks = Sequence[list[bytes]]

BINARY = """
def custom_model():
    inputs = keras.Input((3,))
    return keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(inputs))

def labelled(values):
    return tf.cast(values[3:] > 0, tf.float32)
"""
ONE_HOT = """
def custom_model():
    inputs = keras.Input((3,))
    return keras.Model(inputs, keras.layers.Dense(3, activation="softmax")(inputs))

def labelled(values):
    return tf.one_hot(tf.cast(tf.abs(values[3]), tf.int32) % 3, 3)
"""
SPARSE = """
def custom_model():
    inputs = keras.Input((3,))
    return keras.Model(inputs, keras.layers.Dense(3, activation="softmax")(inputs))

def labelled(values):
    return tf.cast(tf.abs(values[3]), tf.int64) % 3

def loss(labels, predictions):
    return keras.losses.sparse_categorical_crossentropy(labels, predictions)
"""
NUMBERS = """
def custom_model():
    inputs = keras.Input((3,))
    x = keras.layers.ActivityRegularization(l1=0.1)(keras.layers.Dense(3, kernel_regularizer="l2")(inputs))
    return keras.Model(inputs, keras.layers.Activation("softplus")(x))

def labelled(values):
    return tf.abs(values[1:]) + 0.5
"""
CLASSES = """
class Classes(keras.layers.Layer):
    def call(self, inputs):
        return tf.stop_gradient(tf.round(2 * tf.sigmoid(inputs)) - inputs) + inputs

def custom_model():
    inputs = keras.Input((3,))
    return keras.Model(inputs, Classes()(keras.layers.Dense(1)(inputs)))

def labelled(values):
    return tf.abs(values[3:]) % 3
"""
WEIGHTED = {
    False: "\ndef weighted(values):\n    return ()\n",
    True: "\ndef weighted(values):\n    return (tf.abs(values[0]) % 3 + 1,)\n",
}
FEED = """
def loss(labels, predictions):
    return keras.losses.mean_squared_error(labels, predictions)

def feed(dataset, mode, metadata):
    def parse(record):
        values = tf.strings.to_number(tf.strings.split(tf.expand_dims(record, 0), ",").to_tensor()[0])
        values = tf.ensure_shape(values, [4])
        return (values[:3], labelled(values), *weighted(values))
    return dataset.map(parse)
"""

OF_KIND: dict[str, dict[str, dict[str, Any]]] = {
    BINARY: {
        "AUC": {"curve": "PR"}, "FalseNegatives": {}, "FalsePositives": {}, "TrueNegatives": {},
        "TruePositives": {"thresholds": [0.3, 0.6]}, "Precision": {}, "Recall": {"thresholds": 0.4},
        "PrecisionAtRecall": {"recall": 0.5}, "RecallAtPrecision": {"precision": 0.4},
        "SensitivityAtSpecificity": {"specificity": 0.5}, "SpecificityAtSensitivity": {"sensitivity": 0.5}, "BinaryAccuracy": {},
        "BinaryCrossentropy": {}, "BinaryIoU": {}, "Hinge": {}, "SquaredHinge": {},
    },
    ONE_HOT: {
        "CategoricalAccuracy": {}, "TopKCategoricalAccuracy": {"k": 2}, "CategoricalCrossentropy": {}, "CategoricalHinge": {},
        "KLDivergence": {}, "F1Score": {}, "FBetaScore": {"average": "weighted", "beta": 2.0},
        "OneHotIoU": {"num_classes": 3, "target_class_ids": [0, 2]}, "OneHotMeanIoU": {"num_classes": 3},
    },
    SPARSE: {
        "SparseCategoricalAccuracy": {}, "SparseTopKCategoricalAccuracy": {"k": 2}, "SparseCategoricalCrossentropy": {},
        "MeanIoU": {"num_classes": 3, "sparse_y_pred": False},
    },
    NUMBERS: {
        "MeanSquaredError": {}, "RootMeanSquaredError": {}, "MeanAbsoluteError": {}, "MeanAbsolutePercentageError": {},
        "MeanSquaredLogarithmicError": {}, "CosineSimilarity": {}, "LogCoshError": {}, "R2Score": {}, "Poisson": {},
        "PearsonCorrelation": {}, "ConcordanceCorrelation": {},
        "MeanMetricWrapper": {"fn": keras.losses.mean_absolute_error},
    },
    CLASSES: {"Accuracy": {}, "IoU": {"num_classes": 3, "target_class_ids": [1]}},
}  # fmt: skip
"""Model and labels → metrics that are for them, with their arguments."""
NEITHER = {"Metric", "Mean", "Sum"}
"""Of these a model's evaluation can't be made: they see no predictions."""

CHUNKS = [records(4, 4 * n) for n in range(5)] + [records(3, 20)]
GROUPINGS = [[[0, 1], [2, 3], [4, 5]], [[0], [1, 2, 3, 4], [5]], [[], [0, 1, 2, 3, 4], [5]]]


def evaluator_of(made: KerasAdapter, sample: list[bytes] | None = None) -> KerasEvaluator:
    evaluator = made.evaluator(None)
    evaluator.prepare(sample if sample is not None else CHUNKS[0])
    return evaluator


def state_of(evaluator: KerasEvaluator, task: int, chunks: Chunks) -> list[np.ndarray]:
    evaluator.begin_task(task)
    examples = sum(evaluator.evaluate(evaluator.convert(chunk)) for chunk in chunks)
    assert examples == sum(map(len, chunks))
    return evaluator.task_state()


def values_of(
    evaluator: KerasEvaluator, chunks: Chunks = CHUNKS, grouping: Iterable[Iterable[int]] = GROUPINGS[0]
) -> dict[str, Any]:
    states = [
        state_of(evaluator, number, [chunks[place] for place in task]) for number, task in enumerate(grouping)
    ]
    return evaluator.metric_values(combine(evaluator.catalog(), states))


def expected(
    made: KerasAdapter, metrics: list[Any], weighted: bool, loss: Any, chunks: Chunks = CHUNKS
) -> dict[str, Any]:
    """Return what Keras makes of the same minibatches."""
    pipeline = made.evaluator(None)
    batches = [pipeline.convert(chunk).data for chunk in chunks]
    plain = keras.models.clone_model(made.model)
    plain.set_weights(made.model.get_weights())
    # Eagerly: to compile this many metrics takes longer than a few minibatches do.
    plain.compile(
        loss=loss,
        jit_compile=False,
        run_eagerly=True,
        **{"weighted_metrics" if weighted else "metrics": metrics},
    )
    found = plain.evaluate((batch for batch in batches), steps=len(batches), return_dict=True, verbose=0)
    return {f"val_{name}": np.asarray(value).tolist() for name, value in found.items()}


def assert_close(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_allclose(value, other[name], rtol=1e-6, atol=1e-6, err_msg=name)


def metrics_file(entries: dict[str, dict[str, Any]]) -> str:
    lines = ["def eval_metrics_fn():", "    return {"]
    for name, arguments in entries.items():
        shown = ", ".join(
            f"{key}={'keras.losses.mean_absolute_error' if callable(value) else repr(value)}"
            for key, value in arguments.items()
        )
        lines.append(f"        {name!r}: keras.metrics.{name}({shown}),")
    return "\n".join([*lines, "    }", ""])


# ---------------------------------------------------------------------- metrics of Keras


def test_every_class_of_keras_is_tried_below() -> None:
    classes = {
        name
        for name, one in vars(keras.metrics).items()
        if isinstance(one, type) and issubclass(one, keras.metrics.Metric)
    }
    assert classes - NEITHER == {name for kind in OF_KIND.values() for name in kind}


@pytest.mark.filterwarnings("ignore:You are passing weight")
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", OF_KIND, ids=["binary", "one_hot", "sparse", "numbers", "classes"])
def test_parts_in_any_grouping_give_what_keras_gives_in_one_pass(
    adapter: Make, kind: str, weighted: bool
) -> None:
    made = adapter(FEED + WEIGHTED[weighted] + kind + metrics_file(OF_KIND[kind]))
    evaluator = evaluator_of(made)
    file = sys.modules[made._user.model.__module__]
    wanted = [
        getattr(keras.metrics, name)(name=name, **arguments) for name, arguments in OF_KIND[kind].items()
    ]
    whole = expected(made, wanted, weighted, file.loss)
    assert whole.keys() == {"val_loss", *(f"val_{name}" for name in OF_KIND[kind])}
    for grouping in GROUPINGS:
        assert_close(values_of(evaluator, grouping=grouping), whole)


TWO = """
def custom_model():
    inputs = keras.Input((3,))
    yes, number = keras.layers.Dense(1, activation="sigmoid")(inputs), keras.layers.Dense(2)(inputs)
    return keras.Model(inputs, {"yes": yes, "number": number})

def labelled(values):
    return {"yes": tf.cast(values[3:] > 0, tf.float32), "number": values[:2]}

loss = {"yes": keras.losses.BinaryCrossentropy(), "number": keras.losses.MeanSquaredError()}

def eval_metrics_fn():
    return {
        "number": {"mae": keras.metrics.MeanAbsoluteError(name="mae")},
        "yes": {"auc": keras.metrics.AUC(name="auc"), "share": lambda labels, predictions: labels[:, 0]},
    }
"""


@pytest.mark.parametrize("weighted", [False, True])
def test_two_outputs_have_metrics_of_their_own(adapter: Make, weighted: bool) -> None:
    made = adapter(FEED + WEIGHTED[weighted] + TWO)
    evaluator = evaluator_of(made)
    assert [(one.name, one.output) for one in evaluator.catalog().metrics] == [
        ("val_loss", ""), ("val_number_mae", "number"), ("val_yes_auc", "yes"), ("val_yes_share", "yes"),
    ]  # fmt: skip
    found = values_of(evaluator)
    metrics = {
        "number": [keras.metrics.MeanAbsoluteError(name="mae")],
        "yes": [keras.metrics.AUC(name="auc")],
    }
    whole = expected(
        made, metrics, weighted, {"yes": keras.losses.BinaryCrossentropy(), "number": "mean_squared_error"}
    )
    share = found.pop("val_yes_share")
    assert_close(found, {name: whole[name] for name in found})
    rows = [[float(cell) for cell in row.split(b",")] for chunk in CHUNKS for row in chunk]
    weights = [abs(row[0]) % 3 + 1 if weighted else 1 for row in rows]
    assert share == pytest.approx(np.average([row[3] > 0 for row in rows], weights=weights))


def test_the_same_labels_are_for_all_outputs(adapter: Make) -> None:
    source = """
    def custom_model():
        inputs = keras.Input((3,))
        return keras.Model(inputs, {"a": keras.layers.Dense(1)(inputs), "b": keras.layers.Dense(1)(inputs)})
    def labelled(values):
        return values[3:]
    def loss(labels, predictions):
        return tf.reduce_mean(tf.square(labels - predictions["a"] - predictions["b"]))
    def eval_metrics_fn():
        return {"a": {"mse": keras.metrics.MeanSquaredError()}, "b": {"mse": keras.metrics.MeanSquaredError}}
    """
    made = adapter(FEED + WEIGHTED[False] + textwrap.dedent(source))
    found = values_of(evaluator_of(made))
    assert found["val_a_mse"] != found["val_b_mse"]


# ---------------------------------------------------------------------- functions


FUNCTIONS = """
def eval_metrics_fn():
    return {
        "each": lambda labels, predictions: tf.abs(labels - predictions)[:, 0],
        "more": lambda labels, predictions: tf.abs(labels - predictions),
        "right": lambda labels, predictions: tf.equal(labels, predictions),
    }
"""


@pytest.mark.parametrize("weighted", [False, True])
def test_a_functions_values_are_averaged_over_the_examples(adapter: Make, weighted: bool) -> None:
    made = adapter(FEED + WEIGHTED[weighted] + NUMBERS + FUNCTIONS)
    found = values_of(evaluator_of(made))
    whole = [made.evaluator(None).convert(chunk).data for chunk in CHUNKS]
    labels = np.concatenate([np.asarray(data[1]) for data in whole])
    difference = np.abs(labels - np.concatenate([np.asarray(made.model(data[0])) for data in whole]))
    weights = np.concatenate([np.asarray(data[2]) for data in whole]) if weighted else np.ones(len(labels))
    assert found["val_each"] == pytest.approx(np.average(difference[:, 0], weights=weights), rel=1e-6)
    assert found["val_more"] == pytest.approx(np.average(difference.mean(axis=1), weights=weights), rel=1e-6)
    assert found["val_right"] == 0.0


def test_a_scalar_weighs_its_examples(adapter: Make) -> None:
    source = (
        "\ndef eval_metrics_fn():\n    return {'mean': lambda labels, predictions: tf.reduce_mean(labels)}\n"
    )
    made = adapter(source)
    chunks = [records(8), records(1, 40)]
    found = values_of(evaluator_of(made), chunks, [[0, 1]])
    labels = [float(row.rpartition(b",")[2]) for chunk in chunks for row in chunk]
    assert found["val_mean"] == pytest.approx(np.mean(labels))


def test_a_result_may_be_a_dict_or_a_vector(adapter: Make) -> None:
    source = """
    class Both(keras.metrics.MeanSquaredError):
        def result(self):
            return {"mean": super().result(), "sums": keras.ops.stack([self.total + 0, self.count + 0])}
    def eval_metrics_fn():
        return {"both": Both()}
    """
    found = values_of(evaluator_of(adapter(source)))
    assert found.keys() == {"val_loss", "val_both_mean", "val_both_sums"}
    assert found["val_both_sums"][1] == 23
    assert found["val_both_mean"] == pytest.approx(found["val_both_sums"][0] / 23)


def test_states_of_half_width_are_added_in_full(adapter: Make) -> None:
    source = """
    def eval_metrics_fn():
        return {"half": keras.metrics.MeanSquaredError(dtype="bfloat16"), "whole": keras.metrics.MeanSquaredError()}
    """
    evaluator = evaluator_of(adapter(source))
    assert {array.dtype for array in evaluator.catalog().metrics[1].state} == {"float32"}
    found = values_of(evaluator)
    assert found["val_half"] == pytest.approx(found["val_whole"], rel=0.02)


def test_without_metrics_there_is_the_loss(adapter: Make) -> None:
    assert values_of(evaluator_of(adapter())).keys() == {"val_loss"}


# ---------------------------------------------------------------------- what is trained stays


RESTLESS = """
class Counted(keras.layers.Layer):
    # counts its calls, trained or not
    def build(self, shape):
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)
    def call(self, inputs, training=False):
        self.calls.assign(self.calls + 1)
        return inputs

class Noise(keras.layers.Layer):
    # draws from a generator that has a state, trained or not
    def __init__(self):
        super().__init__()
        self.generator = keras.random.SeedGenerator(3)
    def call(self, inputs):
        return inputs + keras.random.normal(tf.shape(inputs), seed=self.generator)

def custom_model():
    inputs = keras.Input((3,))
    x = keras.layers.BatchNormalization()(Noise()(Counted()(inputs)))
    x = keras.layers.Dropout(0.5)(x)
    return keras.Model(inputs, keras.layers.Dense(1, kernel_regularizer="l2")(x))

def optimizer():
    return keras.optimizers.Adam(0.01)

def eval_metrics_fn():
    return {"mse": keras.metrics.MeanSquaredError(), "first": lambda labels, predictions: predictions[:, 0]}
"""


def step(made: KerasAdapter, number: int, between: Callable[[], None] = lambda: None) -> None:
    made.compute(made.convert(records(8, 8 * number)), number, 0)
    between()
    made.apply(np.array(made.accumulator()), 8.0)


def test_not_a_bit_of_what_is_trained_changes(adapter: Make) -> None:
    made, undisturbed = adapter(RESTLESS), adapter(RESTLESS)
    step(made, 1)
    step(undisturbed, 1)
    before = made.image().body.tobytes(), [state.numpy() for state in seed_states(made.model)]
    evaluator = evaluator_of(made)

    def evaluate() -> None:
        accumulated = np.array(made.accumulator())
        values_of(evaluator)
        np.testing.assert_array_equal(np.array(made.accumulator()), accumulated)

    values_of(evaluator)
    assert made.image().body.tobytes() == before[0]
    for state, value in zip(seed_states(made.model), before[1], strict=True):
        np.testing.assert_array_equal(state.numpy(), value)
    assert len(made.model.losses) == 1
    step(made, 2, evaluate)
    step(undisturbed, 2)
    assert made.digest() == undisturbed.digest()


def test_the_model_is_that_of_the_present_step(adapter: Make) -> None:
    made = adapter(RESTLESS)
    evaluator = evaluator_of(made)
    before = values_of(evaluator)
    step(made, 1)
    after = values_of(evaluator)
    assert before["val_mse"] != after["val_mse"]
    made.load(adapter(RESTLESS).image())
    assert values_of(evaluator) == before


def test_it_is_not_in_training_mode(adapter: Make) -> None:
    source = """
    def custom_model():
        inputs = keras.Input((3,))
        return keras.Model(inputs, keras.layers.Dropout(0.9)(keras.layers.Dense(1)(inputs)))
    def eval_metrics_fn():
        return {"zeros": lambda labels, predictions: tf.equal(predictions, 0.0)}
    def feed(dataset, mode, metadata):
        assert mode in ("training", "evaluation")
        if mode == "evaluation":
            assert metadata == "of the evaluation data"
        return dataset.map(lambda record: (tf.ones([3]), tf.ones([1])))
    """
    made = adapter(source)
    evaluator = made.evaluator("of the evaluation data")
    evaluator.prepare(CHUNKS[0])
    assert values_of(evaluator)["val_zeros"] == 0.0


# ---------------------------------------------------------------------- the same bits


@pytest.fixture(scope="module")
def restless(tmp_path_factory: pytest.TempPathFactory) -> KerasEvaluator:
    """Make an evaluator of RESTLESS for the tests that train nothing; each begins tasks of its own."""
    folder = tmp_path_factory.mktemp("restless")
    (folder / "restless.py").write_text(HEAD + RESTLESS)
    spec = job(model_zoo=str(folder), model_def="restless.custom_model")
    made = KerasAdapter(FRAMEWORK.load(spec), spec)
    made.prepare(records(8))
    return evaluator_of(made)


def test_values_have_the_same_bits_whichever_worker_computes_which_task(
    restless: KerasEvaluator, adapter: Make
) -> None:
    workers = [restless, evaluator_of(adapter(RESTLESS))]
    tasks = [CHUNKS[:2], CHUNKS[2:3], CHUNKS[3:5], CHUNKS[5:]]
    catalog = workers[0].catalog()
    assert catalog.text() == workers[1].catalog().text()
    found = []
    for split in itertools.product([0, 1], repeat=len(tasks)):
        states: list[Any] = [None] * len(tasks)
        for task in (2, 0, 3, 1):
            body = pack(state_of(workers[split[task]], task, tasks[task]))
            states[task] = unpack(catalog.task_arrays(), body)
        found += [worker.metric_values(combine(catalog, states)) for worker in workers]
    assert all(one == found[0] for one in found)


def test_randomness_is_of_the_jobs_seed_the_task_and_the_chunk(
    restless: KerasEvaluator, adapter: Make
) -> None:
    chunk = CHUNKS[0]
    other = evaluator_of(adapter(RESTLESS, seed=8))
    first, twice, second = (
        state_of(restless, task, chunks) for task, chunks in ((0, [chunk]), (0, [chunk, chunk]), (1, [chunk]))
    )
    assert len({float(state[0]) for state in (first, second, state_of(other, 0, [chunk]))}) == 3
    assert twice[0] != 2 * first[0]


def test_a_model_that_draws_nothing_gets_no_seeds(
    restless: KerasEvaluator, adapter: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluator = evaluator_of(adapter())
    monkeypatch.setattr(evaluation, "chunk_seeds", None)
    assert state_of(evaluator, 1, CHUNKS[:1])[1] == len(CHUNKS[0])
    with pytest.raises(TypeError):
        state_of(restless, 1, CHUNKS[:1])


def test_a_task_that_is_begun_again_is_begun_at_zero(restless: KerasEvaluator) -> None:
    whole = state_of(restless, 3, CHUNKS)
    state_of(restless, 3, CHUNKS[:1])
    for one, other in zip(state_of(restless, 3, CHUNKS), whole, strict=True):
        np.testing.assert_array_equal(one, other)
    kept = restless.task_state()
    restless.evaluate(restless.convert(CHUNKS[0]))
    for one, other in zip(kept, whole, strict=True):
        np.testing.assert_array_equal(one, other)


# ---------------------------------------------------------------------- states that don't add


MERGED = """
class Largest(keras.metrics.Metric):
    def __init__(self):
        super().__init__()
        self.largest = self.add_variable((), "zeros")
    def update_state(self, labels, predictions, sample_weight=None):
        self.largest.assign(tf.maximum(self.largest, tf.reduce_max(tf.abs(labels))))
    def result(self):
        return self.largest
    def merge_state(self, metrics):
        for metric in metrics:
            self.largest.assign(tf.maximum(self.largest, metric.largest))

class Last(keras.metrics.Metric):
    # shows the order, and does not begin at zero
    def __init__(self):
        super().__init__()
        self.last = self.add_variable((), lambda shape, dtype: tf.fill(shape, tf.cast(-100, dtype)), dtype="int32")
    def update_state(self, labels, predictions):
        self.last.assign(tf.cast(tf.reshape(labels, [-1])[-1], tf.int32))
    def result(self):
        return self.last
    def merge_state(self, metrics):
        for metric in metrics:
            self.last.assign(metric.last)

class Product(keras.metrics.Metric):
    def __init__(self):
        super().__init__()
        self.product = self.add_variable((), "ones")
    def update_state(self, labels, predictions):
        self.product.assign(self.product * tf.exp(tf.reduce_sum(labels) / 64))
    def result(self):
        return self.product
    def merge_state(self, metrics):
        for metric in metrics:
            self.product.assign(self.product * metric.product)

def eval_metrics_fn():
    return {"mse": keras.metrics.MeanSquaredError(), "largest": Largest(), "last": Last(), "product": Product()}
"""


def test_other_states_are_merged_in_the_order_of_the_tasks(adapter: Make) -> None:
    made = adapter(MERGED)
    evaluator = evaluator_of(made)
    assert [one.adds for one in evaluator.catalog().metrics] == [True, True, False, False, False]
    labels = [float(row.rpartition(b",")[2]) for chunk in CHUNKS for row in chunk]
    for grouping in GROUPINGS[:2]:
        states = [
            state_of(evaluator, n, [CHUNKS[place] for place in task]) for n, task in enumerate(grouping)
        ]
        combined = combine(evaluator.catalog(), states)
        described = evaluator.catalog().combined_arrays(3)
        combined = unpack(described, pack(combined))
        for _ in range(2):  # a value leaves nothing behind
            found = evaluator.metric_values(combined)
            assert found["val_largest"] == max(map(abs, labels))
            assert found["val_last"] == labels[-1]
            assert found["val_product"] == pytest.approx(np.exp(sum(labels) / 64))


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            "self.add_variable((), 'zeros')|self.kept.assign(tf.maximum(self.kept, tf.reduce_max(tf.abs(labels))))|self.kept",
            "the sum of those of two chunks is not that of both",
        ),
        ("self.add_variable((), 'ones')|self.kept.assign(self.kept + tf.reduce_sum(labels))|self.kept", "they don't begin at zero"),
        (
            "self.add_variable((), 'zeros')|self.seen = getattr(self, 'seen', []) + [float(tf.reduce_sum(labels))]|sum(self.seen)",
            "the value depends on something else",
        ),
        (
            "self.add_variable((), 'zeros')|self.seen = getattr(self, 'seen', 0) + 1|self.seen",
            "the value depends on something else",
        ),
        ("[]|self.kept = [*self.kept, float(tf.reduce_sum(labels))]|sum(self.kept)", "keeps nothing in variables"),
    ],
    ids=["maximum", "from one", "list", "attribute", "no variable"],
)  # fmt: skip
def test_what_can_not_be_combined_is_refused_with_the_remedy(adapter: Make, source: str, reason: str) -> None:
    kept, update, result = source.split("|")
    source = f"""
    class Own(keras.metrics.Metric):
        def __init__(self):
            super().__init__()
            self.kept = {kept}
        def update_state(self, labels, predictions):
            {update}
        def result(self):
            return {result}
    def eval_metrics_fn():
        return {{"own": Own()}}
    """
    made = adapter(source)
    with pytest.raises(BadModel, match=r"eval_metrics_fn\(\)\['own'\]") as refused:
        evaluator_of(made)
    assert reason in str(refused.value)
    assert "define merge_state(metrics)" in str(refused.value)


def test_a_merge_that_is_wrong_is_refused(adapter: Make) -> None:
    made = adapter(
        MERGED.replace(
            "self.largest.assign(tf.maximum(self.largest, metric.largest))", "self.largest.assign(0)"
        )
    )
    with pytest.raises(BadModel, match="merge_state of a Largest makes another value of two chunks"):
        evaluator_of(made)


def test_the_users_own_class_may_add(adapter: Make) -> None:
    source = """
    class Positives(keras.metrics.Metric):
        def __init__(self):
            super().__init__()
            self.count = self.add_variable((), "zeros", dtype="int32")
        def update_state(self, labels, predictions):
            self.count.assign(self.count + tf.reduce_sum(tf.cast(labels > 0, tf.int32)))
        def result(self):
            return self.count
    def eval_metrics_fn():
        return {"positives": Positives()}
    """
    evaluator = evaluator_of(adapter(source))
    (own,) = [one for one in evaluator.catalog().metrics if one.name == "val_positives"]
    assert (own.adds, own.state[0].dtype) == (True, "int32")
    labels = [float(row.rpartition(b",")[2]) for chunk in CHUNKS for row in chunk]
    assert values_of(evaluator)["val_positives"] == sum(label > 0 for label in labels)
    with pytest.raises(BadModel, match="its sums don't fit int32; give the metric another dtype"):
        evaluator.metric_values([np.array(1.0), np.array(1.0), np.array(2**31)])


# ---------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return {}", r"eval_metrics_fn\(\) is an empty dict; expected \{name: metric\}"),
        ("return {'a': {}}", r"eval_metrics_fn\(\)\['a'\] is an empty dict"),
        ("return [keras.metrics.AUC()]", r"eval_metrics_fn\(\) is a list; expected"),
        ("return {1: keras.metrics.AUC()}", "has the key 1; expected names, which are text"),
        ("return {'loss': keras.metrics.AUC()}", r"\['loss'\] has the name of the loss, which is val_loss always"),
        ("return {'a': {'m': keras.metrics.AUC()}, 'b': keras.metrics.AUC()}", "'a' is a dict, 'b' is none; expected"),
        ("return {'a': {'b_c': keras.metrics.AUC()}, 'a_b': {'c': keras.metrics.AUC()}}", r"\['a_b'\]\['c'\] has the name of .*\['b_c'\]"),
        ("return {'m': 'accuracy'}", "expected a Keras metric or a function .labels, predictions., received 'accuracy'"),
        ("raise KeyError('names')", r"eval_metrics_fn failed: KeyError: 'names' \(line \d+\)"),
        ("return {'m': keras.metrics.MeanIoU}", r"\['m'\] failed: TypeError: .*num_classes"),
        ("return {'out': {'m': keras.metrics.AUC()}}", r"the model gives float32 \[None, 1\], and no dict of outputs by name"),
        ("m = keras.metrics.MeanSquaredError(); return {'a': m, 'b': m}", r"\['b'\] and .*\['a'\] are the same object; make one for each"),
        ("return {'m': SHARED}", r"\['m'\] is the same object each time; make the metrics inside of the function"),
        ("return {'m': failing}", r"\['m'\] failed: ZeroDivisionError: division by zero \(line \d+\)\nlabels are float32 \[None, 1\]"),
        ("return {'m': lambda labels, predictions: tf.zeros([3])}", r"value per example \(shape \[1\]\), or a scalar, received .* \[3\]"),
        ("return {'m': lambda labels, predictions: tf.reduce_mean(labels, 0)}", r"received the shape \[1\]"),
        ("return {'m': lambda labels, predictions: None}", "expected one value per example, or a scalar, received NoneType"),
        ("return {'m': lambda labels, predictions: tf.constant('x')}", "or a scalar, received .*Tensor"),
        ("return {'m': lambda labels: labels}", r"\['m'\] failed: TypeError: .*takes 1 positional argument"),
        ("return {'m': Wordy()}", "expected a number, numbers or a dict of them as the result, received 'word'"),
        ("return {'m': keras.metrics.MeanIoU(num_classes=1024)}", r"the metrics keep 8.0 MiB, most of it val_m, and may keep 4 MiB"),
        ("return {'m': Named('x'), 'm_x': keras.metrics.MeanSquaredError()}", r"\['m_x'\] has the value val_m_x, as .*\['m'\] has"),
    ],
)  # fmt: skip
def test_mistakes_are_refused_with_file_and_entry(adapter: Make, body: str, said: str) -> None:
    source = f"""
    SHARED = keras.metrics.MeanSquaredError()
    def failing(labels, predictions):
        return 1 / 0
    class Wordy(keras.metrics.MeanSquaredError):
        def result(self):
            return "word"
    class Named(keras.metrics.MeanSquaredError):
        def __init__(self, key):
            super().__init__()
            self.key = key
        def result(self):
            return {{self.key: super().result()}}
    def eval_metrics_fn():
        {body}
    """
    made = adapter(source)
    with pytest.raises(BadModel, match=said) as refused:
        evaluator_of(made)
    assert str(made._user.path) in str(refused.value)


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ("lambda labels, predictions: tf.reduce_mean(labels)", "feed gives sample weights, and the function returns a scalar"),
        ("Unweighted()", "feed gives sample weights, and update_state of a Unweighted does not take them"),
    ],
)  # fmt: skip
def test_what_takes_no_weights_is_refused_with_weights(adapter: Make, metric: str, said: str) -> None:
    source = f"""
class Unweighted(keras.metrics.MeanSquaredError):
    def update_state(self, labels, predictions):
        super().update_state(labels, predictions)
def eval_metrics_fn():
    return {{"m": {metric}}}
"""
    made = adapter(FEED + WEIGHTED[True] + NUMBERS + source)
    with pytest.raises(BadModel, match=said):
        evaluator_of(made)
    evaluator_of(adapter(FEED + WEIGHTED[False] + NUMBERS + source))


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("{'yess': {'m': keras.metrics.AUC()}}", "'yess' is not among the outputs of the model, which are number, yes; did you mean yes"),
        ("{'m': keras.metrics.AUC()}", r"for a model with several outputs write \{output: \{name: metric\}\}"),
    ],
)  # fmt: skip
def test_outputs_are_named_as_the_model_names_them(adapter: Make, entry: str, said: str) -> None:
    made = adapter(FEED + WEIGHTED[False] + TWO + f"\ndef eval_metrics_fn():\n    return {entry}\n")
    with pytest.raises(BadModel, match=said):
        evaluator_of(made)


def test_a_failure_of_the_model_outside_of_training_says_what_it_was_given(adapter: Make) -> None:
    source = """
    def feed(dataset, mode, metadata):
        width = 3 if mode == "training" else 2
        return dataset.map(lambda record: (tf.ones([width]), tf.ones([1])))
    """
    made = adapter(source)
    with pytest.raises(
        BadModel, match=r"the evaluation of the first chunk failed: .*\nfeed gave \(float32 \[None, 2\]"
    ):
        evaluator_of(made)


def test_data_without_an_example_is_bad_data(adapter: Make) -> None:
    source = """
    def feed(dataset, mode, metadata):
        found = dataset.map(lambda record: (tf.ones([3]), tf.ones([1])))
        return found if mode == "training" else found.filter(lambda features, labels: features[0] > 2)
    """
    made = adapter(source)
    with pytest.raises(BadData, match="feed made no example of the first 4 records of the evaluation data"):
        evaluator_of(made)
    evaluator = evaluator_of(adapter())
    assert evaluator.evaluate(evaluator.convert([])) == 0
    with pytest.raises(BadData, match="feed made no example of the evaluation data"):
        evaluator.metric_values(combine(evaluator.catalog(), [evaluator.task_state()]))


def test_metrics_may_be_tried_on_one_record(adapter: Make) -> None:
    evaluator = evaluator_of(adapter(MERGED), records(1))
    assert [one.adds for one in evaluator.catalog().metrics] == [True, True, False, False, False]
