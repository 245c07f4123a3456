"""A pod's view of its job: folders that are mounted into it, and addresses that it was given.

The counterpart of a local job's place; the settings come from a ConfigMap, token and certificate from a Secret, and what the
process writes for itself goes to an empty directory that ends with the pod.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, cast

from elasticdl.cluster.kubernetes import nodefolder
from elasticdl.control.transport import tls
from elasticdl.control.transport.keys import Key
from elasticdl.control.transport.tls import Identity
from elasticdl.errors import BadSetting
from elasticdl.files import reading
from elasticdl.files.unpacking import NoPlainFile, unpack
from elasticdl.spec.jobspec import JobSpec, from_text
from elasticdl.spec.zoo import zoo_name

FORMAT = 1
"""Format number of `job.json`."""

POD_ENVIRONMENT = "ELASTICDL_POD"
"""Environment variable that tells a pod's process where the job's settings are mounted."""
PROCESS_ENVIRONMENT = "ELASTICDL_PROCESS"
"""Environment variable with a process's own name, `worker-3-2`."""
ADDRESS_ENVIRONMENT = "ELASTICDL_POD_ADDRESS"
"""Environment variable with the pod's address, by which others reach it."""
NODE_ENVIRONMENT = "ELASTICDL_NODE"
"""Environment variable with the name of the pod's node, in pods of workers that share a directory of it."""
NODE_DIR_ENVIRONMENT = "ELASTICDL_NODE_DIR"
"""Environment variable with that directory."""

JOB_FOLDER = "/elasticdl/job"
SECRET_FOLDER = "/elasticdl/secret"
WORK_FOLDER = "/elasticdl/work"
ZOO_ARCHIVE = "zoo.tar.gz"
CONTROL_PORT, HEART_PORT = 50001, 50002
_UNPACKED = 256 << 20
"""Bytes of a model zoo that is sent with a job; packed it has much less."""
_HEADERS = 16 << 10
"""Bytes of a file's headers, and of what fills its last block and the archive's, at most."""


@dataclass(frozen=True, slots=True)
class PodPlace:
    """One pod's place.

    Attributes:
        name: the job's.
        namespace: the job's.
        uid: of the job's own object, by which everything of this very job is found.
        submitted_at: when it was submitted, in seconds since the Unix epoch.
        path: folder for what this process needs while it runs.
        address: of this pod.
        master: where the master is found, the same whatever node it runs on.
        own_policy: whether the job has a NetworkPolicy of its own.
        identity: the certificate of this pod's role.
        job_folder: where the settings are mounted.
        secret_folder: where the keys of this pod's role are mounted, and the token in the master's.
        node_folder: where workers of the same node reach this one's Unix socket; None: they reach it as others do.
    """

    name: str
    namespace: str
    uid: str
    submitted_at: float
    path: Path
    address: str
    master: str
    own_policy: bool
    identity: Identity
    job_folder: Path
    secret_folder: Path
    node_folder: Path | None = None

    @property
    def control_address(self) -> str:
        """Return where the master's control plane is found."""
        return f"tcp:{_host(self.master)}:{CONTROL_PORT}"

    @property
    def heart_address(self) -> str:
        """Return where the master takes heartbeats."""
        return f"tcp:{_host(self.master)}:{HEART_PORT}"

    def data_address(self, member: str) -> str:
        """Return where this pod's data plane listens: on any port of its own address, and for its node's pods at a Unix socket."""
        address = f"tcp:{_host(self.address)}:0"
        if self.node_folder is None:
            return address
        return f"{address}+unix:{nodefolder.socket_of(self.node_folder, member)}"

    def token(self) -> bytes:
        """Read the job's token. Raises BadSetting in a pod that is not the master's: its role has keys of its own."""
        return self._read("token")

    def key(self, key: Key) -> bytes:
        """Read a key of this pod's role. Raises BadSetting for that of another role."""
        return self._read(key_file(key))

    def _read(self, name: str) -> bytes:
        try:
            return (self.secret_folder / name).read_bytes()
        except OSError as error:
            raise BadSetting(f"the job's {name} can't be read: {error.filename}: {error.strerror}") from None

    def spec(self) -> JobSpec:
        """Read the job's settings; a model zoo that was sent with them is unpacked."""
        spec = from_text((self.job_folder / "spec.json").read_bytes())
        archive = self.job_folder / ZOO_ARCHIVE
        if not archive.exists():
            return spec
        folder = self.path / "zoo"
        if not folder.is_dir():
            draft = self.path / "zoo.draft"
            _unpack(archive, draft)
            draft.rename(folder)
        directories = [path for path in folder.iterdir() if path.is_dir()]
        if len(directories) != 1:
            raise BadSetting(
                f"{archive} is no packed model zoo: it has {len(directories)} directories, not one"
            )
        return replace(spec, model_zoo=str(directories[0]))

    def snapshots(self, spec: JobSpec) -> Path | None:
        """Return the folder of the job's checkpoints, on a volume; without one a job whose workers all die at once begins anew."""
        return Path(spec.checkpoint_dir) if spec.checkpoint_dir else None

    def last_words(self, process: str) -> str:
        """Return nothing: another pod's log comes with its end."""
        return ""


def key_file(key: Key) -> str:
    """Return the name of a key's file in the Secret; `KEY.key` would be that of a certificate."""
    return f"{key}.secret"


def job_text(
    name: str, namespace: str, uid: str, submitted_at: float, master: str, *, own_policy: bool
) -> str:
    """Write `job.json`, which `open_pod` reads."""
    from importlib.metadata import version  # not at the top: local jobs ask for none

    body = {
        "format": FORMAT,
        "version": version("elasticdl"),
        "name": name,
        "namespace": namespace,
        "uid": uid,
        "submitted_at": submitted_at,
        "master": master,
        "own_policy": own_policy,
    }
    return json.dumps(body)


def open_pod(folder: Path, secret: Path, work: Path, address: str, *, is_master: bool) -> PodPlace:
    """Open the place of this pod. Raises BadSetting if what is mounted is not a job's, or of another format or version."""
    from importlib.metadata import version

    try:
        body = reading.fields(reading.load_file(folder / "job.json"))
    except (OSError, ValueError) as error:
        raise BadSetting(f"{folder} is not what a job's pod is given: {error}") from None
    if body.get("format") != FORMAT:
        raise BadSetting(
            f"the job has format {body.get('format')!r}, the image's version of elasticdl reads format {FORMAT}; "
            "submit the job with the version that the image has"
        )
    if body.get("version") != version("elasticdl"):
        raise BadSetting(
            f"the job was submitted with elasticdl {body.get('version')}, and this image has {version('elasticdl')}: all processes of a "
            "job are of one version; build the image again, or submit with its version"
        )
    try:
        name, namespace, uid, master = (
            reading.text(reading.field(body, what)) for what in ("name", "namespace", "uid", "master")
        )
        submitted_at = reading.number(reading.field(body, "submitted_at"))
        own_policy = reading.flag(reading.field(body, "own_policy"))
    except ValueError as error:
        raise BadSetting(f"{folder} is not what a job's pod is given: {error} in job.json") from None
    return PodPlace(
        name=name,
        namespace=namespace,
        uid=uid,
        submitted_at=submitted_at,
        path=work,
        address=address,
        # The master listens at its own address; the others find it behind its Service.
        master=address if is_master else master,
        own_policy=own_policy,
        identity=tls.read_identity(secret),
        job_folder=folder,
        secret_folder=secret,
    )


def own_pod() -> PodPlace:
    """Open the place of the pod that this process lives in. Raises BadSetting."""
    try:
        process, address = os.environ[PROCESS_ENVIRONMENT], os.environ[ADDRESS_ENVIRONMENT]
    except KeyError as error:
        raise BadSetting(
            f"{error.args[0]} is not set: this process is started in a job's pod, not by hand"
        ) from None
    folder, node_dir = Path(os.environ[POD_ENVIRONMENT]), os.environ.get(NODE_DIR_ENVIRONMENT)
    place = open_pod(
        folder, Path(SECRET_FOLDER), Path(WORK_FOLDER), address, is_master=process.startswith("master")
    )
    if not node_dir:
        return place
    return replace(place, node_folder=nodefolder.enter(Path(node_dir), os.environ[NODE_ENVIRONMENT]))


def pack_zoo(directory: Path, limit: int) -> bytes:
    """Return a model zoo as an archive of one directory, the same for the same files.

    Raises BadSetting if it is larger than `limit` bytes.
    """
    buffer, unpacked = io.BytesIO(), 0
    name = zoo_name(directory)
    import gzip

    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as squeezed,
        tarfile.open(fileobj=squeezed, mode="w") as files,
    ):
        for path in sorted(directory.rglob("*")):
            hidden = any(
                part.startswith(".") or part == "__pycache__" for part in path.relative_to(directory).parts
            )
            if hidden or not path.is_file():
                continue
            try:
                content = path.read_bytes()  # of what a link leads to: pods have nothing else
            except OSError as error:
                raise BadSetting(f"--model_zoo: {path} can't be read: {error.strerror}") from None
            unpacked += len(content) + _HEADERS
            if unpacked > _UNPACKED:
                raise BadSetting(
                    f"--model_zoo: {str(directory)!r} has more than {_UNPACKED:,} bytes (up to {path.relative_to(directory)}); leave data "
                    "out of it"
                )
            entry = tarfile.TarInfo(f"{name}/{path.relative_to(directory)}")
            entry.size, entry.mode = len(content), path.stat().st_mode & 0o777
            files.addfile(entry, io.BytesIO(content))
            squeezed.flush()
            if buffer.tell() > limit:
                raise BadSetting(
                    f"--model_zoo: {str(directory)!r} has more than the {limit:,} bytes that fit into an object of the cluster when packed "
                    f"(up to {path.relative_to(directory)}); leave data out of it, or build an image with it (`elasticdl zoo build`) and "
                    "name it with the path that it has there, --model_zoo=/model_zoo"
                )
    return buffer.getvalue()


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack what `pack_zoo` packed: plain files below `folder`. Raises BadSetting for anything else."""
    import gzip

    try:
        with (
            gzip.open(archive) as packed,
            tarfile.open(fileobj=cast(BinaryIO, _Bounded(cast(BinaryIO, packed))), mode="r|") as files,
        ):
            unpack(files, folder)
    except NoPlainFile as error:
        raise BadSetting(f"{archive}: {error.name!r} is no file of a model zoo") from None
    except _TooMuch:
        raise BadSetting(f"{archive}: it has more than {_UNPACKED:,} bytes, as no model zoo has") from None
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, ValueError) as error:
        raise BadSetting(f"{archive} is no packed model zoo: {error}") from None


class _TooMuch(Exception):
    """An archive has more in it than any model zoo."""


class _Bounded:
    """The content of an archive; a few kilobytes can be made of which gigabytes come out."""

    def __init__(self, packed: BinaryIO) -> None:
        self._packed = packed
        self._left = _UNPACKED

    def read(self, size: int) -> bytes:
        """Return the next bytes, `size` of them if there are as many. Raises _TooMuch."""
        content = self._packed.read(size)
        self._left -= len(content)
        if self._left < 0:
            raise _TooMuch
        return content


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address
