"""What is said of an exception of the user's program, and what recognises it in a second life."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

import pytest

import elasticdl
from elasticdl.errors import BadData, BadModel, StorageAway
from elasticdl.worker.raised import own_frames, program_error, why

PACKAGE = Path(elasticdl.__file__).parent
LIBRARY = Path(sysconfig.get_path("purelib")) / "tensorflow" / "execute.py"
SOURCE = """
def loss(labels):
    raise KeyError("weights")

def called(function):
    function(3)
"""


def program(path: Path) -> dict[str, Any]:
    """Return the functions of SOURCE as if they stood in the file at `path`."""
    functions: dict[str, Any] = {}
    exec(compile(SOURCE, str(path), "exec"), functions)
    return functions


def raised(path: Path, around: Path | None = None) -> Exception:
    """Return what `loss` in the file at `path` raises, called by a file at `around`."""
    try:
        if around is None:
            program(path)["loss"](3)
        else:
            program(around)["called"](program(path)["loss"])
    except KeyError as error:
        return error
    raise AssertionError("loss raises")


@pytest.mark.parametrize("folder", ["zoo", "elasticdl", "elasticdl/python/elasticdl/model_zoo", ".venv/zoo"])
def test_the_users_line_is_found_wherever_the_file_lies(tmp_path: Path, folder: str) -> None:
    path = tmp_path / folder / "model.py"
    error = program_error(raised(path))
    assert error.signature == f"KeyError at {path}:loss:3"
    assert error.traceback.splitlines()[0] == f"KeyError: 'weights' (line 3 of {path}, in loss)"
    assert f'File "{path}", line 3, in loss' in error.traceback


@pytest.mark.parametrize(
    "inner", [PACKAGE / "keras" / "loss.py", LIBRARY, "/usr/lib/python3/dist-packages/x.py"]
)
def test_lines_of_libraries_and_of_this_package_are_left_out(tmp_path: Path, inner: str | Path) -> None:
    path = tmp_path / "elasticdl" / "model.py"
    error = raised(Path(inner), around=path)
    assert program_error(error).signature == f"KeyError at {path}:called:6"
    assert str(inner) not in [frame.filename for frame in own_frames(error)]


def test_frames_of_compiled_libraries_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    error = program_error(raised(Path("pyarrow/error.pxi"), around=path))
    assert error.signature == f"KeyError at {path}:called:6"
    assert "pyarrow" not in error.traceback


def test_a_link_to_the_package_is_the_package(tmp_path: Path) -> None:
    (tmp_path / "installed").symlink_to(PACKAGE)
    error = raised(tmp_path / "installed" / "keras" / "loss.py")
    assert "loss" not in [frame.name for frame in own_frames(error)]


def test_storage_that_is_away_is_no_error_of_the_program() -> None:
    error = program_error(StorageAway("s3://bucket has not answered for 300 s"), "epoch 1")
    assert (error.kind, error.signature, error.chunk) == ("storage", "StorageAway", "epoch 1")
    assert error.traceback == "s3://bucket has not answered for 300 s"


def test_bad_input_is_recognised_by_what_caused_it(tmp_path: Path) -> None:
    path = tmp_path / "elasticdl" / "model.py"
    cause = raised(path)
    middle, outer = BadData("feed failed: KeyError"), BadModel("the records 3 to 4: feed failed: KeyError")
    middle.__cause__, outer.__cause__ = cause, middle
    error = program_error(outer)
    assert (error.kind, error.signature) == ("bad-input", f"KeyError at {path}:loss:3")
    assert error.traceback.splitlines()[0] == str(outer)
    assert f'File "{path}", line 3, in loss' in error.traceback


class InvalidArgumentError(Exception):
    """Stands for TensorFlow's, which has all that it knows in its text."""


def graph_error(path: Path, script: Path) -> Exception:
    return InvalidArgumentError(
        "Graph execution error:\n\nDetected at node assert_less/Assert defined at (most recent call last):\n"
        f'  File "{script}", line 9, in <module>\n\n  File "{PACKAGE}/keras/step.py", line 161, in _differentiate\n\n'
        f'  File "{path}", line 11, in loss\n\n  File "{LIBRARY}", line 1, in assert_less\n\n'
        "assertion failed: [too much]\n\t [[{{node assert_less/Assert}}]] [Op:__inference_compute_158]"
    )


def test_an_operation_that_fails_is_known_by_the_line_that_made_it(tmp_path: Path) -> None:
    path = tmp_path / "elasticdl" / "model.py"
    error = program_error(graph_error(path, tmp_path / "train.py"))
    assert error.signature == f"InvalidArgumentError at {path}:loss:11"
    assert error.traceback.splitlines()[0] == (
        f"InvalidArgumentError: assertion failed: [too much] (line 11 of {path}, in loss)"
    )
    assert "train.py" not in error.traceback


CONVERTED = (
    'in user code:\n\n    File "/zoo/model.py", line 21, in parse  *\n        return inner(values)\n'
    '    File "/zoo/model.py", line 7, in inner  *\n        return row["image"]\n\n    KeyError: \'image\'\n'
)
CALL = (
    "Exception encountered when calling Embedding.call().\n\n\x1b[1mValue passed to parameter 'indices' has DataType "
    "float32\x1b[0m\n\nArguments received by Embedding.call():\n  • inputs=tf.Tensor(shape=(None, 2), dtype=float32)"
)
EXAMPLE = (
    "A KerasTensor cannot be used as input to a TensorFlow function. You can only use it as input to a Keras layer. "
    "You are likely doing something like:\n\n```\nx = Input(...)\ntf_fn(x)  # Invalid.\n```\n\nWhat you should do "
    "instead is wrap `tf_fn` in a layer:\n\n```\nclass MyLayer(Layer):\n    pass\n```\n"
)
FUNCTION = (
    "Graph execution error:\n\nDetected at node EagerPyFunc defined at (most recent call last):\n<stack traces unavailable>\n"
    "Error in user-defined function passed to MapDataset:1 transformation with iterator: SingleElementIterator::Map: "
    "ValueError: bad\nTraceback (most recent call last):\n\n"
    f'  File "{LIBRARY}", line 267, in __call__\n    return func(device, token, args)\n\nValueError: bad\n\n'
    "\t [[{{node EagerPyFunc}}]] [Op:__inference_32]"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "RuntimeError"),
        ("the user's own", "RuntimeError: the user's own"),
        ("in two\n  lines", "RuntimeError: in two lines"),
        (CONVERTED, "KeyError: 'image'"),
        ("in user code:\n\n\n    TypeError: one too many\n", "TypeError: one too many"),
        (
            CALL,
            "RuntimeError: Value passed to parameter 'indices' has DataType float32 (in Embedding.call())",
        ),
        (
            f"Exception encountered when calling Own.call().\n\nEncountered: {CALL}\n\nArguments received by Own.call():",
            "RuntimeError: Value passed to parameter 'indices' has DataType float32 (in Embedding.call())",
        ),
        (
            EXAMPLE,
            "RuntimeError: A KerasTensor cannot be used as input to a TensorFlow function. You can only use it as input to a "
            "Keras layer.",
        ),
        (FUNCTION, "ValueError: bad"),
    ],
)
def test_the_sentence_that_explains(text: str, expected: str) -> None:
    assert why(RuntimeError(text)) == expected


def test_a_long_text_is_cut() -> None:
    assert len(why(RuntimeError("no " * 10_000))) < 1100


def test_the_functions_that_tensorflow_converted_are_the_users() -> None:
    frames = own_frames(RuntimeError(CONVERTED))
    assert [(frame.filename, frame.lineno, frame.name) for frame in frames] == [
        ("/zoo/model.py", 21, "parse"),
        ("/zoo/model.py", 7, "inner"),
    ]


def test_what_a_process_that_reads_has_raised_is_said_first(tmp_path: Path) -> None:
    path = tmp_path / "data.py"

    # As PyTorch raises it again, whose KeyError shows its text as it is.
    class Shown(str):
        __repr__ = str.__str__

    told = (
        "Caught KeyError in DataLoader worker process 1.\nOriginal Traceback (most recent call last):\n"
        f'  File "{LIBRARY}", line 375, in _worker_loop\n    data = fetch(index)\n           ^^^^^^^^^^^^\n'
        f'  File "{path}", line 4, in __getitem__\n    raise KeyError("record 77:\\nbroken")\nKeyError: \'record 77 is broken\'\n'
    )
    error = KeyError(Shown(told))
    assert why(error) == "KeyError: 'record 77 is broken' (in DataLoader worker process 1)"
    assert program_error(error).traceback.splitlines()[0].endswith(f"(line 4 of {path}, in __getitem__)")
