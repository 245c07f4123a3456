"""What a person gets wrong, in whole jobs: the exit code, the message, and nothing left behind (the fixture looks for processes)."""

from __future__ import annotations

import errno
import json
import os
import resource
import time
from pathlib import Path

import numpy as np
import pytest

from elasticdl.audit import audit
from elasticdl.data.readers.writing import write_tfrecord

from .conftest import ROOT, Result, SmallDisk, Start

PLAIN = """\
import numpy as np

from elasticdl.reference import SGD, Callback, Computed, Linear


def custom_model():
    return Linear(2)


def optimizer():
    return SGD(0.01)


def feed(records, mode, metadata):
    values = np.stack([np.frombuffer(record, np.float32) for record in records])
    return values[:, :2], values[:, 2]
"""
"""A model of the reference framework: what TensorFlow and Keras have a part in is proven without jobs, in `tests/keras`."""

LOST = (
    PLAIN.replace("Linear(2)", "Lost(2)")
    + """

class Lost(Linear):
    def compute(self, *given):
        found = super().compute(*given)
        return Computed(np.nan, {name: np.nan * one for name, one in found.gradients.items()})
"""
)

PICKY = (
    PLAIN.replace("Linear(2)", "Picky(2)")
    + """

class Picky(Linear):
    def compute(self, values, rows, features, labels, random):
        if labels.max() > 1.9:
            raise ArithmeticError("too much")
        return super().compute(values, rows, features, labels, random)
"""
)
PICKY_LINE = PICKY.splitlines().index('            raise ArithmeticError("too much")') + 1

ACTS = """

class Acts(Callback):
    def on_step_end(self, logs):
        if logs.step >= 5:
            {act}


def callbacks():
    return [Acts()]
"""


def room(directory: Path, source: str, count: int = 64) -> dict[str, object]:
    """Write a model file and its data; return the settings of a small job, of one worker."""
    (directory / "zoo").mkdir()
    (directory / "zoo" / "model.py").write_text(source)
    (directory / "data").mkdir()
    values = np.random.default_rng(0).standard_normal((count, 3), np.float32)
    write_tfrecord(directory / "data" / "numbers.tfrecord", (row.tobytes() for row in values))
    return {
        "model_zoo": directory / "zoo",
        "model_def": "model.custom_model",
        "training_data": directory / "data",
        "num_workers": 1,
        "minibatch_size": 4,
        "num_minibatches_per_task": 1,
        "output": directory / "model.npz",
    }


def damage(directory: Path, *records: int) -> None:
    """Change a byte of the payload of some records."""
    path = directory / "data" / "numbers.tfrecord"
    content = bytearray(path.read_bytes())
    for record in records:
        content[record * (12 + 12 + 4) + 12] ^= 255
    path.write_bytes(content)


def check(result: Result, code: int, *said: str) -> None:
    assert result.code == code, result.err + result.logs
    for text in said:
        assert text in result.err, result.err
    assert result.err.count("Traceback") <= 1, result.err


def told(directory: Path) -> str:
    """Return what the only job of a directory has told; its terminal may come too late for the notes of one that trains for moments."""
    (events,) = (directory / "state").glob("**/events.jsonl")
    return "\n".join(json.loads(line)["text"] for line in events.read_text().splitlines())


def test_what_only_running_shows_ends_the_job_before_its_first_step(start: Start, tmp_path: Path) -> None:
    settings = room(tmp_path, PLAIN.replace("return Linear(2)", "return np.Linear(2)"))
    result = start(**{**settings, "num_workers": 2}).wait()
    check(result, 2, "model.py", "Linear", "line 7")
    assert result.summary["steps"] == 0
    assert not list(tmp_path.glob("model.*"))


def test_a_corrupt_record_is_named(start: Start, tmp_path: Path) -> None:
    settings = room(tmp_path, PLAIN)
    damage(tmp_path, 37)
    check(start(**settings).wait(), 2, "record 37 of", "numbers.tfrecord")


def test_corrupt_records_may_be_left_out(start: Start, tmp_path: Path) -> None:
    """A file without records is reported, too."""
    settings = room(tmp_path, PLAIN)
    damage(tmp_path, 3, 37)
    (tmp_path / "data" / "empty.tfrecord").touch()
    result = start(
        **{**settings, "num_workers": 2}, max_bad_records=2, num_epochs=2, audit=tmp_path / "audit"
    ).wait()
    check(result, 0)
    assert "skips record 37 of" in told(tmp_path)
    assert "empty.tfrecord has no records" in told(tmp_path)
    assert result.summary["bad_records"] == 2
    report = audit(tmp_path / "audit")
    assert [epoch.counted for epoch in report.epochs] == [64, 64]
    assert (report.trained, report.bad_records) == (124, 4)
    assert "124 were trained, each exactly once, and 4 were skipped as corrupt" in report.statement


def test_a_loss_that_is_not_a_number_fails_the_job(start: Start, tmp_path: Path) -> None:
    result = start(**room(tmp_path, LOST)).wait()
    check(result, 1, "the loss of step 1 is nan", "--on_nan=skip_step")


def test_steps_that_are_not_numbers_may_be_skipped(start: Start, tmp_path: Path) -> None:
    settings = room(tmp_path, LOST)
    result = start(**{**settings, "num_workers": 2}, on_nan="skip_step", audit=tmp_path / "audit").wait()
    check(result, 0)
    assert "changes nothing (on_nan=skip_step)" in told(tmp_path)
    assert (tmp_path / "model.npz").exists()
    assert result.summary["idle_steps"] == result.summary["steps"] > 0
    report = audit(tmp_path / "audit")
    assert (report.trained, report.idle_records) == (0, 64)


def test_a_place_for_the_audit_may_be_used_again_after_a_failure_before_the_first_step(
    start: Start, tmp_path: Path
) -> None:
    settings = room(tmp_path, PLAIN)
    model = tmp_path / "zoo" / "model.py"
    right = model.read_text()
    model.write_text(right.replace("values[:, :2], values[:, 2]", "values"))
    check(start(**settings, audit=tmp_path / "audit").wait(), 2, "feed returned")
    model.write_text(right)
    check(start(**settings, audit=tmp_path / "audit").wait(), 0)
    assert audit(tmp_path / "audit").complete


def test_values_that_feed_cannot_read_are_looked_for_in_their_file(start: Start, tmp_path: Path) -> None:
    source = PLAIN.replace("np.frombuffer(record, np.float32)", "np.array([*map(float, record.split(b','))])")
    settings = room(tmp_path, source)
    rows = [b"1,2,3"] * 64
    rows[40] = b"1,two,3"
    write_tfrecord(tmp_path / "data" / "numbers.tfrecord", rows)
    check(start(**settings, shuffle="false").wait(), 2, "(record 40 of", "numbers.tfrecord")


@pytest.mark.parametrize("command", ["train", "evaluate", "predict"])
def test_a_column_that_the_data_lacks_is_named_with_those_that_there_are(
    start: Start, tmp_path: Path, command: str
) -> None:
    source = PLAIN.replace(
        "    values = np.stack([np.frombuffer(record, np.float32) for record in records])\n"
        "    return values[:, :2], values[:, 2]\n",
        '    return np.stack([records["width"], records["height"]], axis=1), records["width"]\n',
    )
    of_command = {"train": "training_data", "evaluate": "validation_data", "predict": "prediction_data"}
    settings = room(tmp_path, source)
    data = tmp_path / "rows.jsonl"
    data.write_text('{"width": 1.0, "heigth": 2.0}\n' * 8)
    del settings["training_data"]
    if command != "train":
        np.savez(tmp_path / "weights.npz", weights=np.zeros(2), bias=np.zeros(1))
        settings |= {"trained_model": tmp_path / "weights.npz", "output": tmp_path / "predictions"}
    if command == "evaluate":
        del settings["output"]
    result = start(command=command, **settings, **{of_command[command]: data}).wait()
    check(
        result,
        2,
        f"{tmp_path}/zoo/model.py: feed failed: KeyError: 'height' (line 15)",
        f"; the data has no column 'height'; did you mean heigth?; it has width, heigth ({data})",
    )


@pytest.mark.parametrize("where", ["import", "model", "callback"])
def test_a_program_that_ends_its_process_fails_the_job(start: Start, tmp_path: Path, where: str) -> None:
    """An exit code that a worker ends with when it is asked to must not make it look as if it had been."""
    source = PLAIN
    match where:
        case "import":
            source = "import sys\nsys.exit(3)\n" + source
        case "model":
            source = source.replace("    return Linear", "    raise KeyboardInterrupt\n    return Linear")
        case "callback":
            source += ACTS.format(act="raise SystemExit(0)")
    result = start(**room(tmp_path, source), num_epochs=50).wait()
    check(result, 1, "KeyboardInterrupt" if where == "model" else "SystemExit", "model.py")


def test_a_disk_that_is_full_at_the_start_ends_the_job_with_its_name(
    start: Start, tmp_path: Path, small_disk: SmallDisk
) -> None:
    """The end can't be journalled, either: the job ends all the same, when it is clear that nothing can be trained."""
    environment = {"XDG_STATE_HOME": str(small_disk.path)}
    job = start(environment, **room(tmp_path, PLAIN))
    while not list(small_disk.path.rglob("master-0-1.log")):  # it takes a while until it opens its journal
        assert job.process.poll() is None, job.wait().err
        time.sleep(0.001)
    small_disk.fill()
    result = job.wait()
    check(
        result,
        1,
        "the journal can't be written (No space left on device",
        "without a result",
        "numbers.tfrecord",
    )


def test_a_worker_that_ends_itself_without_a_word_fails_the_job(start: Start, tmp_path: Path) -> None:
    """No exception is raised, nothing can be reported, and the exit code says that all is well."""
    source = PLAIN.replace("    return Linear", "    import os\n    os._exit(0)\n    return Linear")
    result = start(**room(tmp_path, source), relaunch_on_worker_failure=0).wait()
    check(result, 1, "has ended (exit code 0)", "relaunch_on_worker_failure is 0")


def test_a_callback_ends_the_training_at_its_step_for_everybody(start: Start, tmp_path: Path) -> None:
    settings = {**room(tmp_path, PLAIN + ACTS.format(act="return True")), "num_workers": 2}
    for _ in range(2):
        result = start(**settings, num_epochs=50).wait()
        check(result, 0)
        assert "asked for the end of training after step 5" in result.summary["reason"]
        assert result.summary["steps"] == 5


def test_the_users_exception_is_shown_once(start: Start, tmp_path: Path) -> None:
    settings = room(tmp_path, PLAIN + ACTS.format(act='raise ArithmeticError("the user\'s own mistake")'))
    result = start(**{**settings, "num_workers": 2}, num_epochs=50).wait()
    check(result, 1, "ArithmeticError: the user's own mistake", "model.py")
    assert (
        result.err.count("ArithmeticError: the user's own mistake") <= 2
    )  # the traceback's last line, and the reason
    assert not (tmp_path / "model.npz").exists()


def test_the_users_line_is_shown_in_a_clone_that_is_called_elasticdl(start: Start, tmp_path: Path) -> None:
    clone = tmp_path / "elasticdl"
    clone.mkdir()
    source = PLAIN.replace("    return Linear(2)", '    raise KeyError("mine")\n    return Linear(2)')
    result = start(**room(clone, source)).wait()
    check(result, 2, "KeyError: 'mine'", f'File "{clone}/zoo/model.py", line 7, in custom_model')
    assert result.summary["reason"].endswith("KeyError: 'mine' (line 7)")
    assert f"{ROOT}/python" not in result.err


def test_an_error_of_the_model_is_recognised_in_a_second_life(start: Start, tmp_path: Path) -> None:
    clone = tmp_path / "elasticdl"
    clone.mkdir()
    result = start(**room(clone, PICKY), num_epochs=20).wait()
    model = clone / "zoo" / "model.py"
    check(result, 1, f'File "{model}", line {PICKY_LINE}, in compute', 'raise ArithmeticError("too much")')
    reason = result.summary["reason"]
    assert reason.startswith("worker-0-2 failed with the error that worker-0-1 had before: ")
    assert reason.endswith(f": ArithmeticError: too much (line {PICKY_LINE} of {model}, in compute)")
    assert f"error: {reason}" in result.err.splitlines()


def test_a_full_disk_at_the_end_leaves_the_earlier_output(start: Start, tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: the logs and the journal fit, a model of 4 MB does not."""
    source = PLAIN.replace("Linear(2)", "Linear(1_000_000)").replace(
        "values[:, :2]", "np.zeros((len(values), 1_000_000), np.float32)"
    )
    settings = room(tmp_path, source, count=8)
    earlier = tmp_path / "model.npz"
    earlier.write_bytes(b"of last week")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        job = start(**settings)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    check(job.wait(), 1, f"the model can't be written to {earlier}: {os.strerror(errno.EFBIG).lower()}")
    assert earlier.read_bytes() == b"of last week"
    assert sorted(path.name for path in tmp_path.glob("*.npz")) == ["model.npz"]
    assert not list(tmp_path.glob(".model*"))


def test_empty_data_is_refused(start: Start, tmp_path: Path) -> None:
    settings = room(tmp_path, PLAIN, count=0)
    check(start(**settings).wait(), 2, "data has no records: the file is empty")
