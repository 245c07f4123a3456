"""A local job's place: the folder where its settings, token, journal, logs and summary lie, and the one for its sockets.

Everything that belongs to a job is found from here, by its processes (through `ELASTICDL_JOB`) and by commands (through its
name). It starts nothing and knows no formats but its own. Sockets lie apart because a Unix socket's path ends at 107 bytes, and
because folders for such things are emptied by the system when it starts.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from elasticdl.control.transport.keys import Key, derive
from elasticdl.control.transport.tls import Identity
from elasticdl.errors import BadSetting
from elasticdl.files import reading
from elasticdl.files.drafts import replace_file
from elasticdl.files.ownership import check_own, make_own
from elasticdl.files.permissions import PRIVATE, PRIVATE_FOLDER, private
from elasticdl.files.sockets import MEMBER_LENGTH, base_for_sockets
from elasticdl.spec.jobspec import JobSpec, from_text

FORMAT = 1
"""Format number of `place.json`."""

ENVIRONMENT = "ELASTICDL_JOB"
"""Environment variable that tells a process of a job the job's folder."""
PROCESS_ENVIRONMENT = "ELASTICDL_PROCESS"
"""Environment variable with a process's own name, `worker-3-2`."""

_TOKEN_BYTES = 32
_RESERVED_BYTES = 65_536
_SOCKETS_PREFIX = "edl-"
_OTHER_STATE = "set XDG_STATE_HOME to a directory of yours, where jobs are kept"


class Place(Protocol):
    """What a process knows of the job that it belongs to, wherever it runs."""

    @property
    def name(self) -> str:
        """Return the job's unique name."""

    @property
    def path(self) -> Path:
        """Return the folder for what the process needs while the job runs."""

    @property
    def submitted_at(self) -> float:
        """Return when the job was submitted, in seconds since the Unix epoch."""

    @property
    def identity(self) -> Identity | None:
        """Return the certificate to show to other machines; None: the job stays on this one."""

    @property
    def control_address(self) -> str:
        """Return where the master's control plane listens; the same after a restart of the master."""

    @property
    def heart_address(self) -> str:
        """Return where the master takes heartbeats."""

    def data_address(self, member: str) -> str:
        """Return where a member's data plane listens; `member` is its id of 32 hexadecimal digits."""

    def token(self) -> bytes:
        """Read the job's token, which only the master needs. Raises BadSetting where it is not."""

    def key(self, key: Key) -> bytes:
        """Read a key of this process's role. Raises BadSetting where it is not."""

    def spec(self) -> JobSpec:
        """Read the job's settings."""

    def snapshots(self, spec: JobSpec) -> Path | None:
        """Return the folder of the job's snapshots, which every worker can read; None if there is no such place."""

    def last_words(self, process: str) -> str:
        """Return the end of a process's log, where this process can see it."""


@dataclass(frozen=True, slots=True)
class JobPlace:
    """One job's folders and addresses.

    Attributes:
        path: the job's folder; its name, `NAME-N`, is unique among the user's jobs.
        sockets: folder of its Unix sockets; gone when the job has ended.
        submitted_at: when the job was submitted, in seconds since the Unix epoch.
        directory: working directory of its processes.
    """

    path: Path
    sockets: Path
    submitted_at: float
    directory: Path

    @property
    def name(self) -> str:
        """Return the unique name, `NAME-N`."""
        return self.path.name

    @property
    def journal(self) -> Path:
        """Return the directory of the master's journal."""
        return self.path / "journal"

    @property
    def logs(self) -> Path:
        """Return the directory of the processes' logs."""
        return self.path / "logs"

    @property
    def summary_path(self) -> Path:
        """Return where the summary lies once the job has ended."""
        return self.path / "summary.json"

    @property
    def reserve_path(self) -> Path:
        """Return a file that keeps room for the summary while the job runs: the disk may be full when it ends."""
        return self.path / "reserve"

    @property
    def page_path(self) -> Path:
        """Return where address and tokens of the page lie while the job runs."""
        return self.path / "page.json"

    @property
    def identity(self) -> Identity | None:
        """Return nothing: a local job's processes reach each other by sockets that only this user can open."""
        return None

    @property
    def control_address(self) -> str:
        """Return where the master's control plane listens; the same after a restart of the master."""
        return f"unix:{self.sockets}/control"

    @property
    def heart_address(self) -> str:
        """Return where the master takes heartbeats."""
        return f"unix:{self.sockets}/heart"

    @property
    def launcher_address(self) -> str:
        """Return where the launcher listens for the master."""
        return f"unix:{self.sockets}/launcher"

    def data_address(self, member: str) -> str:
        """Return where a member's data plane listens; `member` is its id of 32 hexadecimal digits."""
        return f"unix:{self.sockets}/d{member[:MEMBER_LENGTH]}"

    def log_path(self, process: str) -> Path:
        """Return the log of one life of one process, such as `worker-3-2`."""
        return self.logs / f"{process}.log"

    def snapshots(self, spec: JobSpec) -> Path:
        """Return the folder of the job's checkpoints, which outlive it, or of its snapshots."""
        return Path(spec.checkpoint_dir) if spec.checkpoint_dir else self.path / "snapshots"

    def last_words(self, process: str) -> str:
        """Return the end of a process's log."""
        try:
            with open(self.log_path(process), "rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
                return "\n".join(file.read().decode(errors="replace").splitlines()[-20:])
        except OSError:
            return ""

    def token(self) -> bytes:
        """Read the job's token. Raises BadSetting once the job has ended."""
        try:
            return (self.path / "token").read_bytes()
        except FileNotFoundError:
            raise BadSetting(
                f"the job {self.name} has ended; `elasticdl logs {self.name}` shows how"
            ) from None

    def has_token(self) -> bool:
        """Tell whether the token is there still: the launcher removes it when the job ends."""
        return (self.path / "token").exists()

    def key(self, key: Key) -> bytes:
        """Derive a key from the job's token. Raises BadSetting once the job has ended."""
        return derive(self.token(), key)

    def spec(self) -> JobSpec:
        """Read the job's settings."""
        return from_text((self.path / "spec.json").read_bytes())

    def summary(self) -> dict[str, Any] | None:
        """Read the job's summary, or None if there is none (yet) that can be read."""
        try:
            return reading.fields(reading.load_file(self.summary_path))
        except (FileNotFoundError, ValueError):
            return None

    def hold(self) -> int:
        """Take the lock that says "this job runs" and return its descriptor.

        It is held as long as any process has the descriptor open, so it can't outlive a killed launcher.
        """
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return descriptor

    def running(self) -> bool:
        """Tell whether the job's launcher lives."""
        try:
            descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def listening(self) -> bool:
        """Tell whether the job's launcher has begun its work."""
        return Path(self.launcher_address.removeprefix("unix:")).exists()

    def close(self) -> None:
        """Remove what only a running job needs: sockets, token, room for its summary, and where its page is. Logs and summary stay."""
        (self.path / "token").unlink(missing_ok=True)
        self.reserve_path.unlink(missing_ok=True)
        self.page_path.unlink(missing_ok=True)
        if self.sockets.name.startswith(_SOCKETS_PREFIX):
            shutil.rmtree(self.sockets, ignore_errors=True)

    def remove(self) -> None:
        """Remove everything."""
        self.close()
        shutil.rmtree(self.path)


def jobs_directory() -> Path:
    """Return the directory of this user's jobs."""
    state = os.environ.get("XDG_STATE_HOME", "")
    return (
        (Path(state) if Path(state).is_absolute() else Path.home() / ".local" / "state")
        / "elasticdl"
        / "jobs"
    )


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Hold up this user's other submissions, so that of two jobs one sees the other. Raises BadSetting if there is no room for jobs."""
    root = jobs_directory()
    try:
        make_own(root, _OTHER_STATE)
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _no_room(root, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def create(spec: JobSpec, submitted_at: float | None = None) -> JobPlace:
    """Make the place of a new job. Raises BadSetting if there is no room for it.

    Args:
        spec: the job.
        submitted_at: when it was submitted, in seconds since the Unix epoch; now if not given.
    """
    root = jobs_directory()
    try:
        make_own(root, _OTHER_STATE)
        path = _unique(root, spec.job_name)
        try:
            return _fill(path, spec, time.time() if submitted_at is None else submitted_at)
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
    except OSError as error:
        raise _no_room(root, error) from error


def _no_room(root: Path, error: OSError) -> BadSetting:
    return BadSetting(
        f"the job's folder can't be made in {root}: {error.strerror}; set XDG_STATE_HOME to a directory with room"
    )


def open_place(path: Path) -> JobPlace:
    """Open the place that lies at `path`. Raises BadSetting if it is none, or of another format."""
    try:
        body = reading.fields(reading.load_file(path / "place.json"))
    except (OSError, ValueError):
        raise BadSetting(f"{path} is not the folder of a job") from None
    if body.get("format") != FORMAT:
        raise BadSetting(
            f"the job {path.name} has format {body.get('format')!r}, this version of elasticdl reads format {FORMAT}"
        )
    try:
        sockets, directory = (reading.path(reading.field(body, name)) for name in ("sockets", "directory"))
        return JobPlace(path, sockets, reading.number(reading.field(body, "submitted_at")), directory)
    except ValueError as error:
        raise BadSetting(f"{path} is not the folder of a job: {error} in place.json") from None


def own_place() -> JobPlace:
    """Open the place of the job that this process belongs to."""
    path = os.environ.get(ENVIRONMENT)
    if not path:
        raise BadSetting(
            f"{ENVIRONMENT} is not set: this process is started by a job's launcher, not by hand"
        )
    return open_place(Path(path))


def places() -> list[JobPlace]:
    """Return all jobs of this user, the oldest first. Raises BadSetting if others may have put them there."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        check_own(jobs_directory(), _OTHER_STATE)
        for path in jobs_directory().iterdir():
            with contextlib.suppress(BadSetting):
                found.append(open_place(path))
    return sorted(found, key=lambda place: place.submitted_at)


def find(name: str) -> JobPlace:
    """Find a job by its unique name, or the newest by its `job_name`, running ones first.

    Raises BadSetting, naming the jobs that there are.
    """
    candidates = [place for place in places() if name in (place.name, place.name.rpartition("-")[0])]
    exact = [place for place in candidates if place.name == name]
    running = [place for place in candidates if place.running()]
    for choice in (exact, running, candidates):
        if choice:
            return choice[-1]
    from elasticdl.spec.nearest import nearest  # which no process of a job needs

    names = [place.name for place in places()]
    known = f"there are {', '.join(names[-5:])}" if names else "there are no jobs"
    raise BadSetting(
        f"no job is named {name!r}{nearest(name, names)}; {known} (`elasticdl list` shows all); one on Kubernetes is found with --namespace"
    )


def prune(before: Callable[[JobPlace], object] = lambda place: None) -> Iterator[JobPlace]:
    """Remove the places of all jobs that have ended, and yield each; `before` is called with each while it is there."""
    for place in places():
        if not place.running():
            before(place)
            place.remove()
            yield place


def _unique(root: Path, name: str) -> Path:
    number = 1 + max(
        (int(path.name.rpartition("-")[2]) for path in root.glob(f"{name}-*") if _numbered(path, name)),
        default=0,
    )
    while True:
        path = root / f"{name}-{number}"
        try:
            path.mkdir(mode=PRIVATE_FOLDER)
        except FileExistsError:
            number += 1
        else:
            return path


def _numbered(path: Path, name: str) -> bool:
    front, _, number = path.name.rpartition("-")
    return front == name and number.isascii() and number.isdigit()


def _fill(path: Path, spec: JobSpec, submitted_at: float) -> JobPlace:
    sockets = _sockets()
    try:
        place = JobPlace(path, sockets, submitted_at, Path.cwd())
        place.journal.mkdir(mode=PRIVATE_FOLDER)
        place.logs.mkdir(mode=PRIVATE_FOLDER)
        if not spec.checkpoint_dir:
            place.snapshots(spec).mkdir(mode=PRIVATE_FOLDER)
        with open(place.reserve_path, "xb", opener=private) as file:
            os.posix_fallocate(file.fileno(), 0, _RESERVED_BYTES)
        with open(path / "token", "xb", opener=private) as file:
            file.write(secrets.token_bytes(_TOKEN_BYTES))
        with open(path / "spec.json", "x", encoding="utf-8", opener=private) as settings:
            settings.write(json.dumps(spec.to_json(), indent=1))
        body = {
            "format": FORMAT,
            "sockets": str(sockets),
            "submitted_at": place.submitted_at,
            "directory": str(place.directory),
        }
        # Last, and at once: a place without this file is none yet.
        replace_file(path / "place.json", json.dumps(body), PRIVATE)
    except BaseException:
        shutil.rmtree(sockets, ignore_errors=True)
        raise
    return place


def _sockets() -> Path:
    """Make a 0700 folder whose sockets' paths are short enough. Raises BadSetting if others could put another in its place."""
    longest = len("/" + _SOCKETS_PREFIX + "12345678" + "/d") + MEMBER_LENGTH
    base = base_for_sockets(longest)
    variable = "XDG_RUNTIME_DIR" if str(base) == os.environ.get("XDG_RUNTIME_DIR", "") else "TMPDIR"
    check_own(base, f"set {variable} to a directory of yours, where the job's sockets are made")
    return Path(tempfile.mkdtemp(prefix=_SOCKETS_PREFIX, dir=base))
