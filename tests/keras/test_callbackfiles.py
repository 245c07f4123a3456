"""What callbacks of a group write: one member does, and what a lost one did not, the next one does."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.util import event_pb2

from elasticdl.errors import BadModel, Unwritable
from elasticdl.keras.adapter import KerasAdapter
from elasticdl.keras.saves import _is_renamed
from elasticdl.keras.trained import KerasTrained
from elasticdl.spec.jobspec import JobKind
from elasticdl.worker.contract.allreduce import GateLogs, StepLogs

Make = Callable[..., KerasAdapter]


def callbacks(*made: str) -> str:
    return f"def callbacks():\n    return [{', '.join('keras.callbacks.' + one for one in made)}]\n"


def step(made: KerasAdapter, number: int, loss: float, steps: int = 2) -> None:
    """Commit a step, after which all gradients so far have the sum of their numbers; each epoch has this many."""
    made.apply(np.full(made.size, number, made.dtype), 1.0)
    made.logs(StepLogs(number, (number - 1) // steps, loss, number % steps == 0, loss))


def kernel(path: Path) -> float:
    """Return what the first weight of a file has moved by, in learning rates."""
    model = keras.models.load_model(path, compile=False)
    return float(model.get_weights()[0][0, 0])


def held(made: KerasAdapter) -> float:
    return float(made.model.get_weights()[0][0, 0])


@pytest.fixture
def best(tmp_path: Path) -> Path:
    return tmp_path / "into" / "best.keras"


@pytest.fixture
def source(best: Path) -> str:
    return callbacks(f"ModelCheckpoint({str(best)!r}, monitor='loss', save_best_only=True)")


def test_members_agree_on_the_best_and_one_writes(adapter: Make, best: Path, source: str) -> None:
    one, other = adapter(source), adapter(source, process="worker-1-1")
    one.writes = True
    saved = []
    for number, loss in enumerate((9.0, 3.0, 9.0, 2.0, 9.0, 4.0), start=1):
        step(other, number, loss)
        assert best.exists() == bool(saved), "the other one writes nothing"
        step(one, number, loss)
        if number in (2, 4):
            saved.append(held(one))
        if saved:
            assert kernel(best) == saved[-1]
    joiner = adapter(source, process="worker-2-1")
    joiner.load(one.image())
    assert [made._callbacks._callbacks[0].best for made in (one, other, joiner)] == [2.0] * 3
    assert [path.name for path in best.parent.iterdir()] == ["best.keras"]


def test_a_file_is_replaced_when_the_next_one_is_whole(
    adapter: Make, best: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = adapter(source)
    made.writes = True
    step(made, 1, 3.0, steps=1)
    before = best.read_bytes()
    (best.parent / ".best.keras.abcd1234").mkdir()
    (best.parent / ".best.keras.abcd1234" / "best.keras").write_bytes(b"left by a killed process")

    def full(store: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(made.model.layers[-1], "save_own_variables", full)
        with pytest.raises(Unwritable, match=rf"can't be written to {best}: no space left on device; free"):
            step(made, 2, 2.0, steps=1)
    assert best.read_bytes() == before
    assert [path.name for path in best.parent.iterdir()] == ["best.keras"]


@pytest.mark.parametrize(
    ("name", "target", "more", "named", "renamed"),
    [
        ("save", "a.keras", (), {}, True),
        ("save", "a.keras", (True,), {}, True),
        ("save", "a.keras", (False,), {}, False),
        ("save_weights", "a.weights.h5", (), {"overwrite": False}, False),
        ("save_weights", "a.weights.json", (), {"max_shard_size": 1}, False),
        ("save", "gs://bucket/a.keras", (), {}, False),
        ("export", "a", ("tf_saved_model",), {}, True),
    ],
)
def test_what_replaces_one_file_is_renamed_when_it_is_whole(
    name: str, target: str, more: tuple[Any, ...], named: dict[str, Any], renamed: bool
) -> None:
    assert _is_renamed(name, target, more, named) == renamed


COUNTED = ("_batches_seen_since_last_saving", "_last_batch_seen")


def counted(made: KerasAdapter) -> list[Any]:
    return [[getattr(one, name) for name in COUNTED] for one in made._callbacks._callbacks]


def test_of_batches_that_are_only_counted_a_joiner_gets_the_number(adapter: Make, best: Path) -> None:
    """Two counts that cross epochs of four steps, one of which is evaluated in the middle."""
    names = [str(best.parent / f"{{batch}}-{{loss:.0f}}-{every}.weights.h5") for every in (3, 5)]
    source = callbacks(
        *(
            f"ModelCheckpoint({name!r}, save_weights_only=True, save_freq={every})"
            for name, every in zip(names, (3, 5), strict=True)
        )
    )

    def advance(made: KerasAdapter, number: int) -> None:
        made.apply(np.full(made.size, number, made.dtype), 1.0)
        at_gate, ends = number == 6, number % 4 == 0
        loss = None if number == 7 else float(number)
        made.logs(StepLogs(number, (number - 1) // 4, loss, ends, loss, at_gate=at_gate))
        if at_gate:
            made.gate(GateLogs(number, 1, (("val_loss", 0.5),), False, loss))

    made = adapter(source)
    late = adapter(source, process="worker-2-1")
    for number in range(1, 31):
        advance(made, number)
        joiner = adapter(source, process="worker-1-1") if number in (1, 6, 7, 13) else late
        joiner.load(made.image())
        assert counted(joiner) == counted(made)
        missed = len(joiner._callbacks._missed)
        assert missed == len(made._callbacks._missed)
    # the first commit, the end of each epoch, the evaluation, the commit without a loss, and the last
    assert len(made._callbacks.state()) == 1 + 7 + 1 + 1 + 1
    advance(late, 31)
    late.load(made.image())
    assert counted(late) == counted(made), "what it has counted is of a commit that was redone"


@pytest.mark.parametrize("joins", [False, True])
def test_the_next_writer_saves_what_a_lost_one_did_not(
    adapter: Make, best: Path, source: str, joins: bool
) -> None:
    """The loss is best after the second step, and the writer is killed before it has saved that."""
    made = adapter(source, process="worker-1-1")
    step(made, 1, 9.0)
    step(made, 2, 1.0)
    wanted = held(made)
    if joins:
        image, made = made.image(), adapter(source, process="worker-0-2")
        made.load(image)
    made.writes = True
    assert not best.exists()
    step(made, 3, 2.0)
    assert kernel(best) == wanted != held(made)
    step(made, 4, 2.0)
    assert kernel(best) == wanted


@pytest.mark.parametrize("end", [lambda made: made.end_training(0), lambda made: made.export("", "keras")])
def test_the_last_save_is_made_up_for_at_the_end(
    adapter: Make, best: Path, source: str, end: Callable[[KerasAdapter], None]
) -> None:
    made = adapter(source, process="worker-1-1")
    step(made, 1, 1.0, steps=1)
    made.end_training(0)
    assert not best.exists()
    made.writes = True
    end(made)
    assert kernel(best) == held(made)


@pytest.mark.parametrize("joins", [False, True])
def test_a_state_that_nobody_has_any_more_is_not_saved_under_a_wrong_name(
    adapter: Make, best: Path, source: str, joins: bool
) -> None:
    """Once a further step is committed the former writer has written: it took part in that step."""
    made = adapter(source, process="worker-1-1")
    for number, loss in enumerate((9.0, 1.0, 2.0), start=1):
        step(made, number, loss)
    if joins:
        image, made = made.image(), adapter(source, process="worker-0-2")
        made.load(image)
    made.writes = True
    step(made, 4, 2.0)
    assert not best.exists()


def test_a_state_that_is_discarded_is_not_saved(adapter: Make, best: Path, source: str) -> None:
    """A member that alone committed a step goes back to the one before, and is the writer then."""
    made, other = (adapter(source, process=f"worker-{number}-1") for number in (1, 2))
    for one in (made, other):
        step(one, 1, 9.0)
    step(made, 2, 1.0)
    made.writes = True
    made.load(other.image())
    step(made, 2, 5.0)
    assert kernel(best) == held(made)
    assert made._callbacks._callbacks[0].best == 5.0


def test_a_state_that_is_not_evaluated_is_no_best_one(adapter: Make, best: Path) -> None:
    source = callbacks(f"ModelCheckpoint({str(best.parent)!r} + '/{{epoch}}-{{val_loss}}.keras')")
    made = adapter(source, validation_data="x", num_epochs=2)
    made.writes = True
    made.apply(np.ones(made.size, made.dtype), 1.0)
    made.logs(StepLogs(1, 0, 1.0, False, 1.0, at_gate=True))
    made.gate(GateLogs(1, 0, None, True, 1.0))
    assert not best.parent.exists(), "the job stops"


def test_the_optimizer_comes_with_the_model(adapter: Make, best: Path, source: str, model_file: Any) -> None:
    made = adapter(source + "def optimizer():\n    return keras.optimizers.Adam(0.5)\n")
    made.writes = True
    for number in (1, 2):
        step(made, number, 1.0)
    loaded = keras.models.load_model(best)
    assert int(loaded.optimizer.iterations) == 2
    loaded.compile(optimizer=loaded.optimizer, loss="mse")
    for variable, own in zip(loaded.optimizer.variables, made.optimizer.variables, strict=True):
        np.testing.assert_array_equal(variable.numpy(), own.numpy(), variable.path)
    user, spec = model_file(
        kind=JobKind.EVALUATE, trained_model=str(best), validation_data="x", training_data=""
    )
    trained = KerasTrained(user, spec, None, best)
    trained.prepare([b"1,1,1,1"] * 8)
    np.testing.assert_array_equal(trained._model.get_weights()[0], made.model.get_weights()[0])


def test_a_callback_of_ones_own_saves_the_same_way(adapter: Make, tmp_path: Path) -> None:
    source = f"""
    class Own(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.save({str(tmp_path)!r} + "/own.keras")
            self.model.export({str(tmp_path)!r} + "/own", verbose=False)
            self.model.save_weights({str(tmp_path)!r} + "/own.weights.json", max_shard_size=1)
    def callbacks():
        return [Own()]
    """
    made = adapter(source)
    step(made, 1, 1.0, steps=1)
    assert not list(tmp_path.glob("own*"))
    made.writes = True
    step(made, 2, 1.0, steps=1)
    kept = sorted(path.name for path in tmp_path.glob("own*"))
    assert kept == ["own", "own.keras", "own.weights.json", "own_00000.weights.h5"]
    assert kernel(tmp_path / "own.keras") == held(made)
    exported = tf.saved_model.load(str(tmp_path / "own"))
    ones = tf.ones((1, 3))
    np.testing.assert_allclose(exported.serve(ones), made.model(ones))
    assert made.model.save.__self__ is made.model, "outside callbacks the model is as it was"


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (
            "ModelCheckpoint('x.keras', save_best_only=True)",
            "ModelCheckpoint monitors 'val_loss'; known at the end of an epoch: loss; --validation_data adds",
        ),
        (
            "ModelCheckpoint('{epoch}-{val_loss}.keras')",
            "ModelCheckpoint names files by 'val_loss'; known at the end of an epoch: epoch, loss$",
        ),
        (
            "ModelCheckpoint('{step}.keras', save_freq=9)",
            "ModelCheckpoint names files by 'step'; known at the end of a batch: epoch, batch, loss$",
        ),
        (
            "ModelCheckpoint('x.keras', monitor='loss', save_best_only=True, save_freq=9)",
            "ModelCheckpoint compares single batches; write save_freq='epoch'",
        ),
        ("TensorBoard('x', profile_batch=2)", "TensorBoard profiles one worker .*; leave profile_batch out"),
        (
            "TensorBoard('x', embeddings_freq=1)",
            "TensorBoard writes embeddings .*; leave embeddings_freq out",
        ),
        (
            "TensorBoard('x', write_steps_per_second=True)",
            "TensorBoard measures one worker; .* --tensorboard_log_dir has the speed",
        ),
        ("SwapEMAWeights()", "SwapEMAWeights is not possible in a group of workers; the optimizer's use_ema"),
    ],
)
def test_what_can_not_be_written_is_refused(adapter: Make, made: str, said: str) -> None:
    with pytest.raises(BadModel, match=said):
        adapter(callbacks(made))


def test_orbax_is_refused_where_keras_has_it(adapter: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "class Orbax(keras.callbacks.Callback):\n    pass\ndef callbacks():\n    return [Orbax()]\n"
    monkeypatch.delattr(keras.callbacks, "OrbaxCheckpoint", raising=False)
    made = adapter(source)
    kind = type(made._callbacks._callbacks[0])
    monkeypatch.setattr(keras.callbacks, "OrbaxCheckpoint", kind, raising=False)
    with pytest.raises(BadModel, match="Orbax is not possible in a group of workers; use --checkpoint_dir"):
        made._callbacks._check(kind())


def test_tensorboard_needs_its_package(adapter: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        BadModel, match=r"TensorBoard needs the package tensorboard .*pip install tensorboard"
    ):
        adapter(callbacks("TensorBoard('x')"))


# ------------------------------------------------------------------ event files, lines, messages


def events(directory: Path) -> list[tuple[str, str, int, float]]:
    """Return (folder, tag, step, value) of the scalars, and of the rest how many bytes they have."""
    found = []
    for path in sorted(directory.rglob("events.out.tfevents.*")):
        for record in tf.data.TFRecordDataset(str(path)):
            one = event_pb2.Event.FromString(record.numpy())
            for value in one.summary.value:
                array = tf.make_ndarray(value.tensor)
                number = float(array) if array.shape == () and array.dtype.kind == "f" else float(array.size)
                found.append((path.parent.name, value.tag, one.step, number))
    return found


@pytest.mark.parametrize("options", ["", "update_freq=1, histogram_freq=1, write_images=True"])
def test_the_next_writer_opens_a_further_event_file(adapter: Make, tmp_path: Path, options: str) -> None:
    def evaluated(made: KerasAdapter, number: int) -> None:
        made.apply(np.full(made.size, number, made.dtype), 1.0)
        made.logs(StepLogs(number, number - 1, 1.0 / number, False, 1.0 / number, at_gate=True))
        made.gate(GateLogs(number, number - 1, (("val_loss", 2.0 / number),), True, 1.0 / number))

    def maker(name: str) -> Callable[[str], KerasAdapter]:
        source = callbacks(f"TensorBoard({str(tmp_path / name)!r}, {options})")
        return lambda process: adapter(source, process=process, num_epochs=9, validation_data="x")

    make = maker("calm")
    calm = make("worker-0-1")
    calm.writes = True
    for number in range(1, 6):
        evaluated(calm, number)
    calm.end_training(0)

    make = maker("rough")
    first, second = make("worker-0-1"), make("worker-1-1")
    first.writes = True
    for number in range(1, 4):
        evaluated(second, number)
        if number < 3:  # and is lost before it writes of the third step
            evaluated(first, number)
    second.writes = True
    evaluated(second, 4)
    third = make("worker-0-2")
    third.load(second.image())
    third.writes = True
    evaluated(third, 5)
    third.end_training(0)
    wanted, found = events(tmp_path / "calm"), events(tmp_path / "rough")
    graph = ("train", "keras", 0)
    assert len(list((tmp_path / "rough" / "train").iterdir())) == 3
    assert len([one for one in found if one[:3] == graph]) == 3
    # the last writer could not know whether the one before had written of the fourth step
    assert set(found) == set(wanted)
    assert {
        ("train", "epoch_loss", 2, np.float32(1 / 3)),
        ("validation", "epoch_loss", 4, np.float32(0.4)),
    } <= set(found)
    steps = [one for folder, tag, one, _ in found if tag == "batch_loss"]
    assert sorted(set(steps)) == ([1, 2, 3, 4, 5] if options else [])


def test_a_line_that_a_lost_writer_did_not_write_is_written_once(adapter: Make, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("epoch,loss\n0,9.0\n")
    source = callbacks(f"CSVLogger({str(path)!r})")
    first, second = adapter(source), adapter(source, process="worker-1-1")
    first.writes = True
    for number in (1, 2, 3):
        step(second, number, 4.0 / number, steps=1)
        if number < 3:
            step(first, number, 4.0 / number, steps=1)
    second.writes = True
    step(second, 4, 1.0, steps=1)
    third = adapter(source, process="worker-0-2")
    third.load(second.image())
    third.writes = True
    step(third, 5, 0.5, steps=1)
    third.end_training(0)
    lines = [line.split(",")[:2] for line in path.read_text().split()]
    assert lines == [
        ["epoch", "loss"], ["0", "4.0"], ["1", "2.0"], ["2", str(4.0 / 3)], ["3", "1.0"], ["4", "0.5"],
    ]  # fmt: skip


class Told(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Listening)
        self.told: list[tuple[str, Any]] = []


class Listening(BaseHTTPRequestHandler):
    server: Told

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.told.append((self.path, body))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server = Told()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_remote_monitor_hears_of_each_epoch_from_one_member(adapter: Make, told: Told) -> None:
    root = f"http://127.0.0.1:{told.server_port}"
    source = callbacks(f"RemoteMonitor({root!r}, send_as_json=True)")
    first, second = adapter(source), adapter(source, process="worker-1-1")
    first.writes = True
    for made in (first, second):
        step(made, 1, 3.0, steps=1)
    step(second, 2, 2.0, steps=1)
    second.writes = True
    step(second, 3, 1.0, steps=1)
    assert told.told == [("/publish/epoch/end/", {"epoch": epoch, "loss": 3.0 - epoch}) for epoch in range(3)]


def test_progress_is_a_line_for_each_epoch_in_the_log_of_the_writer(
    adapter: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    source = callbacks("ProgbarLogger()")
    one, other = adapter(source, num_epochs=3), adapter(source, process="worker-1-1", num_epochs=3)
    one.writes = True
    capsys.readouterr()
    for number in (1, 2, 3):
        step(other, number, 0.5)
    assert capsys.readouterr().out == ""
    for number in (1, 2, 3):
        step(one, number, 0.5)
    assert capsys.readouterr().out.count("loss: 0.5") == 1
    other.writes = True
    step(other, 4, 0.25)
    assert capsys.readouterr().out.count("loss: 0.25") == 1
