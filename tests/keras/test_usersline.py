"""What a person reads of an error in a Keras model file: its line, and nothing of the libraries around it; whole jobs show the same."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import tensorflow as tf

import elasticdl
from elasticdl.errors import BadInput
from elasticdl.keras.adapter import KerasAdapter
from elasticdl.keras.framework import FRAMEWORK
from elasticdl.worker.raised import program_error
from tests.keras.conftest import HEAD, job, records

PACKAGE = str(Path(elasticdl.__file__).parent)

Prepare = Callable[..., KerasAdapter]


@pytest.fixture
def prepare(tmp_path: Path) -> Prepare:
    """Prepare the adapter of a model file in a clone that is called elasticdl, as the package is."""

    def make(source: str, sample: Sequence[object] | None = None) -> KerasAdapter:
        (clone := tmp_path / "elasticdl").mkdir()
        (clone / "lines.py").write_text(HEAD + textwrap.dedent(source))
        spec = job(model_zoo=str(clone), model_def="lines.custom_model")
        made = KerasAdapter(FRAMEWORK.load(spec), spec)
        made.prepare(records(8) if sample is None else sample)
        return made

    return make


def line_of(path: Path, text: str) -> int:
    return next(number for number, line in enumerate(path.read_text().splitlines(), 1) if text in line)


@pytest.mark.parametrize(
    ("function", "source"),
    [
        ("feed", 'def feed(dataset, mode, metadata):\n    raise KeyError("mine")\n'),
        ("loss", 'def loss(labels, predictions):\n    raise KeyError("mine")\n'),
    ],
    ids=["feed", "loss"],
)
def test_the_users_line_is_shown(prepare: Prepare, tmp_path: Path, function: str, source: str) -> None:
    with pytest.raises(BadInput) as caught:
        prepare(source)
    path = tmp_path / "elasticdl/lines.py"
    line = line_of(path, "mine")
    assert str(caught.value).splitlines()[0].endswith(f"KeyError: 'mine' (line {line})")
    said = program_error(caught.value)
    assert said.kind == "bad-input"
    assert f'File "{path}", line {line}, in {function}' in said.traceback
    assert PACKAGE not in said.traceback
    assert "tensorflow" not in said.traceback


def test_rows_with_too_few_columns_are_told_in_a_few_lines(prepare: Prepare, tmp_path: Path) -> None:
    parse = "tf.strings.to_number(record[:3]), tf.strings.to_number(record[4])"
    source = f"""
    def feed(dataset, mode, metadata):
        def parse(record):
            return {parse}
        return dataset.map(parse)
    """
    with pytest.raises(BadInput) as caught:
        prepare(source, [["1", "2"]] * 4)
    path = tmp_path / "elasticdl/lines.py"
    line = line_of(path, "to_number(record[4])")
    sentence = f"feed failed: ValueError: slice index 4 of dimension 0 out of bounds. (line {line})"
    assert str(caught.value) == f"{path}: {sentence}"
    said = program_error(caught.value)
    assert "tensorflow" not in said.traceback
    assert f"return {parse}" in said.traceback


def test_an_operation_that_fails_is_known_by_its_line(prepare: Prepare, tmp_path: Path) -> None:
    """By it the error is recognised in the worker's second life; the text is TensorFlow's own."""
    made = prepare("""
    def loss(labels, predictions):
        tf.debugging.assert_less(labels, 100.0, 'too much')
        return tf.reduce_mean(tf.square(labels - predictions))
    """)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        made.compute(made.convert([b"1,2,3,400"] * 4), 1, 0)
    path = tmp_path / "elasticdl/lines.py"
    line = line_of(path, "assert_less")
    said = program_error(caught.value)
    assert said.kind == "program"
    assert said.signature == f"InvalidArgumentError at {path}:loss:{line}"
    first = said.traceback.splitlines()[0]
    assert first.startswith("InvalidArgumentError: ")
    assert "assertion failed: [too much]" in first
    assert first.endswith(f"(line {line} of {path}, in loss)")
    assert f'File "{path}", line {line}, in loss' in said.traceback
    assert "tf.debugging.assert_less(labels, 100.0, 'too much')" in said.traceback
