"""Keras callbacks in a group."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest

from elasticdl.checkpoint.stateimage import StateImage
from elasticdl.control.protocol.messages import MetricValues
from elasticdl.errors import BadModel, TransferFailed
from elasticdl.keras.adapter import KerasAdapter
from elasticdl.worker.contract.allreduce import GateLogs, StepLogs

Make = Callable[..., KerasAdapter]


def callbacks(*made: str) -> str:
    return f"def callbacks():\n    return [{', '.join('keras.callbacks.' + one for one in made)}]\n"


def epochs(adapter: KerasAdapter, losses: list[float], first: int = 0, steps: int = 2) -> str | None:
    """Commit epochs of `steps` steps with these mean losses; return the first reason to stop."""
    for epoch, loss in enumerate(losses, first):
        for step in range(1, steps + 1):
            ended = step == steps
            reason = adapter.logs(StepLogs(epoch * steps + step, epoch, loss, ended, loss))
            if reason is not None:
                return reason
    return None


def rate(adapter: KerasAdapter) -> float:
    return float(adapter.optimizer.learning_rate)


SCHEDULE = callbacks("LearningRateScheduler(lambda epoch, lr: 0.5 ** epoch)")
PLATEAU = callbacks("ReduceLROnPlateau(monitor='loss', factor=0.5, patience=1, min_delta=0)")


def test_a_schedule_sets_the_rate_of_every_epoch(adapter: Make) -> None:
    made = adapter(SCHEDULE)
    seen = []
    for epoch in range(3):
        made.logs(StepLogs(2 * epoch + 1, epoch, 1.0, False, 1.0))
        seen.append(rate(made))
        made.logs(StepLogs(2 * epoch + 2, epoch, 1.0, True, 1.0))
    assert seen == [1.0, 0.5, 0.25]


def test_the_first_step_of_an_epoch_is_taken_at_its_rate(adapter: Make) -> None:
    made = adapter(
        callbacks("LearningRateScheduler(lambda epoch, lr: 0.25 if epoch == 0 else 0.125)"), num_epochs=2
    )
    assert rate(made) == 0.25
    made.logs(StepLogs(1, 0, 1.0, True, 1.0))
    assert rate(made) == 0.125


def test_early_stopping_on_the_training_loss(adapter: Make) -> None:
    made = adapter(callbacks("EarlyStopping(monitor='loss', patience=2)"))
    assert epochs(made, [3.0, 2.0, 2.5]) is None
    assert epochs(made, [2.4, 2.3], first=3) == "EarlyStopping asked for the end of training after step 8"


@pytest.mark.parametrize("steps", [1, 2])
def test_only_who_stopped_is_named_and_nothing_begins_after_it(adapter: Make, steps: int) -> None:
    source = """
    seen = []
    class Own(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None): seen.append(epoch)
        def on_train_batch_begin(self, batch, logs=None): seen.append((batch, self.params["global_step"]))
        def on_train_batch_end(self, batch, logs=None):
            if self.params["global_step"] == 5:
                self.model.stop_training = True
    def callbacks():
        return [
            keras.callbacks.TerminateOnNaN(),
            keras.callbacks.EarlyStopping(monitor="loss", patience=1),
            Own(),
            keras.callbacks.EarlyStopping(monitor="loss", patience=1),
        ]
    """
    made = adapter(source, num_epochs=9)
    joiner = adapter(source, process="worker-1-1", num_epochs=9)
    # a loss that stays stops at the end of an epoch, a custom callback within one
    reason = epochs(made, [1.0, 1.0] if steps == 1 else [3.0, 2.0, 1.0], steps=steps)
    name, last = ("EarlyStopping", 2) if steps == 1 else ("Own", 5)
    assert reason == f"{name} asked for the end of training after step {last}"
    begun = made._user.callbacks.__globals__["seen"]
    assert begun == (
        [0, (0, 0), 1, (0, 1)] if steps == 1 else [0, (0, 0), (1, 1), 1, (0, 2), (1, 3), 2, (0, 4)]
    )
    joiner.load(made.image())
    assert joiner._user.callbacks.__globals__["seen"] == begun


def test_a_callback_of_ones_own(adapter: Make) -> None:
    source = """
    seen = []
    class Own(keras.callbacks.Callback):
        def on_train_begin(self, logs=None): seen.append("begin")
        def on_epoch_begin(self, epoch, logs=None): seen.append(("epoch", epoch))
        def on_train_batch_begin(self, batch, logs=None): seen.append(batch)
        def on_train_batch_end(self, batch, logs=None): seen.append((batch, logs["loss"]))
        def on_epoch_end(self, epoch, logs=None):
            seen.append(("end", epoch, logs["loss"]))
            if epoch == 1:
                self.model.stop_training = True
        def on_train_end(self, logs=None): seen.append(("over", logs["loss"]))
    def callbacks():
        return [Own()]
    """
    made = adapter(source, num_epochs=2)
    reason = epochs(made, [2.0, 1.0])
    assert reason is not None
    made.end_training(0)
    seen = made._user.callbacks.__globals__["seen"]
    assert seen == [
        "begin", ("epoch", 0), 0, (0, 2.0), 1, (1, 2.0), ("end", 0, 2.0),
        ("epoch", 1), 0, (0, 1.0), 1, (1, 1.0), ("end", 1, 1.0), ("over", 1.0),
    ]  # fmt: skip


@pytest.mark.parametrize(("source", "losses"), [(SCHEDULE, [1.0] * 3), (PLATEAU, [3.0, 3.0, 2.0, 2.0, 2.0])])
def test_a_joiner_replays_what_it_missed(adapter: Make, source: str, losses: list[float]) -> None:
    donor, joiner = adapter(source), adapter(source)
    epochs(donor, losses)
    image = donor.image()
    joiner.load(StateImage(json.loads(json.dumps(image.meta)), image.body))
    assert rate(joiner) == rate(donor)
    for loss in (2.0, 1.0, 1.0):
        epochs(donor, [loss], first=len(losses))
        epochs(joiner, [loss], first=len(losses))
        assert joiner.digest() == donor.digest()
        assert joiner.image().meta == donor.image().meta


def test_a_joiner_counts_the_patience_on(adapter: Make) -> None:
    source = callbacks("EarlyStopping(monitor='loss', patience=2)")
    donor, joiner = adapter(source), adapter(source)
    epochs(donor, [1.0, 2.0])
    joiner.load(donor.image())
    assert epochs(joiner, [2.0], first=2) is not None


def test_a_joiner_in_the_middle_of_an_epoch(adapter: Make) -> None:
    source = """
    class Own(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.seen = []
        def on_epoch_begin(self, epoch, logs=None): self.seen.append(epoch)
        def on_train_batch_end(self, batch, logs=None): self.seen.append((batch, logs.get("loss")))
    def callbacks():
        return [Own()]
    """
    donor, joiner = adapter(source), adapter(source)
    for made in (donor,):
        made.logs(StepLogs(1, 0, 3.0, True, 3.0))
        made.logs(StepLogs(2, 1, 2.0, False, 2.0))
        made.logs(StepLogs(3, 1, None, False, 2.0))
    joiner.load(donor.image())
    seen = [made._callbacks._callbacks[0].seen for made in (donor, joiner)]
    assert seen[0] == seen[1] == [0, (0, 3.0), 1, (0, 2.0), (1, 2.0)]


def test_another_history_begins_anew(adapter: Make) -> None:
    one, other = adapter(PLATEAU), adapter(PLATEAU)
    epochs(one, [3.0, 3.0, 3.0, 3.0])
    epochs(other, [3.0, 2.0])
    one.load(other.image())
    assert rate(one) == rate(other)
    epochs(one, [2.5, 2.5], first=2)
    epochs(other, [2.5, 2.5], first=2)
    assert one.digest() == other.digest()


def test_histories_that_make_no_sense_are_refused(adapter: Make) -> None:
    made = adapter(PLATEAU)
    image = made.image()
    with pytest.raises(TransferFailed, match="callback history"):
        made.load(StateImage({**image.meta, "callbacks": [[1, 2]]}, image.body))


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ("BackupAndRestore('x')", "BackupAndRestore is not possible"),
        (
            "EarlyStopping()",
            r"EarlyStopping monitors 'val_loss'; known at the end of an epoch: loss; --validation_data adds",
        ),
        ("Callback", "callbacks returned a type; expected a list of keras callbacks"),
    ],
)
def test_what_makes_no_sense_in_a_group_is_refused(adapter: Make, made: str, message: str) -> None:
    with pytest.raises(BadModel, match=message):
        adapter(callbacks(made))


def weights(image: StateImage, made: KerasAdapter) -> bytes:
    """Return the bytes of the model's weights, which come first in a state."""
    size = sum(np.asarray(one).nbytes for one in made.model.get_weights())
    return image.body.tobytes()[:size]


def test_a_member_that_joins_has_the_best_weights_that_it_never_held(adapter: Make) -> None:
    """The loss is best after the second epoch; the member that joins does so after the third."""
    source = callbacks("EarlyStopping(monitor='loss', patience=3, restore_best_weights=True)")
    one, joiner, early = (adapter(source) for _ in range(3))
    seen: list[bytes] = []
    for epoch, loss in enumerate([3.0, 1.0, 2.0]):
        one.apply(np.full(one.size, epoch + 1, one.dtype), 1.0)
        epochs(one, [loss], first=epoch, steps=1)
        seen.append(weights(one.image(), one))
        if epoch == 0:
            early.load(one.image())  # and goes on with what others did meanwhile
    assert len(set(seen)) == 3
    image = one.image()
    sent = StateImage(json.loads(json.dumps(image.meta)), image.body.copy())
    for made in (joiner, early):
        made.load(sent)
        assert made.digest() == one.digest()
    for made in (one, joiner, early):
        before = made.digest()
        made.end_training(0)
        assert made._last is not None
        assert weights(made._last, made) == seen[1]
        assert made.digest() == before, "the committed state stays as it is"


def test_a_class_of_the_user_s_that_keeps_weights_is_refused(adapter: Make) -> None:
    source = (
        "class Own(keras.callbacks.Callback):\n    restore_best_weights = True\n"
        "def callbacks():\n    return [Own()]\n"
    )
    with pytest.raises(BadModel, match=r"Own\(restore_best_weights=True\) keeps weights"):
        adapter(source)


def test_one_member_writes(adapter: Make, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    source = callbacks(f"CSVLogger({str(path)!r})")
    one, other = adapter(source), adapter(source)
    one.writes = True
    for made in (one, other):
        epochs(made, [3.0, 2.0])
    # the first writer is lost; the other one continues in the same file
    del one
    other.writes = True
    epochs(other, [1.0], first=2)
    other._callbacks.end()
    lines = [line.split(",")[:2] for line in path.read_text().split()]
    assert lines == [["epoch", "loss"], ["0", "3.0"], ["1", "2.0"], ["2", "1.0"]]


@pytest.mark.parametrize("append", [False, True])
def test_a_file_of_an_earlier_job_is_begun_anew_as_in_fit(
    adapter: Make, tmp_path: Path, append: bool
) -> None:
    ours, keras_own = tmp_path / "ours.csv", tmp_path / "keras.csv"
    for path in (ours, keras_own):
        path.write_text("epoch,loss\n0,9.0\n1,8.0\n")
    plain = keras.callbacks.CSVLogger(str(keras_own), append=append)
    plain.set_model(keras.Sequential())
    plain.on_train_begin({})
    for epoch, loss in enumerate([3.0, 2.0, 1.0]):
        plain.on_epoch_end(epoch, {"loss": loss})
    plain.on_train_end({})
    source = callbacks(f"CSVLogger({str(ours)!r}, append={append})")
    first = adapter(source)
    first.writes = True
    epochs(first, [3.0, 2.0])
    # a later life continues in the job's own file
    later = adapter(source, process="worker-0-2")
    later.load(first.image())
    del first
    later.writes = True
    epochs(later, [1.0], first=2)
    later._callbacks.end()
    assert [line.split(",")[:2] for line in ours.read_text().split()] == [
        line.split(",")[:2] for line in keras_own.read_text().split()
    ]


@pytest.mark.parametrize("epoch_losses", [[], [3.0]])
def test_the_end_of_training_keeps_what_another_member_wrote(
    adapter: Make, tmp_path: Path, epoch_losses: list[float]
) -> None:
    path = tmp_path / "log.csv"
    path.write_text("epoch,loss\n0,9.0\n")
    source = callbacks(f"CSVLogger({str(path)!r})")
    one, other = adapter(source), adapter(source)
    one.writes = True
    for made in (one, other):
        epochs(made, epoch_losses)
    del one
    other.writes = True
    other._callbacks.end()
    lines = [line.split(",")[:2] for line in path.read_text().split()]
    assert lines == ([["epoch", "loss"], ["0", "3.0"]] if epoch_losses else [])


BEGINNINGS = """
class Own(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []
    def on_train_begin(self, logs=None): self.seen.append(("train", self.params["writes"]))
    def on_epoch_begin(self, epoch, logs=None): self.seen.append((epoch, self.params["writes"]))
def callbacks():
    return [Own()]
"""


@pytest.mark.parametrize(
    ("process", "train", "epoch"),
    [("worker-0-1", True, True), ("worker-0-2", True, False), ("worker-1-1", False, False)],
)
def test_worker_0_knows_at_the_beginning_that_it_writes(
    adapter: Make, process: str, train: bool, epoch: bool
) -> None:
    made = adapter(BEGINNINGS, process=process, num_epochs=9)
    assert made._callbacks._callbacks[0].seen == [("train", train), (0, epoch)]
    other = adapter(BEGINNINGS, process="worker-2-1", num_epochs=9)
    other.logs(StepLogs(1, 0, 2.0, True, 2.0))
    made.logs(StepLogs(1, 0, 3.0, True, 3.0))
    made.load(other.image())
    # callbacks of another history are new objects, which have to open their files as the former ones
    assert made._callbacks._callbacks[0].seen == [("train", train), (0, False), (1, False)]


def test_a_file_that_nothing_was_written_to_gets_its_header_once(adapter: Make, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    source = callbacks(f"CSVLogger({str(path)!r})")
    first, other = adapter(source), adapter(source, process="worker-1-1")
    other.writes = True
    epochs(other, [3.0])
    first.load(other.image())
    first.writes = True
    epochs(first, [2.0], first=1)
    first._callbacks.end()
    assert [line.split(",")[0] for line in path.read_text().split()] == ["epoch", "0", "1"]


def test_without_callbacks_no_history_is_kept(adapter: Make) -> None:
    made = adapter()
    epochs(made, list(np.ones(5)))
    assert made.image().meta["callbacks"] == []


STEPS = """
class Own(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []
    def on_train_batch_begin(self, batch, logs=None): self.seen.append((batch, self.params["global_step"]))
def callbacks():
    return [Own()]
"""


def test_batches_count_within_the_epoch_and_params_have_the_step_of_the_job(adapter: Make) -> None:
    donor, joiner = adapter(STEPS, num_epochs=3), adapter(STEPS, num_epochs=3)
    epochs(donor, [3.0, 2.0], steps=3)
    joiner.load(donor.image())
    seen = [made._callbacks._callbacks[0].seen for made in (donor, joiner)]
    assert seen[0] == seen[1] == [(0, 0), (1, 1), (2, 2), (0, 3), (1, 4), (2, 5), (0, 6)]


def test_a_callback_knows_whether_it_writes_and_not_while_it_catches_up(adapter: Make) -> None:
    source = STEPS.replace("on_train_batch_begin", "on_train_batch_end").replace("global_step", "writes")
    donor, joiner = adapter(source), adapter(source)
    donor.writes = joiner.writes = True
    epochs(donor, [3.0])
    joiner.load(donor.image())
    epochs(joiner, [2.0], first=1)
    seen = [[writes for _, writes in made._callbacks._callbacks[0].seen] for made in (donor, joiner)]
    assert seen == [[True, True], [False, False, True, True]]


# ------------------------------------------------------------------ evaluations

METRICS = """
def eval_metrics_fn():
    return {"accuracy": keras.metrics.BinaryAccuracy(), "own": lambda labels, outputs: labels}
"""
LOGGED = """
class Logged(keras.callbacks.Callback):
    seen = []

    def __getattribute__(self, name):
        if name.startswith("on_"):
            self.seen.append(name)
        return super().__getattribute__(name)

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append((epoch, dict(logs)))

    def on_test_end(self, logs=None):
        self.seen.append(dict(logs))

    def on_train_batch_begin(self, batch, logs=None):
        self.seen.append(batch)

def callbacks():
    return [Logged()]
"""


def evaluated_epochs(adapter: KerasAdapter, values: list[MetricValues]) -> str | None:
    """Commit epochs of one step, each evaluated with these metrics; return the first reason to stop."""
    for epoch, found in enumerate(values):
        adapter.logs(StepLogs(epoch + 1, epoch, 1.0, False, 1.0, at_gate=True))
        reason = adapter.gate(GateLogs(epoch + 1, epoch, found, True, 1.0))
        if reason is not None:
            return reason
    return None


def accuracies(*values: float) -> list[MetricValues]:
    return [(("val_loss", 1.0), ("val_accuracy", value), ("val_own", -value)) for value in values]


def test_early_stopping_follows_a_metric_the_way_that_is_better(adapter: Make) -> None:
    source = callbacks("EarlyStopping(monitor='val_accuracy', patience=1)") + METRICS
    made = adapter(source, validation_data="x")
    assert evaluated_epochs(made, accuracies(0.1, 0.2, 0.3)) is None
    reason = evaluated_epochs(adapter(source, validation_data="x"), accuracies(0.3, 0.2))
    assert reason == "EarlyStopping asked for the end of training after step 2"


@pytest.mark.parametrize(
    ("callback", "settings", "said"),
    [
        ("EarlyStopping(monitor='val_own')", {}, r"val_own.*mode='max' or mode='min'"),
        (
            "EarlyStopping(monitor='val_none')",
            {},
            r"known at the end of an epoch: loss, val_loss, val_accuracy, val_own$",
        ),
        ("EarlyStopping()", {"evaluate_at_epoch_end": False}, r"known at the end of an epoch: loss;"),
    ],
)
def test_what_can_not_be_monitored_is_refused(
    adapter: Make, callback: str, settings: dict[str, bool], said: str
) -> None:
    with pytest.raises(BadModel, match=said):
        adapter(callbacks(callback) + METRICS, validation_data="x", **settings)


def test_the_end_of_an_epoch_comes_after_its_evaluation_and_before_the_next_batch(adapter: Make) -> None:
    made = adapter(LOGGED, validation_data="x", num_epochs=2)
    seen = made._callbacks._callbacks[0].seen
    seen.clear()
    made.logs(StepLogs(1, 0, 1.0, False, 1.0, at_gate=True))
    assert [entry for entry in seen if not isinstance(entry, str)] == []
    made.gate(GateLogs(1, 0, (("val_loss", 0.5),), True, 1.0))
    assert [entry for entry in seen if not isinstance(entry, str)] == [
        {"loss": 0.5}, (0, {"loss": 1.0, "val_loss": 0.5}), 0,
    ]  # fmt: skip
    seen.clear()
    made.logs(StepLogs(2, 1, 1.0, False, 1.0, at_gate=True))
    made.gate(GateLogs(2, 1, None, False, 1.0))
    assert [entry for entry in seen if not isinstance(entry, str)] == [1], (
        "a job that stops evaluates nothing"
    )


def test_a_worker_that_joins_has_what_evaluations_did(adapter: Make) -> None:
    source = callbacks("ReduceLROnPlateau(monitor='val_loss', factor=0.5, patience=1, min_delta=0)") + METRICS
    first, second = adapter(source, validation_data="x"), adapter(source, validation_data="x")
    losses: list[MetricValues] = [(("val_loss", value),) for value in (1.0, 1.0, 1.0)]
    evaluated_epochs(first, losses)
    assert rate(first) == np.float32(0.02) / 4
    image = first.image()
    second.load(StateImage(json.loads(json.dumps(image.meta)), image.body))
    assert rate(second) == rate(first)
    assert second.digest() == first.digest()
    for made in (first, second):
        made.logs(StepLogs(4, 3, 1.0, False, 1.0, at_gate=True))
        made.gate(GateLogs(4, 3, losses[0], True, 1.0))
    assert rate(second) == rate(first) == np.float32(0.02) / 8
