"""Models whose weights live on parameter servers: the same gradients as with Keras' own embeddings, and nothing edited."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl.catalog.catalog import InitialKind
from elasticdl.control.protocol.metricstates import combine
from elasticdl.errors import BadData, BadModel
from elasticdl.keras import internals
from elasticdl.keras.embedding import PsEmbedding
from elasticdl.keras.layers import Embedding
from elasticdl.keras.psadapter import KerasPsAdapter
from elasticdl.spec.edge import build, from_arguments
from elasticdl.worker.contract.allreduce import GateLogs
from elasticdl.worker.contract.ps import PsBatch
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.ps.tablereader import ServerTableReader
from tests.job.conftest import SmallDisk

IDS, WIDTH = 50, 3


def functional() -> keras.Model:
    """One table that is looked up twice, and one of its own."""
    first, second = (
        keras.Input((2,), dtype="int64", name="first"),
        keras.Input((1,), dtype="int32", name="second"),
    )
    shared = keras.layers.Embedding(IDS, WIDTH, embeddings_initializer="ones", name="shared")
    other = keras.layers.Embedding(IDS, 2, embeddings_initializer="ones", name="other")
    parts = [keras.layers.Flatten()(part) for part in (shared(first), shared(second), other(second))]
    return keras.Model(
        {"first": first, "second": second},
        keras.layers.Dense(1, activation="tanh")(keras.layers.Concatenate()(parts)),
    )


class Own(keras.Model):
    """The same as a subclass, whose ids are computed from what it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = keras.layers.Embedding(IDS, WIDTH, embeddings_initializer="ones", name="shared")
        self.other = keras.layers.Embedding(IDS, 2, embeddings_initializer="ones", name="other")
        self.dense = keras.layers.Dense(1, activation="tanh")
        self.normal = keras.layers.BatchNormalization()

    def call(self, inputs: Any, training: bool = False) -> Any:
        second = tf.math.floormod(inputs["second"] + IDS, IDS)
        parts = [self.shared(inputs["first"])[:, 0], self.shared(second)[:, 0], self.other(second)[:, 0]]
        return self.dense(self.normal(keras.ops.concatenate(parts, -1), training=training))


def feed(dataset: Any, mode: str, metadata: Any) -> Any:
    def parse(row: Any) -> Any:
        numbers = tf.strings.to_number(row, tf.int64)
        return {"first": numbers[:2], "second": tf.cast(numbers[2:3], tf.int32)}, tf.cast(
            numbers[3:], tf.float32
        )

    return dataset.map(parse)


RECORDS = [["1", "2", "2", "1"], ["2", "2", "7", "0"], ["4", "1", "49", "1"]]


def adapter_of(
    model: Callable[[], keras.Model],
    optimizer: Callable[[], Any] = keras.optimizers.Adagrad,
    callbacks: Callable[[], Any] | None = None,
    metrics: Callable[[], Any] | None = None,
    **settings: Any,
) -> KerasPsAdapter:
    loss = keras.losses.mean_squared_error
    user = UserModel(Path("m.py"), model, {}, loss, optimizer, feed, callbacks, None, metrics)
    given = {"model_def": "m.model", "training_data": "x", "num_ps_pods": 1, "embedding_threshold": 0}
    adapter = KerasPsAdapter(user, build(from_arguments({**given, **settings})))
    adapter.prepare(RECORDS)
    return adapter


def pulled(adapter: KerasPsAdapter, read: Callable[[int, Any], Any]) -> ServerTableReader:
    """What a worker writes that pulls rows so; nothing is listed."""
    return ServerTableReader(adapter.catalog, read, lambda *_: pytest.fail("listed"))


@pytest.mark.parametrize("model", [functional, Own])
def test_gradients_are_those_of_keras(model: Callable[[], keras.Model]) -> None:
    adapter = adapter_of(model)
    served = {layer.name for layer in internals.layers_of(adapter.model) if isinstance(layer, PsEmbedding)}
    assert served == {"shared", "other"}
    assert not any("embedding" in one.path for one in adapter.model.variables)
    batch = adapter.convert(RECORDS)
    found = adapter.compute(batch, ones(adapter, batch), 0, 0)

    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    plain = model()
    ((features, labels),) = feed(
        tf.data.Dataset.from_tensor_slices(tf.constant(RECORDS)), "training", None
    ).batch(3)
    plain(features)
    names = {
        one.path.split("/", 1)[-1] if model is Own else one.path: one for one in plain.trainable_variables
    }
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(keras.losses.mean_squared_error(labels, plain(features, training=True)))
    slopes = dict(zip(names, tape.gradient(loss, list(names.values())), strict=True))
    assert found.loss == pytest.approx(float(loss), rel=1e-5)
    for variable, slope in zip(adapter.catalog.variables, found.dense, strict=True):
        if not variable.adds:
            expected = next(slopes[name] for name in slopes if variable.name.endswith(name))
            np.testing.assert_allclose(slope, np.reshape(expected, -1), rtol=1e-4, atol=1e-6)
    for table, ids, slope in zip(adapter.catalog.tables, batch.batches, found.rows, strict=True):
        expected = tf.convert_to_tensor(
            next(slopes[name] for name in slopes if table.name.split("/")[-1] in name)
        )
        whole = np.zeros(expected.shape, np.float32)
        whole[np.frombuffer(ids.ids(), np.uint64).astype(int)] = slope.reshape(-1, table.width)
        np.testing.assert_allclose(whole, expected, rtol=1e-4, atol=1e-6)
    assert [one.adds for one in adapter.catalog.variables].count(True) == (2 if model is Own else 0)


def figures() -> dict[str, Any]:
    return {"mae": keras.metrics.MeanAbsoluteError(name="mae"), "auc": keras.metrics.AUC(name="auc")}


@pytest.mark.parametrize("model", [functional, Own])
def test_evaluation_is_that_of_keras(model: Callable[[], keras.Model]) -> None:
    adapter = adapter_of(model, metrics=figures)
    gradients = adapter.compute(adapter.convert(RECORDS), ones(adapter, adapter.convert(RECORDS)), 0, 0)
    evaluator = adapter.evaluator(None)
    evaluator.prepare(RECORDS)
    states = []
    for task, records in enumerate((RECORDS[:2], RECORDS[2:])):
        evaluator.begin_task(task)
        batch = evaluator.convert(records)
        evaluator.evaluate(batch, ones(adapter, batch))
        states.append(evaluator.task_state())
    found = evaluator.metric_values(combine(evaluator.catalog(), states))

    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    plain = model()
    data = feed(tf.data.Dataset.from_tensor_slices(tf.constant(RECORDS)), "evaluation", None).batch(2)
    plain(next(iter(data))[0])
    plain.compile(loss="mean_squared_error", metrics=list(figures().values()))
    for name, value in plain.evaluate(data, return_dict=True, verbose=0).items():
        assert found[f"val_{name}"] == pytest.approx(value, abs=1e-6), name
    again = adapter.compute(adapter.convert(RECORDS), ones(adapter, adapter.convert(RECORDS)), 0, 0)
    for one, other in zip((*gradients.dense, *gradients.rows), (*again.dense, *again.rows), strict=True):
        np.testing.assert_array_equal(one, other)


def ones(adapter: KerasPsAdapter, batch: PsBatch) -> list[Any]:
    pairs = zip(batch.batches, adapter.catalog.tables, strict=True)
    return [np.ones(len(ids) * table.width, np.float32) for ids, table in pairs]


def test_rows_that_only_evaluation_looks_up_are_refused() -> None:
    class Sometimes(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.trained = keras.layers.Embedding(IDS, WIDTH)
            self.other = keras.layers.Embedding(IDS, WIDTH, name="other")
            self.other.build()
            self.dense = keras.layers.Dense(1)

        def call(self, inputs: Any, training: bool = False) -> Any:
            return self.dense((self.trained if training else self.other)(inputs["first"])[:, 0])

    evaluator = adapter_of(Sometimes).evaluator(None)
    with pytest.raises(BadModel, match="the embedding other is looked up in evaluation only"):
        evaluator.prepare(RECORDS)


def test_small_tables_stay_whole() -> None:
    adapter = adapter_of(functional, embedding_threshold=IDS * 2 * 4)
    assert [table.name for table in adapter.catalog.tables] == ["shared"]
    assert any("other" in one.name for one in adapter.catalog.variables)


def test_equal_workers_find_equal_models() -> None:
    assert adapter_of(functional).catalog.text() == adapter_of(functional).catalog.text()


def test_the_exported_model_is_plain_keras(tmp_path: Path) -> None:
    adapter = adapter_of(functional)
    tables = [
        np.arange(IDS * table.width, dtype=np.float32).reshape(IDS, -1) for table in adapter.catalog.tables
    ]
    first = adapter.first_values()
    for variable, value in enumerate(first):
        adapter.take(variable, value + 1)
    adapter.export(str(tmp_path / "m.keras"), "keras", pulled(adapter, lambda table, ids: tables[table][ids]))
    loaded = keras.models.load_model(tmp_path / "m.keras")
    for described, table in zip(adapter.catalog.tables, tables, strict=True):
        layer = loaded.get_layer(described.name)
        assert type(layer) is keras.layers.Embedding
        np.testing.assert_array_equal(layer.get_weights()[0], table)
    np.testing.assert_array_equal(np.reshape(loaded.get_layer("dense").get_weights()[0], -1), first[0] + 1)


@pytest.mark.parametrize("kind", ["keras", "saved_model"])
def test_a_full_disk_is_said_as_the_system_says_it(small_disk: SmallDisk, kind: str) -> None:
    adapter = adapter_of(functional)
    tables = [np.zeros((IDS, table.width), np.float32) for table in adapter.catalog.tables]
    small_disk.fill()
    with pytest.raises(OSError, match=r"^\[Errno 28\] No space left on device$") as failed:
        adapter.export(
            str(small_disk.path / "m.keras"), kind, pulled(adapter, lambda table, ids: tables[table][ids])
        )
    assert failed.value.__cause__ is not None
    assert [path.name for path in small_disk.path.iterdir()] == ["filling"]


class AtTheEnds(keras.callbacks.Callback):
    """Looks at the model when training begins and ends, and changes what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.saw: list[Any] = []

    def on_train_begin(self, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.25
        self.saw.append(("begin", self.params["writes"]))

    def on_train_end(self, logs: Any = None) -> None:
        kernel = self.model.get_layer("dense").kernel
        self.saw.append((self.params["global_step"], self.params["writes"], kernel.numpy().max()))
        kernel.assign(kernel + 1)


@pytest.mark.parametrize("kind", ["keras", "saved_model"])
def test_callbacks_hear_of_the_beginning_and_the_end_and_have_a_say_in_what_is_written(
    tmp_path: Path, kind: str
) -> None:
    made = AtTheEnds()
    adapter = adapter_of(functional, callbacks=lambda: [made])
    assert made.saw == [("begin", True)]
    assert adapter.rate(0) == 0.25
    assert adapter.acts_at_end
    for number, variable in enumerate(adapter.catalog.variables):
        adapter.take(number, np.full(variable.size, 2.0, np.float32))
    adapter.end_training(7, True)
    assert made.saw == [("begin", True), (7, True, 2.0)]
    tables = [np.zeros((IDS, table.width), np.float32) for table in adapter.catalog.tables]
    path = tmp_path / ("m.keras" if kind == "keras" else "m")
    adapter.export(str(path), kind, pulled(adapter, lambda table, ids: tables[table][ids]))
    if kind == "keras":
        found = keras.models.load_model(path).get_layer("dense").kernel
    else:
        found = next(
            one for one in tf.saved_model.load(str(path)).variables if one.shape == (3 * WIDTH + 2, 1)
        )
    np.testing.assert_array_equal(found, np.full(found.shape, 3.0))


def test_what_callbacks_did_to_weights_that_were_trained_on_is_not_written(tmp_path: Path) -> None:
    adapter = adapter_of(functional, callbacks=lambda: [AtTheEnds()])
    adapter.end_training(7, False)
    for number, variable in enumerate(adapter.catalog.variables):
        adapter.take(number, np.full(variable.size, 5.0, np.float32))
    tables = [np.zeros((IDS, table.width), np.float32) for table in adapter.catalog.tables]
    adapter.export(str(tmp_path / "m.keras"), "keras", pulled(adapter, lambda table, ids: tables[table][ids]))
    found = keras.models.load_model(tmp_path / "m.keras").get_layer("dense").kernel
    np.testing.assert_array_equal(found, np.full(found.shape, 5.0))


class Judge(keras.callbacks.Callback):
    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Want the metrics of a minibatch."""


def test_without_callbacks_nothing_is_done_at_the_end() -> None:
    assert not adapter_of(functional).acts_at_end
    assert not adapter_of(functional, callbacks=list).acts_at_end


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (
            lambda: keras.callbacks.LambdaCallback(on_train_batch_end=print),
            "m.py: LambdaCallback is called by batch",
        ),
        (Judge, "m.py: Judge is called by batch"),
        (keras.callbacks.TerminateOnNaN, "m.py: the callback TerminateOnNaN is not possible"),
        (
            lambda: keras.callbacks.ModelCheckpoint("x.keras"),
            "use --checkpoint_dir, with --checkpoint_best=METRIC",
        ),
        (lambda: keras.callbacks.CSVLogger("x.csv"), "no worker is the one that writes"),
        (
            lambda: keras.callbacks.EarlyStopping(restore_best_weights=True),
            "m.py: EarlyStopping: restore_best_weights=True would keep",
        ),
        (lambda: keras.callbacks.EarlyStopping(monitor="loss"), "nobody knows the loss of all minibatches"),
        (
            lambda: keras.callbacks.EarlyStopping(monitor="val_loss"),
            "known at the end of an epoch: nothing; --validation_data adds val_loss",
        ),
        (lambda: 3, "m.py: callbacks returned a int"),
    ],
)
def test_callbacks_that_are_not_possible_are_refused(made: Callable[[], Any], said: str) -> None:
    with pytest.raises(BadModel, match=said):
        adapter_of(functional, callbacks=lambda: [made()])


def test_what_may_be_monitored_is_named_without_what_nobody_knows() -> None:
    with pytest.raises(BadModel, match=r"monitors 'val_f1'; known at the end of an epoch: val_loss$"):
        adapter_of(
            functional,
            callbacks=lambda: [keras.callbacks.EarlyStopping(monitor="val_f1", mode="max")],
            validation_data="held out",
        )


def at_end(epoch: int, loss: float) -> GateLogs:
    return GateLogs(10 * (epoch + 1), epoch, (("val_loss", loss),), True, None)


def watching() -> list[Any]:
    return [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate if epoch == 0 else rate / 2),
        keras.callbacks.ReduceLROnPlateau(factor=0.1, patience=1),
        keras.callbacks.EarlyStopping(patience=2),
    ]


def test_callbacks_pass_barriers_and_the_rate_is_what_they_leave() -> None:
    adapter = adapter_of(functional, callbacks=watching, validation_data="held out", num_epochs=5)
    assert adapter.follows_epochs
    first = adapter.rate(0)
    assert adapter.pass_barrier(at_end(0, 1.0)) is None
    assert adapter.rate(0) == pytest.approx(first / 2)
    assert adapter.pass_barrier(at_end(1, 2.0)) is None
    assert adapter.rate(0) == pytest.approx(first / 40)
    assert adapter.pass_barrier(at_end(2, 2.0)) == "EarlyStopping asked for the end of training after step 30"


def test_callbacks_that_begin_anew_have_the_first_rate_and_pass_barriers_alike() -> None:
    adapter = adapter_of(functional, callbacks=watching, validation_data="held out", num_epochs=5)
    first = adapter.rate(0)
    for epoch in range(3):
        adapter.pass_barrier(at_end(epoch, 1.0))
    adapter.begin_callbacks()
    assert adapter.rate(0) == first
    assert adapter.pass_barrier(at_end(0, 1.0)) is None
    assert adapter.rate(0) == pytest.approx(first / 2)


def test_callbacks_hear_of_an_epoch_that_ends_without_an_evaluation() -> None:
    heard: list[Any] = []
    made = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: heard.append(("begin", epoch)),
        on_epoch_end=lambda epoch, logs: heard.append(("end", epoch, logs)),
    )
    adapter = adapter_of(functional, callbacks=lambda: [made], num_epochs=2)
    adapter.pass_barrier(GateLogs(10, 0, None, True, None))
    adapter.pass_barrier(GateLogs(20, 1, None, True, None))
    assert heard == [("begin", 0), ("end", 0, {}), ("begin", 1), ("end", 1, {})]
    assert not adapter_of(functional, callbacks=lambda: [AtTheEnds()]).follows_epochs


class Saving(keras.callbacks.Callback):
    """Saves the model whenever it can."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.writes: list[Any] = []

    def _save(self, what: str) -> None:
        self.writes.append((what, self.params["writes"]))
        self.model.save_weights(self.folder / f"{what}.weights.h5")

    def on_train_begin(self, logs: Any = None) -> None:
        self._save("begin")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._save(f"epoch-{epoch}")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._save(f"end-{epoch}")

    def on_train_end(self, logs: Any = None) -> None:
        self._save("end")


def test_nobody_writes_at_epochs_and_the_worker_that_writes_the_result_does_at_the_end(
    tmp_path: Path,
) -> None:
    made = Saving(tmp_path)
    whole_tables = 1 << 20
    adapter = adapter_of(functional, callbacks=lambda: [made], num_epochs=1, embedding_threshold=whole_tables)
    adapter.pass_barrier(GateLogs(10, 0, None, True, None))
    assert [path.name for path in tmp_path.iterdir()] == ["begin.weights.h5"]
    adapter.end_training(10, True)
    assert made.writes == [("begin", True), ("epoch-0", False), ("end-0", False), ("end", True)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["begin.weights.h5", "end.weights.h5"]


@pytest.mark.parametrize(
    ("initializer", "kind", "first", "second"),
    [
        ("zeros", InitialKind.CONSTANT, 0.0, 0.0),
        (keras.initializers.Constant(0.3), InitialKind.CONSTANT, 0.3, 0.0),
        ("uniform", InitialKind.UNIFORM, -0.05, 0.05),
        (keras.initializers.RandomNormal(0.1, 0.2), InitialKind.NORMAL, 0.1, 0.2),
        ("glorot_uniform", InitialKind.UNIFORM, -((6 / (IDS + WIDTH)) ** 0.5), (6 / (IDS + WIDTH)) ** 0.5),
    ],
)
def test_initial_weights(initializer: Any, kind: InitialKind, first: float, second: float) -> None:
    def model() -> keras.Model:
        ids = keras.Input((2,), dtype="int64", name="first")
        other = keras.Input((1,), dtype="int32", name="second")
        rows = keras.layers.Embedding(IDS, WIDTH, embeddings_initializer=initializer)(ids)
        flat = keras.layers.Flatten()(rows)
        return keras.Model({"first": ids, "second": other}, keras.layers.Dense(1)(flat))

    initial = adapter_of(model).catalog.tables[0].initial
    assert initial.kind is kind
    assert (initial.first, initial.second) == pytest.approx((first, second))


def with_layer(layer: Callable[[], Any]) -> keras.Model:
    """Return a model of one embedding, whose rows are averaged."""
    ids = keras.Input((2,), dtype="int64", name="first")
    other = keras.Input((1,), dtype="int32", name="second")
    pooled = keras.layers.GlobalAveragePooling1D()(layer()(ids))
    return keras.Model({"first": ids, "second": other}, keras.layers.Dense(1)(pooled))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"embeddings_regularizer": "l2"}, "embeddings_regularizer"),
        ({"embeddings_constraint": "max_norm"}, "embeddings_constraint"),
        ({"lora_rank": 2}, "lora_rank"),
        ({"dtype": "int8_from_float32"}, "quantization"),
        ({"dtype": "float64"}, "weights of type float64"),
        ({"weights": [np.ones((IDS, WIDTH), np.float32)]}, "weights that are given to it"),
    ],
)
def test_what_rows_on_servers_can_not_have_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(BadModel, match=f"the embedding vectors has {said}, which rows on parameter servers"):
        adapter_of(lambda: with_layer(lambda: keras.layers.Embedding(IDS, WIDTH, name="vectors", **given)))


@pytest.mark.parametrize("kind", [keras.layers.Embedding, Embedding])
@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda layer: layer.set_weights([np.ones((IDS, WIDTH))]), "weights that are given to it"),
        (lambda layer: layer.enable_lora(2), "lora_rank"),
    ],
)
def test_what_is_done_to_a_layer_without_a_matrix_is_refused(
    kind: type, act: Callable[[Any], None], said: str
) -> None:
    def model() -> keras.Model:
        model = with_layer(lambda: kind(input_dim=IDS, output_dim=WIDTH, name="vectors"))
        act(model.get_layer("vectors"))
        return model

    with pytest.raises(BadModel, match=f"the embedding vectors has {said}"):
        adapter_of(model)


def test_weights_from_a_file_are_refused(tmp_path: Path) -> None:
    def model() -> keras.Model:
        return with_layer(lambda: keras.layers.Embedding(IDS, WIDTH, name="vectors"))

    model().save(tmp_path / "model.keras")
    model().save_weights(tmp_path / "own.weights.h5")

    def loaded() -> keras.Model:
        found = model()
        found.load_weights(tmp_path / "own.weights.h5")
        return found

    for made in (loaded, lambda: keras.models.load_model(tmp_path / "model.keras")):
        with pytest.raises(BadModel, match="the embedding vectors has weights from a file"):
            adapter_of(made)


def test_padding_is_masked() -> None:
    def model() -> keras.Model:
        return with_layer(
            lambda: keras.layers.Embedding(
                IDS, WIDTH, embeddings_initializer="ones", mask_zero=True, activity_regularizer="l2"
            )
        )

    adapter = adapter_of(model)
    batch = adapter.convert([["3", "0", "2", "1"]])
    found = adapter.compute(batch, [np.ones(2 * WIDTH, np.float32)], 0, 0)
    plain = model()
    features = {"first": tf.constant([[3, 0]]), "second": tf.constant([[2]])}
    plain.layers[-1].set_weights(
        [
            np.reshape(value, variable.shape)
            for value, variable in zip(adapter.first_values(), plain.layers[-1].variables, strict=True)
        ]
    )
    with tf.GradientTape() as tape:
        predictions = plain(features, training=True)
        loss = tf.reduce_mean(keras.losses.mean_squared_error(tf.constant([[1.0]]), predictions))
        loss += sum(plain.losses)
    slope = tf.convert_to_tensor(tape.gradient(loss, plain.layers[1].embeddings.value))
    ids = np.frombuffer(batch.batches[0].ids(), np.uint64).astype(int)
    np.testing.assert_allclose(found.rows[0].reshape(-1, WIDTH), slope.numpy()[ids], rtol=1e-5, atol=1e-7)
    assert found.loss == pytest.approx(float(loss), rel=1e-5)


def test_tables_of_one_name_are_two() -> None:
    def tower(ids: Any) -> Any:
        own = keras.Input((2,), dtype="int64")
        rows = keras.layers.Embedding(IDS, WIDTH, name="rows")(own)
        return keras.Model(own, keras.layers.Flatten()(rows))(ids)

    def model() -> keras.Model:
        ids = keras.Input((2,), dtype="int64", name="first")
        return keras.Model({"first": ids}, keras.layers.Dense(1)(tower(ids) * tower(ids)))

    assert [table.name for table in adapter_of(model).catalog.tables] == ["rows", "rows_1"]


def test_a_table_that_is_not_to_be_trained_is_refused() -> None:
    def model() -> keras.Model:
        whole = functional()
        whole.get_layer("other").trainable = False
        return whole

    with pytest.raises(
        BadModel, match="the embedding other is not trainable, and rows on parameter servers are"
    ):
        adapter_of(model)
    assert "other" not in [
        table.name for table in adapter_of(model, embedding_threshold=IDS * 2 * 4).catalog.tables
    ]


def test_ids_beyond_the_table_are_bad_data() -> None:
    adapter = adapter_of(functional)
    with pytest.raises(BadData, match=r"the embedding shared has the ids 0 to 49, received 50"):
        adapter.convert([["50", "2", "2", "1"]])
    with pytest.raises(BadData, match=r"received -1"):
        adapter.convert([["1", "-1", "2", "1"]])


@pytest.mark.parametrize("clipping", [{"clipvalue": 0.003}, {"clipnorm": 0.01}, {"global_clipnorm": 0.01}])
def test_gradients_are_clipped_as_keras_does(clipping: dict[str, float]) -> None:
    """Rows as the table's gradient, together with the dense variables."""

    def gradients(**given: float) -> list[Any]:
        adapter = adapter_of(functional, lambda: keras.optimizers.SGD(0.1, **given))
        batch = adapter.convert(RECORDS)
        rows = [
            np.ones(len(ids) * table.width, np.float32)
            for ids, table in zip(batch.batches, adapter.catalog.tables, strict=True)
        ]
        found = adapter.compute(batch, rows, 0, 0)
        return [*found.dense, *found.rows]

    whole = [tf.constant(part) for part in gradients()]
    expected = keras.optimizers.SGD(0.1, **clipping)._clip_gradients(whole)
    for part, clipped, before in zip(gradients(**clipping), expected, whole, strict=True):
        np.testing.assert_allclose(part, clipped, rtol=1e-4, atol=1e-8)
        assert np.abs(part).sum() < np.abs(before).sum()


def test_tables_decay_as_the_optimizer_says() -> None:
    def optimizer(*names: str) -> Any:
        found = keras.optimizers.AdamW(weight_decay=0.1)
        found.exclude_from_weight_decay(var_names=list(names))
        return found

    for names, expected in (((), True), (("bias",), True), (("embeddings",), False)):
        catalog = adapter_of(functional, lambda names=names: optimizer(*names)).catalog
        assert [table.decays for table in catalog.tables] == [expected] * 2
        assert catalog.rule.weight_decay == pytest.approx(0.1)


def test_a_schedule_goes_by_the_chunk_s_number() -> None:
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    adapter = adapter_of(functional, lambda: keras.optimizers.SGD(schedule))
    assert adapter.rate(0) == pytest.approx(0.1)
    assert adapter.rate(10) == pytest.approx(0.05)
