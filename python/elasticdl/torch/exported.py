"""Reading what `torch.export.save` wrote as data: its weights, and what its program takes and gives. Nothing of the file is run.

`torch.export.load` runs what is in a file: it unpickles objects and inputs, and evaluates texts of the program as Python. Here the archive
(https://docs.pytorch.org/docs/main/user_guide/torch_compiler/export/pt2_archive.html) is opened as the zip file that it is; of its parts
only JSON and the bytes of tensors are read, and the weights go into the model that the model file makes.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from elasticdl.errors import BadModel
from elasticdl.files import reading

ARCHIVE_VERSION, SCHEMA_MAJOR = b"0", 8
"""What PyTorch 2.11 to 2.15 write: the version of the archive, and that of the program's JSON."""
TYPES = {
    1: torch.uint8, 2: torch.int8, 3: torch.int16, 4: torch.int32, 5: torch.int64, 6: torch.float16, 7: torch.float32, 8: torch.float64,
    9: torch.complex32, 10: torch.complex64, 11: torch.complex128, 12: torch.bool, 13: torch.bfloat16, 28: torch.uint16,
    29: torch.float8_e4m3fn, 30: torch.float8_e5m2, 31: torch.float8_e4m3fnuz, 32: torch.float8_e5m2fnuz, 34: torch.uint32,
    35: torch.uint64,
}  # fmt: skip
"""The numbers of types in the archive (`ScalarType` of torch/_export/serde/schema.py)."""
_FORMAT, _VERSION, _PROGRAM = "archive_format", "archive_version", "models/model.json"
_WEIGHTS, _CONFIG = "data/weights/", "data/weights/model_weights_config.json"
_EARLIER = ("serialized_exported_program.json", "data/weights/model.pt")
"""Each is in archives of some earlier PyTorch, whose weights are pickled."""
_REMEDY = "export it again with a PyTorch that this elasticdl uses (2.11 to 2.15), or give a state_dict"


@dataclass(frozen=True, slots=True)
class Described:
    """A tensor's type and shape; a size that a program leaves open is None."""

    kind: torch.dtype
    sizes: tuple[int | None, ...]

    def fits(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor is of this type and shape, for any number of examples."""
        return (
            tensor.dtype is self.kind
            and tensor.dim() == len(self.sizes)
            and all(
                size in (None, found) for size, found in zip(self.sizes[1:], tensor.shape[1:], strict=True)
            )
        )

    def __str__(self) -> str:
        sizes = ["*" if place == 0 or size is None else str(size) for place, size in enumerate(self.sizes)]
        return f"{str(self.kind).removeprefix('torch.')} [{', '.join(sizes)}]"


@dataclass(frozen=True, slots=True)
class Exported:
    """What is read of an archive.

    Attributes:
        weights: the state_dict.
        inputs: the tensors that the program takes.
        outputs: the tensors that it gives.
    """

    weights: Mapping[str, torch.Tensor]
    inputs: Sequence[Described]
    outputs: Sequence[Described]


def read_exported(path: Path) -> Exported | None:
    """Read an archive of `torch.export.save`, None if the file is none, whatever its name says. Raises BadModel or OSError."""
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error):
        return None
    with archive:
        try:
            return _read(_Records(archive), path)
        except (
            zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, LookupError, TypeError, ValueError, AttributeError,
            ArithmeticError, RuntimeError,
        ) as error:  # fmt: skip  # what parts that are not as they should be make of their readers
            why = (
                f"there is no {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
            )
            raise BadModel(
                f"--trained_model: {path} is damaged, or was not written by --output_format=exported ({why}); name the file that a job "
                "wrote"
            ) from None


def fit(wanted: Sequence[Described], tensors: Sequence[Any]) -> bool:
    """Tell whether tensors are those of a program, in whatever order: that of a dictionary means nothing. Numbers don't count."""
    left = list(wanted)
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            continue
        found = next((one for one in left if one.fits(tensor)), None)
        if found is None:
            return False
        left.remove(found)
    return not left


class _Records:
    """The parts of an archive, by their names without the folder in which all of them are."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        found = archive.infolist()
        root = found[0].filename.partition("/")[0] + "/" if found else ""
        self._infos = {one.filename.removeprefix(root): one for one in found}

    def __contains__(self, name: str) -> bool:
        return name in self._infos

    def names(self) -> list[str]:
        """Return the names of all parts."""
        return list(self._infos)

    def read(self, name: str) -> bytes:
        """Return a part; its CRC is compared. Raises KeyError, BadZipFile or ValueError."""
        info = self._infos[name]
        if info.compress_type != zipfile.ZIP_STORED:  # then no part is larger than the file
            raise ValueError(f"{name} is compressed, which PyTorch never does")
        return self._archive.read(info)

    def read_json(self, name: str) -> Any:
        """Return what a part of JSON says. Raises the same."""
        return reading.load(self.read(name))


def _read(records: _Records, path: Path) -> Exported | None:
    what = f"--trained_model: {path}"
    if any(one in records for one in _EARLIER):
        raise BadModel(f"{what} has the format of an earlier PyTorch, with pickled weights; {_REMEDY}")
    if _FORMAT not in records:
        return None
    version = records.read(_VERSION)
    if version != ARCHIVE_VERSION:
        raise BadModel(
            f"{what} has version {version.decode(errors='replace')!r:.20} of the archive, and this elasticdl reads "
            f"{ARCHIVE_VERSION.decode()!r}; {_REMEDY}"
        )
    if _PROGRAM not in records:
        held = [one for one in records.names() if one.startswith(("models/", "data/aotinductor/"))]
        raise BadModel(
            f"{what} has no program called 'model', as --output_format=exported writes it; it has {', '.join(held[:3]) or 'none'}"
        )
    program = records.read_json(_PROGRAM)
    major = program["schema_version"]["major"]
    if major != SCHEMA_MAJOR:
        raise BadModel(
            f"{what} has version {major!r:.20} of exported programs (of PyTorch {program.get('torch_version')!r:.40}), and this elasticdl "
            f"reads {SCHEMA_MAJOR}; {_REMEDY}"
        )
    module = program["graph_module"]
    values, signature = module["graph"]["tensor_values"], module["signature"]
    return Exported(
        _weights(records, what),
        _tensors_of(values, signature["input_specs"], "user_input"),
        _tensors_of(values, signature["output_specs"], "user_output"),
    )


def _weights(records: _Records, what: str) -> dict[str, torch.Tensor]:
    weights, storages = {}, {}
    for name, payload in records.read_json(_CONFIG)["config"].items():
        if payload["use_pickle"]:
            raise BadModel(
                f"{what} has the weight {name!r} as a pickled object, which could run code: nothing is unpickled; give a state_dict"
            )
        meta, part = payload["tensor_meta"], payload["path_name"]
        if part not in storages:  # weights that are tied, or parts of one tensor, share one
            storages[part] = bytearray(records.read(_WEIGHTS + part))
        kind, storage = TYPES[meta["dtype"]], storages[part]
        flat = torch.frombuffer(storage, dtype=kind) if storage else torch.empty(0, dtype=kind)
        sizes, strides = ([one["as_int"] for one in meta[key]] for key in ("sizes", "strides"))
        weights[name] = flat.as_strided(sizes, strides, meta["storage_offset"]["as_int"])
    return weights


def _tensors_of(values: Any, specs: Any, kind: str) -> list[Described]:
    """Return the tensors that the user gives to a program, or gets of it: those of a kind among its `specs`."""
    arguments = [one[kind]["arg"] for one in specs if kind in one]
    metas = [values[one["as_tensor"]["name"]] for one in arguments if "as_tensor" in one]
    return [
        Described(TYPES[meta["dtype"]], tuple(one.get("as_int") for one in meta["sizes"])) for meta in metas
    ]
