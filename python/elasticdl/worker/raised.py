"""What the user's program raised: the lines of the user's files on the way there, the sentence that says why, and a signature.

It imports no framework, but knows how TensorFlow and Keras write their errors: they put the reason behind frames, arguments, example
code and terminal colours, and an operation that fails while a compiled function runs names its place only in the text. PyTorch puts it
behind the traceback of the process that read a batch.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
import sys
import sysconfig
import textwrap
import traceback
from pathlib import Path

from elasticdl.errors import BadInput, StorageAway, Unwritable
from elasticdl.worker.events import ProgramError

_log = logging.getLogger(__name__)

PROGRAM_ERRORS = (Exception, SystemExit, KeyboardInterrupt)
"""What the user's program may raise, `sys.exit()` included: a worker that ended by it would look like one that was asked to."""

_PACKAGE = Path(__file__).resolve().parents[1]
_PYTHON = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")]
_INSTALLED = {"site-packages", "dist-packages"}
_GENERATED = "__autograph_generated_file"
"""Begins the names of the files to which TensorFlow converts functions; its message has the frames of the functions themselves."""

_COMPILED = {".pxi", ".pyx"}
"""Suffixes of Cython: frames of compiled libraries have paths such as `pyarrow/error.pxi`, which lead nowhere."""

_TRACEBACK_LIMIT = 64 * 1024
_SENTENCE_LIMIT = 1000

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_FRAME = re.compile(r'^\s*File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<name>\S+)', re.MULTILINE)
_CONVERTED = re.compile(r"\A\s*in user code:\n")
_IN_PROCESS = re.compile(
    r"\ACaught \w+ in (?P<process>.+)\.\nOriginal Traceback \(most recent call last\):\n"
)
_LAYER_CALL = re.compile(r"Exception encountered when calling (?P<what>.+?)\.?\n\n")
_LAYER_ARGUMENTS = re.compile(r"\n\s*(Call arguments|Arguments) received by ")
_QUOTED = "Traceback (most recent call last):"
_OF_DATASET = re.compile(r"Error in user-defined function passed to \S+ transformation with iterator: \S+: ")


def remove_generated() -> None:
    """Remove the files of this process to which TensorFlow has converted functions, and their bytecode.

    The first of these TensorFlow removes itself where Python ends as usual.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith(_GENERATED):
            for path in filter(
                None, (getattr(module, "__file__", None), getattr(module, "__cached__", None))
            ):
                with contextlib.suppress(OSError):
                    Path(path).unlink()


def program_error(error: BaseException, chunk: str = "") -> ProgramError:
    """Describe an exception of the user's program; at the level debug it is logged in full.

    Its text begins with a line that says what happened; then comes what the user's own code did, or everything if nothing of that is known.
    The signature, type and last frame in the user's code, recognises the exception in a second life.
    """
    if isinstance(error, Unwritable):
        return ProgramError("unwritable", error.what, chunk, str(error))
    if isinstance(error, StorageAway):
        return ProgramError("storage", type(error).__name__, chunk, str(error))
    _log.debug("the program has failed", exc_info=error)
    cause = error
    while isinstance(cause, BadInput) and cause.__cause__ is not None:
        cause = cause.__cause__
    own = own_frames(cause)
    last = (own or list(traceback.extract_tb(cause.__traceback__)))[-1:]
    where = f"{last[0].filename}:{last[0].name}:{last[0].lineno}" if last else ""
    signature = f"{type(cause).__name__} at {where}"
    if isinstance(error, BadInput):
        lines = [str(error), *traceback.format_list(own)]
        return ProgramError("bad-input", signature, chunk, _limited(lines))
    place = f" (line {own[-1].lineno} of {own[-1].filename}, in {own[-1].name})" if own else ""
    way = traceback.format_list(own) or traceback.format_exception(error)
    return ProgramError("program", signature, chunk, _limited([why(error) + place, *way]))


def _limited(lines: list[str]) -> str:
    """Join lines; of a long text the first line and the end are kept."""
    head, rest = lines[0], "".join(lines[1:]).rstrip()
    return f"{head}\n{rest[-_TRACEBACK_LIMIT:]}".strip()


def own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames of the user's code: those of the traceback, then those that only the error's text names."""
    told = [
        traceback.FrameSummary(found["file"], int(found["line"]), found["name"])
        for found in _FRAME.finditer(str(error))
    ]
    if any(_is_package(frame) for frame in told):
        # These begin where the process began; what called this package is not what it called.
        told = list(itertools.dropwhile(lambda frame: not _is_package(frame), told))
    return [frame for frame in (*traceback.extract_tb(error.__traceback__), *told) if _is_own(frame)]


def _is_package(frame: traceback.FrameSummary) -> bool:
    return Path(frame.filename).resolve().is_relative_to(_PACKAGE)


def _is_own(frame: traceback.FrameSummary) -> bool:
    path = Path(frame.filename)
    if frame.filename.startswith("<") or path.name.startswith(_GENERATED) or _is_package(frame):
        return False
    if path.suffix in _COMPILED and not path.is_absolute():
        return False
    return not _INSTALLED.intersection(path.parts) and not any(
        path.resolve().is_relative_to(folder) for folder in _PYTHON
    )


def why(error: BaseException) -> str:
    """Say in one line what was raised and why: `KeyError: 'image'`, without frames, arguments, example code and colours."""
    text = _COLOUR.sub("", str(error))
    if _CONVERTED.match(text):
        # Its last part names the type that the user's code raised; that of `error` may be one of the conversion.
        return explanation(_after_frames(_CONVERTED.sub("", text)))
    if found := _IN_PROCESS.match(text):
        return f"{explanation(_last_raised(text[found.end() :]))} (in {found['process']})"
    said = explanation(text)
    if said and raised_by_python(error):
        return said  # it begins with the type of what was raised
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def raised_by_python(error: BaseException) -> bool:
    """Tell whether an operation has failed because a Python function that it called (`tf.py_function`) raised an exception."""
    text = str(error)
    return "Graph execution error" in text and _QUOTED in text


def explanation(text: str) -> str:
    """Return in one line the part of an error's text that says why; at most 1,000 characters."""
    text = _COLOUR.sub("", text)
    if "Graph execution error" in text:
        text = _failed_operation(text)
    text = text.partition(" for '{{node ")[0]  # then come the operation's attributes and inputs
    if calls := list(_LAYER_CALL.finditer(text)):
        innermost = calls[-1]
        text = _LAYER_ARGUMENTS.split(text[innermost.end() :])[0].strip()
        text += f" (in {innermost['what']})"
    prose, fence, _ = text.partition("```")
    if fence:  # the sentence that announces the example goes with it
        text = re.sub(r"(?<=[.!?])\s+[^.!?]*:\s*\Z", "", prose)
    return textwrap.shorten(_OF_DATASET.sub("", text), _SENTENCE_LIMIT, placeholder=" …")


def _after_frames(text: str) -> str:
    """Return what stands behind the last frame and its line of code."""
    ends = [found.end() for found in _FRAME.finditer(text)]
    return text[ends[-1] :].partition("\n\n")[2] if ends else text


def _last_raised(text: str) -> str:
    """Return what a traceback ends with: the type and the message."""
    ends = [found.end() for found in _FRAME.finditer(text)]
    behind = text[ends[-1] :].splitlines() if ends else text.splitlines()
    return "\n".join(itertools.dropwhile(lambda line: not line or line[0].isspace(), behind))


def _failed_operation(text: str) -> str:
    """Return what TensorFlow says about a failed operation, without its own nodes and the frames that built them."""
    # A Python function that an operation called is quoted with its traceback behind its message.
    text = text.partition(_QUOTED)[0]
    noise = ("Graph execution error", "Detected at node", "<stack traces", "[[", 'File "')
    lines = (line.strip() for line in text.splitlines())
    return " ".join(line for line in lines if line and not line.startswith(noise))
