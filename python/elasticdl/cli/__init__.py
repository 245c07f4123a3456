"""The command line: reads words, calls the library, turns errors into exit codes. No logic of its own.

Importing it loads nothing that Python has not loaded before, so that `main` handles Ctrl-C from the first moment on. Commands load
nothing but click: help must appear at once, and `train` starts a job's processes before anything else.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as type checkers know it, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

_INTERRUPTED = 130


def main() -> NoReturn:
    """Be the process `elasticdl`."""
    try:
        import contextlib

        _load()
        code = run()
    except KeyboardInterrupt:
        code = _INTERRUPTED
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)  # the threads that watched a job may wait in the network; they must not hold up its end


def _load() -> None:
    """Import what all commands need; Ctrl-C ends the process at once meanwhile.

    As an exception it would be shown with the place of the import, and be lost in a callback of the import system.
    """
    import importlib
    import signal

    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:  # not if it is ignored, as in the background of a script
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(_INTERRUPTED))
    importlib.import_module("elasticdl.cli.commands")
    from elasticdl.control.transport.coredumps import forbid_core_dumps

    forbid_core_dumps()
    signal.signal(signal.SIGINT, usual)


def run(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 bad input, 130 interrupted."""
    import errno

    import click

    from elasticdl.cli.commands import elasticdl
    from elasticdl.cli.flags import message
    from elasticdl.errors import BadInput, ElasticDLError, Interrupted

    try:
        code = elasticdl.main(
            args=None if argv is None else list(argv), prog_name="elasticdl", standalone_mode=False
        )
        sys.stdout.flush()
    except click.ClickException as error:
        return _error(message(error), 2)
    except BadInput as error:
        return _error(str(error), 2)
    except Interrupted as error:
        return _error(str(error), _INTERRUPTED)
    except (KeyboardInterrupt, click.Abort):
        return _INTERRUPTED
    except ElasticDLError as error:
        return _error(str(error), 1)
    except BrokenPipeError:
        _discard_output()  # its reader has gone
        return 1
    except Exception as error:
        if (
            isinstance(error, OSError)
            and error.errno in (errno.ENOSPC, errno.EDQUOT)
            and error.filename is None
        ):
            _discard_output()
            return _error(f"the output can't be written: {error.strerror}", 1)
        text = _of_the_cluster(error)
        if text is None:
            raise
        return _error(text, 1)
    return code if isinstance(code, int) else 0


def _discard_output() -> None:
    """Let what is still to be written go nowhere: Python would complain once more when it flushes at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _of_the_cluster(error: Exception) -> str | None:
    """Return what a person reads about an error of the cluster's API, None if it is another one.

    Those errors stand outside ElasticDL's exception tree, because a master must not take them for its job's end.
    """
    from elasticdl.cluster.kubernetes.api import ApiError, Unreachable

    if isinstance(error, Unreachable):
        return f"{error}; is the cluster up, and does KUBECONFIG name the right one?"
    if isinstance(error, ApiError):
        match error.status:
            case 401:
                return f"the cluster does not know you ({error}); sign in again, or look at KUBECONFIG"
            case 403:
                return f"the cluster does not allow it: {error}"
            case _:
                return f"the cluster refuses: {error}"
    return None


def _error(text: str, code: int) -> int:
    print(f"error: {text}", file=sys.stderr)
    return code
