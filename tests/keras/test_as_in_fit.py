"""The callbacks of a group of one see, do and write what they do in `fit`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from elasticdl.keras.adapter import KerasAdapter
from elasticdl.worker.contract.allreduce import GateLogs, StepLogs
from tests.keras.conftest import records

Make = Callable[..., KerasAdapter]

MINIBATCH, EPOCHS = 4, 3
ROWS = records(16)
SEEN = """
class Seen(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def note(self, hook, *given, logs=None):
        place = [one for one in given if isinstance(one, int)]
        told = logs or next((one for one in given if isinstance(one, dict)), {})
        self.seen.append((hook, *place, dict(told), float(self.model.optimizer.learning_rate)))

def noting(hook):
    return lambda self, *given, **named: self.note(hook, *given, **named)

for what, ends in (("train", 2), ("epoch", 2), ("train_batch", 2), ("test", 2)):
    for hook in (f"on_{what}_begin", f"on_{what}_end"):
        setattr(Seen, hook, noting(hook))

def callbacks():
    return [CALLBACKS, keras.callbacks.History(), Seen()]
"""


def table(rows: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.array([[float(one) for one in row.split(b",")] for row in rows], np.float32)
    return numbers[:, :3], numbers[:, 3:]


def fit(made: KerasAdapter, rows: list[bytes], callbacks: list[Any], evaluated: bool) -> None:
    """Train a copy of the adapter's model in `fit`."""
    model = keras.models.clone_model(made.model)
    model.set_weights(made.model.get_weights())
    model.compile(made._user.optimizer(), made._user.loss)
    features, labels = table(rows)
    model.fit(
        features, labels, MINIBATCH, EPOCHS, callbacks=callbacks, shuffle=False, verbose=0,
        validation_data=(features, labels) if evaluated else None,
    )  # fmt: skip


def train(made: KerasAdapter, rows: list[bytes], values: list[float]) -> None:
    """Train in a group of one; `values`: of the evaluation at the end of each epoch, if there are any."""
    step = 0
    for epoch in range(EPOCHS):
        loss = examples = 0.0
        for start in range(0, len(rows), MINIBATCH):
            result = made.compute(made.convert(rows[start : start + MINIBATCH]), step, 0)
            made.apply(np.array(made.accumulator()), result.examples)
            step, loss, examples = step + 1, loss + result.loss, examples + result.examples
            ended, mean = start + MINIBATCH >= len(rows), loss / examples
            gate = ended and bool(values)
            reason = made.logs(
                StepLogs(step, epoch, result.loss / result.examples, ended and not gate, mean, gate)
            )
            if gate:
                reason = made.gate(GateLogs(step, epoch, (("val_loss", values[epoch]),), True, mean))
            if reason is not None:
                made.end_training(0)
                return
    made.end_training(0)


def flat(seen: list[Any]) -> tuple[list[Any], list[float]]:
    """Return what was seen without its numbers, and the numbers."""
    names = [(hook, *place, *sorted(logs)) for hook, *place, logs, _ in seen]
    return names, [
        number for *_, logs, rate in seen for number in (*(logs[name] for name in sorted(logs)), rate)
    ]


@pytest.mark.parametrize("evaluated", [False, True])
@pytest.mark.parametrize(
    ("callback", "attributes"),
    [
        ("keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5 ** epoch)", ()),
        (
            "keras.callbacks.ReduceLROnPlateau(monitor='loss', factor=0.5, patience=1, min_delta=9.0)",
            ("best", "wait", "cooldown_counter"),
        ),
        ("keras.callbacks.EarlyStopping(monitor='loss', min_delta=9.0)", ("best", "wait", "stopped_epoch")),
        ("keras.callbacks.TerminateOnNaN()", ()),
        (
            "keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(seen=epoch))",
            (),
        ),
    ],
)
def test_callbacks_see_and_do_what_they_do_in_fit(
    adapter: Make, callback: str, attributes: tuple[str, ...], evaluated: bool
) -> None:
    rows = list(ROWS)
    if "NaN" in callback:
        rows[-1] = b"1,1,1,nan"
    settings = {"validation_data": "x"} if evaluated else {}
    made = adapter(
        SEEN.replace("CALLBACKS", callback), num_epochs=EPOCHS, minibatch_size=MINIBATCH, **settings
    )
    expected = made._user.callbacks()
    fit(made, rows, expected, evaluated)
    theirs, history, seen = expected
    train(made, rows, history.history.get("val_loss", []))
    ours, our_history, our_seen = made._callbacks._callbacks
    names, numbers = flat(seen.seen)
    without_batches = [one for one in names if not one[0].startswith("on_test_batch")]
    our_names, our_numbers = flat(our_seen.seen)
    assert our_names == without_batches
    np.testing.assert_allclose(our_numbers, numbers, rtol=1e-5)
    assert our_history.epoch == history.epoch
    assert our_history.history.keys() == history.history.keys()
    for name, values in history.history.items():
        np.testing.assert_allclose(our_history.history[name], values, rtol=1e-5)
    for name in attributes:
        value = getattr(theirs, name)
        assert getattr(ours, name) == (pytest.approx(value, rel=1e-5) if isinstance(value, float) else value)
    assert made.model.stop_training == theirs.model.stop_training


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("{epoch}-{loss:.1f}.keras", ""),
        ("{epoch}-{val_loss:.1f}.weights.h5", "save_weights_only=True"),
        ("{epoch:02d}-{batch}-{loss:.1f}.weights.h5", "save_weights_only=True, save_freq=3"),
        ("best.keras", "save_best_only=True"),
        ("none.keras", "save_best_only=True, initial_value_threshold=-1.0"),
        ("{epoch}.h5", "monitor='none', mode='max'"),
    ],
)
def test_checkpoints_are_those_of_fit(adapter: Make, tmp_path: Path, name: str, options: str) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    source = f"""
import os

def callbacks():
    return [keras.callbacks.ModelCheckpoint(os.path.join(os.environ.get("INTO", {str(ours)!r}), {name!r}), {options})]
"""
    made = adapter(source, num_epochs=EPOCHS, minibatch_size=MINIBATCH, validation_data="x")
    made.writes = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INTO", str(theirs))
        (expected,) = made._user.callbacks()
    history = keras.callbacks.History()
    fit(made, ROWS, [expected, history], evaluated=True)
    train(made, ROWS, history.history["val_loss"])
    found = sorted(path.name for path in theirs.iterdir()) if theirs.exists() else []
    assert (sorted(path.name for path in ours.iterdir()) if ours.exists() else []) == found
    for file in found:
        for one, other in zip(weights_of(ours / file, made), weights_of(theirs / file, made), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)
    (callback,) = made._callbacks._callbacks
    assert callback.best == (None if expected.best is None else pytest.approx(expected.best, rel=1e-5))


def weights_of(path: Path, made: KerasAdapter) -> list[np.ndarray]:
    """Return a file's weights, and of a `.keras` file the optimizer's variables."""
    if path.name.endswith(".weights.h5"):
        model = keras.models.clone_model(made.model)
        model.load_weights(path)
        return [np.asarray(one) for one in model.get_weights()]
    loaded = keras.models.load_model(path, custom_objects={"loss": made._user.loss})
    state = loaded.optimizer.variables if path.suffix == ".keras" else ()
    return [np.asarray(one) for one in (*loaded.get_weights(), *state)]
