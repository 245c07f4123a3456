"""The small grammars of what pods are given: resources, volumes, environment variables, priorities.

Text in, values out, once, at the edge, like `grammar.py`; `cluster/kubernetes/manifests.py` writes pods from them. The
forms of names and quantities are those of Kubernetes' API, checked here so that a mistake is found before anything is created.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

_QUANTITY = re.compile(r"(?P<number>[0-9]+(\.[0-9]+)?)(?P<unit>m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?")
_UNITS = {
    "m": Decimal("0.001"),
    **{unit: Decimal(1000) ** (power + 1) for power, unit in enumerate("kMGTPE")},
    **{f"{unit}i": Decimal(1024) ** (power + 1) for power, unit in enumerate("KMGTPE")},
}
_SHORT = {"gpu": "nvidia.com/gpu", "disk": "ephemeral-storage", "ephemeral_storage": "ephemeral-storage"}
_OWN = ("cpu", "memory", "ephemeral-storage")
_VENDOR = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_OBJECT = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HOST_PATH_TYPES = (
    "DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice",
)  # fmt: skip
_SOURCES = ("claim_name", "host_path", "secret", "config_map", "empty_dir", "nfs")
_OPTIONS = ("mount_path", "sub_path", "read_only")


@dataclass(frozen=True, slots=True)
class Volume:
    """One volume of every pod of a job.

    Attributes:
        kind: `claim_name`, `host_path`, `secret`, `config_map`, `empty_dir` or `nfs`.
        source: the claim's, secret's or map's name, the host's path, `SERVER:/PATH`, or the empty directory's medium.
        mount_path: where it is mounted in the pod.
        sub_path: what of it is mounted; all if empty.
        read_only: the pod can't write to it.
        type: of a host path, as Kubernetes names it; empty: whatever is there.
    """

    kind: str
    source: str
    mount_path: str
    sub_path: str = ""
    read_only: bool = False
    type: str = ""


@dataclass(frozen=True, slots=True)
class Priority:
    """Which priority class a worker's pod gets.

    Attributes:
        share: share of the workers, the lowest indices first, that get `high`; None: all get the class `name`.
        name: name of a PriorityClass; empty: the cluster's default.
    """

    share: Decimal | None = None
    name: str = ""

    def __str__(self) -> str:
        return self.name if self.share is None else str(self.share)

    def of(self, index: int, workers: int) -> str:
        """Return the class of worker `index` of `workers`; the number of high ones is rounded up."""
        if self.share is None:
            return self.name
        return "high" if index < math.ceil(self.share * workers) else "low"


def priority(text: str) -> Priority:
    """Read the name of a PriorityClass, or the share of workers that get the class `high` while the others get `low`."""
    text = text.strip()
    if re.fullmatch(r"[0-9.]+", text):
        share = Decimal(text) if re.fullmatch(r"[0-9]*\.?[0-9]+", text) else Decimal(-1)
        if not 0 <= share <= 1:
            raise ValueError(f"{text!r} is no share between 0 and 1")
        return Priority(share=share)
    if text and not _OBJECT.fullmatch(text):
        raise ValueError(f"{text!r} is no name of a PriorityClass")
    return Priority(name=text)


def resources(text: str) -> dict[str, str]:
    """Read `cpu=500m,memory=2Gi,gpu=1,vendor.com/card=2`; `gpu` is short for `nvidia.com/gpu`."""
    result: dict[str, str] = {}
    for name, value in _pairs(text):
        full = _SHORT.get(name, name)
        if full not in _OWN and not _VENDOR.fullmatch(full):
            raise ValueError(
                f"{name!r} is no resource: cpu, memory, disk, gpu, or a vendor's vendor.com/card"
            )
        if full in result:
            raise ValueError(f"{name!r} is given twice")
        match = _QUANTITY.fullmatch(value)
        if match is None:
            raise ValueError(f"the amount of {name!r}, {value!r}, is not of the form 2, 500m or 2Gi")
        if "/" in full and (match["unit"] or "." in value):
            raise ValueError(f"{name!r} comes in whole pieces, received {value!r}")
        result[full] = value
    return result


def gpus(request: Mapping[str, str], limit: Mapping[str, str]) -> int:
    """Return how many of NVIDIA's GPUs a container with these resources has for itself."""
    return int(amount({**request, **limit}.get(_SHORT["gpu"], "0")))


def amount(quantity: str) -> Decimal:
    """Return what a quantity such as `2Gi` or `500m` amounts to, in units of the resource."""
    match = _QUANTITY.fullmatch(quantity)
    if match is None:
        raise ValueError(f"{quantity!r} is not of the form 2, 500m or 2Gi")
    return Decimal(match["number"]) * _UNITS.get(match["unit"] or "", Decimal(1))


def environment(text: str) -> dict[str, str]:
    """Read `NAME=value,NAME=value`.

    A comma that no `NAME=` follows belongs to the value (`A=1,2,B=3`), except at the end; so does one with a backslash before it.
    """
    return checked_environment(_pairs(text, r",(?=[^,=]*=|\s*$)"))


def checked_environment(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return variables by name. Raises ValueError for a name that is none, or is given twice."""
    result: dict[str, str] = {}
    for name, value in pairs:
        if not _VARIABLE.fullmatch(name):
            raise ValueError(f"{name!r} is no name of an environment variable")
        if name in result:
            raise ValueError(f"{name!r} is given twice")
        result[name] = value
    return result


def volumes(text: str) -> tuple[Volume, ...]:
    """Read `claim_name=c,mount_path=/data;host_path=/x,mount_path=/y,type=Directory` and the other kinds."""
    found = tuple(_volume(piece) for piece in text.split(";") if piece.strip())
    mounted: dict[str, Volume] = {}
    for volume in found:
        if volume.mount_path in mounted:
            raise ValueError(f"two volumes are mounted at {volume.mount_path!r}")
        mounted[volume.mount_path] = volume
    return found


def resources_text(values: Mapping[str, str]) -> str:
    """Write resources so that they are read back."""
    return ",".join(f"{name}={_escape(value)}" for name, value in values.items())


def volumes_text(found: tuple[Volume, ...]) -> str:
    """Write volumes so that `volumes` reads them back."""
    pieces = []
    for volume in found:
        parts = {volume.kind: volume.source, "mount_path": volume.mount_path}
        if volume.sub_path:
            parts["sub_path"] = volume.sub_path
        if volume.read_only:
            parts["read_only"] = "true"
        if volume.type:
            parts["type"] = volume.type
        pieces.append(resources_text(parts))
    return ";".join(pieces)


def _volume(piece: str) -> Volume:
    parts: dict[str, str] = {}
    for name, value in _pairs(piece):
        if name not in (*_SOURCES, *_OPTIONS, "type"):
            raise ValueError(
                f"{name!r} in {piece.strip()!r} is unknown; known are {', '.join((*_SOURCES, *_OPTIONS))} and type"
            )
        if name in parts:
            raise ValueError(f"{name!r} is given twice in {piece.strip()!r}")
        parts[name] = value
    kinds = [name for name in _SOURCES if name in parts]
    if len(kinds) != 1:
        raise ValueError(f"{piece.strip()!r} must name exactly one of {', '.join(_SOURCES)}")
    (kind,) = kinds
    source, mount = parts[kind], parts.get("mount_path", "")
    _check_source(kind, source, piece)
    if not mount.startswith("/") or mount == "/" or ":" in mount:
        raise ValueError(f"{piece.strip()!r} needs mount_path=/SOME/PATH")
    if "type" in parts and (kind != "host_path" or parts["type"] not in _HOST_PATH_TYPES):
        raise ValueError(
            f"type in {piece.strip()!r} is for host_path and one of {', '.join(_HOST_PATH_TYPES)}"
        )
    if parts.get("read_only", "true") not in ("true", "false"):
        raise ValueError(f"read_only in {piece.strip()!r} is true or false")
    if parts.get("sub_path", "").startswith("/") or ".." in parts.get("sub_path", "").split("/"):
        raise ValueError(f"sub_path in {piece.strip()!r} must stay inside the volume")
    return Volume(
        kind, source, mount.rstrip("/"), parts.get("sub_path", ""), parts.get("read_only") == "true", parts.get("type", "")
    )  # fmt: skip


def _check_source(kind: str, source: str, piece: str) -> None:
    match kind:
        case "host_path":
            good = source.startswith("/")
        case "nfs":
            server, colon, path = source.partition(":")
            good = bool(server and colon) and path.startswith("/")
        case "empty_dir":
            good = source in ("disk", "memory")
        case _:
            good = _OBJECT.fullmatch(source) is not None
    if not good:
        expected = {"host_path": "an absolute path", "nfs": "SERVER:/PATH", "empty_dir": "disk or memory"}
        raise ValueError(
            f"{kind}={source} in {piece.strip()!r}: expected {expected.get(kind, 'the name of an object')}"
        )


def _pairs(text: str, between: str = ",") -> Iterator[tuple[str, str]]:
    """Yield name and value of each `name=value`; the pattern `between` finds the commas between two."""
    for piece in re.split(rf"(?<!\\){between}", text):
        if not piece.strip():
            continue
        name, equals, value = piece.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"{piece.strip()!r} is not of the form name=value")
        yield name.strip(), value.strip().replace("\\,", ",")


def _escape(value: str) -> str:
    return value.replace(",", "\\,")
