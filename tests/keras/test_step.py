"""The mathematics of a step."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl.errors import BadModel
from elasticdl.keras.adapter import KerasAdapter
from elasticdl.worker.finite import all_finite
from tests.keras.conftest import records

Make = Callable[..., KerasAdapter]

CONVOLUTION = """
def custom_model():
    inputs = keras.Input((3,))
    x = keras.layers.Reshape((3, 1))(inputs)
    x = keras.layers.Conv1D(5, 2, activation="tanh", kernel_regularizer="l2")(x)
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(x)))
"""
NORMALIZED = """
def custom_model():
    inputs = keras.Input((3,))
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.BatchNormalization(momentum=0.5)(inputs)))
"""
DROPPING = """
def custom_model():
    inputs = keras.Input((3,))
    x = keras.layers.Dense(32)(inputs)
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dropout(0.5)(x)))
"""
WHOLE_NUMBERS = """
def custom_model():
    inputs = keras.Input((3,))
    return keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="zeros")(inputs))

def optimizer():
    return keras.optimizers.SGD(0.0625)
"""


def total(members: list[KerasAdapter]) -> np.ndarray:
    """Sum the accumulators as a ring does."""
    return np.sum([np.asarray(member.accumulator()) for member in members], axis=0, dtype=members[0].dtype)


def train(members: list[KerasAdapter], chunks: list[list[bytes]], steps: int = 1) -> None:
    """Train steps of the same chunks, dealt out to the members in turn."""
    for step in range(1, steps + 1):
        examples = 0.0
        for lane, chunk in enumerate(chunks):
            member = members[lane % len(members)]
            examples += member.compute(member.convert(chunk), step, lane).examples
        result = total(members)
        for member in members:
            member.apply(result.copy(), examples)


def weights(adapter: KerasAdapter) -> list[np.ndarray]:
    return [v.numpy() for v in adapter.model.variables if "seed" not in v.path]


@pytest.mark.parametrize("source", [CONVOLUTION, NORMALIZED])
@pytest.mark.parametrize("count", [2, 3])
def test_a_step_split_over_members_equals_one(adapter: Make, source: str, count: int) -> None:
    chunks = [records(8), records(8, 8), records(5, 16), []]
    alone, group = [adapter(source)], [adapter(source) for _ in range(count)]
    train(alone, chunks, steps=3)
    train(group, chunks, steps=3)
    for one, other in zip(weights(alone[0]), weights(group[0]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert len({member.digest() for member in group}) == 1


@pytest.mark.parametrize("count", [2, 3])
def test_whole_numbers_are_exact_whoever_computes(adapter: Make, count: int) -> None:
    chunks = [records(8), records(8, 8), records(5, 16), records(3, 21)]
    alone, group = [adapter(WHOLE_NUMBERS)], [adapter(WHOLE_NUMBERS) for _ in range(count)]
    train(alone, chunks)
    train(group, chunks)
    assert alone[0].digest() == group[0].digest()
    before = alone[0].digest()
    train(alone, chunks)
    assert alone[0].digest() != before


@pytest.mark.parametrize(
    "optimizer",
    [
        "SGD(0.1, momentum=0.9, nesterov=True)",
        "SGD(0.1, weight_decay=0.1, clipnorm=0.5)",
        "Adam(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5))",
        "AdamW(0.1, global_clipnorm=0.3)",
        "SGD(0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2)",
    ],
)
def test_steps_equal_those_of_fit(adapter: Make, optimizer: str) -> None:
    made = adapter(CONVOLUTION + f"\ndef optimizer():\n    return keras.optimizers.{optimizer}\n")
    plain = keras.models.clone_model(made.model)
    plain.set_weights(made.model.get_weights())
    plain.compile(eval(f"keras.optimizers.{optimizer}"), "mse", jit_compile=False)
    for step in range(1, 6):
        batch = made.convert(records(8, 8 * step))
        result = made.compute(batch, step, 0)
        expected = plain.train_on_batch(*batch.data)
        assert result.loss / result.examples == pytest.approx(float(np.asarray(expected)), rel=1e-5)
        made.apply(np.array(made.accumulator()), result.examples)
    assert int(made.optimizer.iterations) == 5
    for mine, other in zip(made.model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(mine, other, rtol=2e-5, atol=1e-6)


def test_statistics_start_from_the_committed_value_and_are_weighted(adapter: Make) -> None:
    made = adapter(NORMALIZED)
    chunks = [records(8), records(4, 20)]
    before = made.digest()
    moving = made.model.layers[1].moving_mean
    means = [np.mean(made.convert(chunk).data[0], axis=0) for chunk in chunks]
    for lane, chunk in enumerate(chunks):
        made.compute(made.convert(chunk), 1, lane)
        assert made.digest() == before
    made.apply(np.array(made.accumulator()), 12.0)
    # from 0, with momentum 0.5: each chunk alone would give half of its mean
    expected = (8 * 0.5 * means[0] + 4 * 0.5 * means[1]) / 12
    np.testing.assert_allclose(moving.numpy(), expected, rtol=1e-6)


def test_dropout_depends_on_step_and_lane_alone(adapter: Make) -> None:
    one, other = adapter(DROPPING), adapter(DROPPING)

    def gradient(made: KerasAdapter, step: int, lane: int) -> bytes:
        made.zero()
        made.compute(made.convert(records(8)), step, lane)
        return bytes(made.accumulator())

    gradient(other, 5, 0)
    assert gradient(one, 3, 1) == gradient(other, 3, 1) == gradient(one, 3, 1)
    assert gradient(one, 3, 2) != gradient(one, 3, 1)
    assert gradient(one, 4, 1) != gradient(one, 3, 1)


def test_randomness_without_a_generator_of_its_own(adapter: Make) -> None:
    source = """
    class Noise(keras.layers.Layer):
        def call(self, inputs):
            return inputs + keras.random.normal((3,))
    def custom_model():
        inputs = keras.Input((3,))
        return keras.Model(inputs, keras.layers.Dense(1)(Noise()(inputs)))
    """
    one, other = adapter(source), adapter(source)
    losses = [
        made.compute(made.convert(records(8)), step, 0).loss for step in (1, 2) for made in (one, other, one)
    ]
    assert losses[0] == losses[1] == losses[2]
    assert losses[3] == losses[4] == losses[5] != losses[0]


def test_another_seed_gives_other_weights_and_masks(adapter: Make) -> None:
    made = [adapter(DROPPING, seed=seed) for seed in (1, 1, 2)]
    assert made[0].digest() == made[1].digest() != made[2].digest()
    for member in made:
        member.load(made[0].image())
        member.compute(member.convert(records(8)), 1, 0)
    first, second, third = (bytes(member.accumulator()) for member in made)
    assert first == second != third


def test_short_chunks_do_not_retrace(adapter: Make) -> None:
    made = adapter(NORMALIZED)
    traces = made._step.traces
    for count in (8, 3, 1, 5, 8):
        result = made.compute(made.convert(records(count)), count, 0)
        assert result.examples == count
        made.apply(np.array(made.accumulator()), result.examples)
    assert made._step.traces == traces


def test_an_empty_chunk_contributes_nothing(adapter: Make) -> None:
    made = adapter(CONVOLUTION)
    before = made.digest()
    for batch in (made.convert([]), None):
        result = made.compute(batch, 1, 0)
        assert (result.examples, result.loss) == (0.0, 0.0)
    assert not np.asarray(made.accumulator()).any()
    made.apply(np.zeros(made.size, made.dtype), 0.0)
    assert made.digest() == before
    assert int(made.optimizer.iterations) == 0


def test_the_accumulator_is_the_compiled_steps_own_memory(adapter: Make) -> None:
    made = adapter(CONVOLUTION)
    made.compute(made.convert(records(8)), 1, 0)
    first = made.accumulator()
    assert first.nbytes == made.size * np.dtype(made.dtype).itemsize
    assert np.shares_memory(np.asarray(first), np.asarray(memoryview(made._flat)))
    copy = np.array(first)
    made.compute(made.convert(records(8)), 1, 0)
    np.testing.assert_allclose(np.asarray(made.accumulator()), 2 * copy, rtol=1e-6)
    made.zero()
    assert not np.asarray(made.accumulator()).any()


def test_the_layers_own_losses_count(adapter: Make) -> None:
    source = """
    def custom_model():
        inputs = keras.Input((3,))
        return keras.Model(inputs, keras.layers.Dense(1, kernel_regularizer=keras.regularizers.L2(0.5), use_bias=False)(inputs))
    def loss(labels, predictions):
        return 0.0 * tf.reduce_mean(predictions)
    """
    made = adapter(source)
    (kernel,) = made.model.get_weights()
    result = made.compute(made.convert(records(6)), 1, 0)
    assert result.loss == pytest.approx(6 * 0.5 * np.sum(kernel**2), rel=1e-5)
    np.testing.assert_allclose(np.asarray(made.accumulator()), 6 * kernel.ravel(), rtol=1e-5)


def test_a_variable_without_a_gradient_is_left_alone(adapter: Make) -> None:
    source = """
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.used, self.unused = keras.layers.Dense(1), keras.layers.Dense(2)
        def call(self, inputs):
            self.unused(inputs)
            return self.used(inputs)
    def custom_model():
        return Model()
    def optimizer():
        return keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=0.5)
    """
    made = adapter(source)
    assert made.size == 4
    before = made.model.unused.kernel.numpy(), made.model.used.kernel.numpy()
    train([made], [records(8)], steps=2)
    np.testing.assert_array_equal(made.model.unused.kernel.numpy(), before[0])
    assert (made.model.used.kernel.numpy() != before[1]).any()


def test_embeddings(adapter: Make) -> None:
    source = """
    def feed(dataset, mode, metadata):
        def parse(record):
            number = tf.strings.to_number(record, tf.int32)
            return tf.stack([number % 7, number % 5]), tf.cast([number], tf.float32)
        return dataset.map(parse)
    def custom_model():
        inputs = keras.Input((2,), dtype="int32")
        x = keras.layers.Flatten()(keras.layers.Embedding(7, 3)(inputs))
        return keras.Model(inputs, keras.layers.Dense(1)(x))
    """
    made = adapter(source, sample=[b"3", b"4"])
    assert made.size == 7 * 3 + 6 + 1
    train([made], [[b"1", b"2", b"3"]], steps=2)
    assert all_finite(np.concatenate([w.ravel() for w in made.model.get_weights()]))


TWO_AND_TWO = """
def feed(dataset, mode, metadata):
    def parse(record):
        values = tf.ensure_shape(tf.strings.to_number(tf.strings.split(tf.expand_dims(record, 0), ",").to_tensor()[0]), [4])
        return {"a": values[:2], "b": values[2:3]}, {"sum": values[3:], "sign": tf.cast(values[3:] > 0, tf.float32)}
    return dataset.map(parse)

def custom_model():
    a, b = keras.Input((2,), name="a"), keras.Input((1,), name="b")
    x = keras.layers.Dense(8, activation="relu")(keras.layers.Concatenate()([a, b]))
    outputs = {"sum": keras.layers.Dense(1)(x), "sign": keras.layers.Dense(1)(x)}
    return keras.Model({"a": a, "b": b}, outputs)
"""
BY_FUNCTION = """
def loss(labels, predictions):
    sign = tf.nn.sigmoid_cross_entropy_with_logits(labels["sign"], predictions["sign"])
    return tf.reduce_mean(tf.square(labels["sum"] - predictions["sum"])) + tf.reduce_mean(sign)
"""
BY_DICT = """
loss = {"sum": keras.losses.MeanSquaredError(), "sign": keras.losses.BinaryCrossentropy(from_logits=True)}
"""


def test_two_inputs_and_two_outputs(adapter: Make) -> None:
    function, by_output = adapter(TWO_AND_TWO + BY_FUNCTION), adapter(TWO_AND_TWO + BY_DICT)
    one = function.compute(function.convert(records(8)), 1, 0)
    other = by_output.compute(by_output.convert(records(8)), 1, 0)
    assert one.loss == pytest.approx(other.loss, rel=1e-5)
    np.testing.assert_allclose(
        np.asarray(function.accumulator()), np.asarray(by_output.accumulator()), rtol=1e-4, atol=1e-5
    )


def test_a_dict_of_losses_names_the_outputs(adapter: Make) -> None:
    with pytest.raises(
        BadModel, match=r"expected predictions with the keys \['other'\], received \['sign', 'sum'\]"
    ):
        adapter(TWO_AND_TWO + "loss = {'other': keras.losses.MeanSquaredError()}")


@pytest.mark.parametrize(
    "loss",
    [
        "loss = keras.losses.MeanSquaredError()",
        "loss = keras.losses.MeanSquaredError",
        "loss = keras.losses.mean_squared_error",
        "def loss(labels, predictions):\n    return tf.square(labels - predictions)",
    ],
)
def test_losses_in_every_form_are_the_same(adapter: Make, loss: str) -> None:
    expected = adapter()
    made = adapter(loss)
    one = expected.compute(expected.convert(records(8)), 1, 0)
    other = made.compute(made.convert(records(8)), 1, 0)
    assert other.loss == pytest.approx(one.loss, rel=1e-6)
    np.testing.assert_allclose(np.asarray(made.accumulator()), np.asarray(expected.accumulator()), rtol=1e-5)


WEIGHTED = """
def feed(dataset, mode, metadata):
    def parse(record):
        values = tf.ensure_shape(tf.strings.to_number(tf.strings.split(tf.expand_dims(record, 0), ",").to_tensor()[0]), [4])
        return values[:3], values[3:], tf.abs(values[0])
    return dataset.map(parse)
"""


@pytest.mark.parametrize(
    "loss",
    [
        "loss = keras.losses.MeanSquaredError()",
        "def loss(labels, predictions, sample_weight):\n"
        "    return tf.reduce_mean(sample_weight * tf.reduce_mean(tf.square(labels - predictions), -1))",
        "def loss(labels, predictions):\n    return tf.reduce_mean(tf.square(labels - predictions), -1)",
    ],
)
def test_sample_weights(adapter: Make, loss: str) -> None:
    made = adapter(WEIGHTED + loss)
    batch = made.convert(records(8))
    features, labels, sample_weights = batch.data
    errors = np.mean((made.model(features).numpy() - labels.numpy()) ** 2, -1)
    assert made.compute(batch, 1, 0).loss == pytest.approx(np.sum(errors * sample_weights.numpy()), rel=1e-5)


def test_sample_weights_need_a_loss_that_takes_them(adapter: Make) -> None:
    with pytest.raises(
        BadModel, match="feed gives sample weights, but the loss is a function that returns a scalar"
    ):
        adapter(WEIGHTED)


@pytest.mark.parametrize(
    ("policy", "dtype"),
    [
        ("mixed_float16", "float32"),
        ("mixed_bfloat16", "float32"),
        ("float64", "float64"),
        ("bfloat16", "float32"),
    ],
)
def test_dtype_policies(adapter: Make, policy: str, dtype: str) -> None:
    source = f"""
    def custom_model():
        inputs = keras.Input((3,))
        x = keras.layers.BatchNormalization(dtype={policy!r})(inputs)
        return keras.Model(inputs, keras.layers.Dense(1, dtype={policy!r})(x))
    def loss(labels, predictions):
        return tf.reduce_mean(tf.square(tf.cast(labels, predictions.dtype) - predictions))
    """
    one, other = adapter(source), adapter(source)
    assert np.dtype(one.dtype) == dtype
    train([one, other], [records(8), records(8, 8), records(3)], steps=3)
    assert one.digest() == other.digest()
    assert all_finite(np.concatenate([np.asarray(w, np.float64).ravel() for w in one.model.get_weights()]))


def test_loss_scaling_of_float16(adapter: Make) -> None:
    scaled = adapter(
        "def optimizer():\n    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=8.0)"
    )
    plain = adapter("def optimizer():\n    return keras.optimizers.SGD(0.1)")
    for made in (scaled, plain):
        train([made], [records(8)], steps=2)
    for one, other in zip(scaled.model.get_weights(), plain.model.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_changing_whole_numbers_is_refused(adapter: Make) -> None:
    source = """
    class Counting(keras.layers.Layer):
        def build(self, shape):
            self.calls = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="calls")
        def call(self, inputs):
            self.calls.assign_add(1)
            return inputs
    def custom_model():
        inputs = keras.Input((3,))
        return keras.Model(inputs, keras.layers.Dense(1)(Counting()(inputs)))
    """
    with pytest.raises(BadModel, match=r"training changes 'counting/calls', which is of type int32"):
        adapter(source)


def test_xla_takes_full_chunks_alone(adapter: Make) -> None:
    xla, plain = adapter(NORMALIZED, jit_compile="on"), adapter(NORMALIZED)
    chunks = [records(8), records(5, 8)]
    train([xla], chunks, steps=2)
    train([plain], chunks, steps=2)
    for one, other in zip(weights(xla), weights(plain), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    traces = xla._step.traces
    train([xla], [records(8), records(2)])
    assert xla._step.traces == traces


def test_a_result_that_is_not_finite_is_noticed(adapter: Make) -> None:
    made = adapter()
    result = np.ones(made.size, np.float32)
    assert all_finite(result)
    result[:] = np.finfo(np.float32).max  # the sum overflows, the numbers do not
    assert all_finite(result)
    for value in (np.nan, np.inf, -np.inf):
        result[1] = value
        assert not all_finite(result)


def test_committing_reads_the_buffer_before_it_returns(adapter: Make) -> None:
    one, other = adapter(), adapter()
    result = np.arange(one.size, dtype=np.float32)
    one.apply(result, 2.0)
    result[:] = 1000
    other.apply(np.arange(one.size, dtype=np.float32), 2.0)
    assert one.digest() == other.digest()
    assert tf.executing_eagerly()
