"""How the processes of a local job begin: their command, environment and log, and the spare process that waits to be a worker.

It starts them and remembers what they are; when one is started, and what its end means, is decided elsewhere. The spare is a process like
any other, started and not forked: a framework has threads once it is imported, and they don't survive a fork.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from elasticdl.cluster import allocator
from elasticdl.cluster.cluster import ProcessEnded, ProcessName, Role
from elasticdl.cluster.local import exiting, gpus, inherited
from elasticdl.cluster.local import parentdeath as parentdeath
from elasticdl.cluster.local import place as places
from elasticdl.cluster.local.place import JobPlace


@dataclass(frozen=True, slots=True)
class Program:
    """The user's program, which workers run instead of an entry point of ours.

    Attributes:
        argv: its command; the first word is looked for in PATH.
        directory: where it runs.
        environment: variables that it gets besides.
    """

    argv: Sequence[str]
    directory: str
    environment: Mapping[str, str]


@dataclass(slots=True)
class Child:
    """One process.

    Attributes:
        name: None as long as it is the spare.
        process: its handle, None if it could not be started.
        started: when it was, or got its name, by the monotonic clock.
        ends: by which it is seen when it is killed.
        reaped: its pid may belong to somebody else by now.
        ended: its end, once it has been told to the master.
    """

    name: ProcessName | None
    process: subprocess.Popen[bytes] | None
    started: float = field(default_factory=time.monotonic)
    ends: exiting.Ends = field(default_factory=lambda: exiting.Ends(0))
    reaped: bool = False
    ended: ProcessEnded | None = None

    def send(self, number: int) -> None:
        """Send a signal, unless it has been reaped; the caller holds the lock that reaping takes."""
        if self.process is not None and not self.reaped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    def kill_group(self) -> None:
        """Kill it, and all that it has started in its session; it has not been reaped."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)


class Starter:
    """Starts the processes of one job."""

    def __init__(
        self,
        place: JobPlace,
        argv: Mapping[Role, Sequence[str]],
        program: Program | None = None,
        spare: Sequence[str] = (),
    ) -> None:
        """Prepare.

        Args:
            place: the job's place.
            argv: command of each role.
            program: what workers run, if that is the user's own.
            spare: command of a spare process, empty if the job has none.
        """
        self.has_spares = bool(spare)
        self._place = place
        self._argv = argv
        self._program = program
        self._spare_argv = spare

    def start(self, name: ProcessName, parent_pipe: int) -> Child:
        """Start a process. `parent_pipe`: what tells it that its launcher has died. Raises OSError."""
        program = self._program if name.role is Role.WORKER else None
        environment = {
            **allocator.environment(name.role),
            **os.environ,
            **({} if program is None else program.environment),
        }
        environment |= self._own_environment(name, environment)
        log = _open_log(self._place.log_path(str(name)))
        try:
            argv = self._argv[name.role] if program is None else program.argv
            directory = self._place.directory if program is None else Path(program.directory)
            return self._child(name, argv, environment, directory, subprocess.DEVNULL, log, parent_pipe)
        finally:
            os.close(log)

    def start_spare(self, parent_pipe: int) -> Child:
        """Start a process that prepares to be a worker and waits for a name on its standard input. Raises OSError."""
        log = _open_log(self._spare_log)
        try:
            environment = {**allocator.environment(Role.WORKER), **os.environ}
            directory = self._place.directory
            return self._child(
                None, self._spare_argv, environment, directory, subprocess.PIPE, log, parent_pipe
            )
        finally:
            os.close(log)

    def name_spare(self, spare: Child, name: ProcessName) -> bool:
        """Let the spare be this worker from now on; return whether it can be. The caller holds the lock that reaping takes."""
        process = spare.process
        assert process is not None
        assert process.stdin is not None
        if spare.reaped or _is_stopped(process.pid):
            return False
        told = {"name": str(name), "environment": self._own_environment(name, os.environ)}
        try:
            # What it has said so far is the beginning of the worker's log, as if it had been that from the start.
            self._spare_log.rename(self._place.log_path(str(name)))
            process.stdin.write(json.dumps(told).encode() + b"\n")  # shorter than a pipe's buffer
            process.stdin.close()
        except OSError:  # it has just ended
            return False
        spare.name, spare.started = name, time.monotonic()
        return True

    def keep_log_of_spare(self, number: int) -> None:
        """Keep what a spare that has ended by itself has said, as `spare-NUMBER.log`."""
        with contextlib.suppress(OSError):
            self._spare_log.rename(self._place.log_path(f"spare-{number}"))

    def remove_log_of_spare(self) -> None:
        """Remove what a spare that was never needed has said."""
        with contextlib.suppress(OSError):
            self._spare_log.unlink()

    @property
    def _spare_log(self) -> Path:
        """Not `.log`: it is the log of no process that people know, and gets another name."""
        return self._place.logs / "spare"

    def _own_environment(self, name: ProcessName, environment: Mapping[str, str]) -> dict[str, str]:
        """Return what only this process has in its environment."""
        own = {places.PROCESS_ENVIRONMENT: str(name)}
        device = gpus.visible_to(name.index, environment, gpus.count()) if name.role is Role.WORKER else None
        return own if device is None else {**own, gpus.VARIABLE: device}

    def _child(
        self,
        name: ProcessName | None,
        argv: Sequence[str],
        environment: dict[str, str],
        directory: Path,
        stdin: int,
        log: int,
        parent_pipe: int,
    ) -> Child:
        # The next master binds what the last one had open: it has to wait for all of its end.
        ends = exiting.Ends(0) if name is not None and name.role is Role.MASTER else exiting.Ends()
        environment |= ends.environment
        environment[places.ENVIRONMENT] = str(self._place.path)
        environment[parentdeath.ENVIRONMENT] = inherited.written(parent_pipe)
        environment["PYTHONUNBUFFERED"] = "1"  # a killed process's last words must be in its log
        try:
            process = subprocess.Popen(
                argv,
                bufsize=0,
                stdin=stdin,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=directory,
                pass_fds=(parent_pipe, *ends.theirs),
                start_new_session=True,
            )
        except BaseException:
            ends.close()
            raise
        ends.started()
        return Child(name, process, ends=ends)


def _is_stopped(pid: int) -> bool:
    """Tell whether a child of this process was stopped by a signal: it would hear of its name when somebody continues it."""
    state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2][:1]
    return state in b"Tt"


def _open_log(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
