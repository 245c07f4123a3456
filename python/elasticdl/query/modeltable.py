"""The table in which SQLFlow keeps a model: its server reads what trained it there, and steps the model itself, for they share no disk.

A table has the columns `id`, from 0, and `block`, of Base64. All blocks together are a number of ten characters such as `0x000001f4`, JSON
of so many bytes, and the model's files as `.tar.gz`: what SQLFlow's Go code reads, which takes the end of the data for an error, so there
must be something behind the JSON. It has what SQLFlow wants to know, and under `elasticdl` the version and its `model.json`.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import secrets
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from elasticdl.errors import BadData, BadInput, BadSetting
from elasticdl.files.unpacking import unpack
from elasticdl.query.registry import COMMIT, Store, Version
from elasticdl.query.source import DatabaseRefused, Into, Source

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)?", re.ASCII)
_COLUMNS = ["id", "block"]
_BLOCK = 32_768
"""Bytes of a block before Base64: a TEXT of MySQL holds 65,535."""
_BLOCKS = 256
"""Blocks that are written at a time: 11 MB."""
_LENGTH = 10
"""Characters of the number at the beginning."""
_OWN = "elasticdl"


@dataclass(frozen=True, slots=True)
class ModelTable:
    """The table of a model.

    Attributes:
        source: its database.
        name: as SQLFlow writes it, without quotes, perhaps behind the name of a database and a dot.
    """

    source: Source
    name: str

    def check(self) -> None:
        """Raise BadSetting before anything is trained if the model can't be kept here: another table would be lost."""
        if not _NAME.fullmatch(self.name):
            raise BadSetting(
                f"SQLFlow keeps the model in a table, so its name has letters of ASCII, digits and '_', and one dot behind the database; "
                f"received {self.name!r}"
            )
        try:
            self.source.check(self.name, Into.NEW)
        except DatabaseRefused:
            raise
        except BadInput:
            if self.source.schema(f"SELECT * FROM {self.name}").names != _COLUMNS:
                raise BadSetting(
                    f"the table {self.name} of {self.source.name} is no model's, and INTO would replace it; name the model otherwise"
                ) from None

    def write(self, version: Version, known: Mapping[str, object]) -> None:
        """Keep a version here, in place of an earlier one, in one transaction; `known`: what SQLFlow wants to know of it.

        Raises BadInput, Unwritable.
        """
        own = {"version": version.version, "model": version.json}
        head = json.dumps({**known, _OWN: own}).encode("ascii")
        with tempfile.TemporaryFile() as file:
            file.write(f"{len(head):#0{_LENGTH}x}".encode() + head)
            with tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as archive:
                for path in sorted(version.directory.rglob("*")):
                    if path.is_file() and path.name != COMMIT:
                        archive.add(path, str(path.relative_to(version.directory)))
            file.seek(0)
            self.source.write(self.name, _batches(file), Into.REPLACE, f"{version} {secrets.token_hex(8)}")

    def known(self) -> Mapping[str, Any]:
        """Return what the table says of its model. Raises BadData if it is no model's."""
        return self._read(None)

    def model(self, store: Store) -> Version:
        """Return the version that is kept here, which is brought into the store if it is not there. Raises BadInput, Unwritable."""
        name = self.name
        own = self.known().get(_OWN)
        if not isinstance(own, dict):
            raise BadData(f"the model in the table {name} was not trained by ElasticDL; train it again")
        try:
            return store.find(f"{name}@{own['version']}")
        except BadInput:
            pass
        with store.begin(name, own["version"]) as entry:
            self._read(entry.directory)
            return entry.commit(own["model"])

    def _read(self, directory: Path | None) -> Mapping[str, Any]:
        """Return what is known of the model, and write its files below a directory, if one is given."""
        if not _NAME.fullmatch(self.name):
            raise BadSetting(f"SQLFlow keeps models in tables, and {self.name!r} is no name of one")
        try:
            with tempfile.TemporaryFile() as file:
                for block in self._blocks():
                    file.write(block)
                    if directory is None and _is_whole(file):
                        break
                file.seek(0)
                known = json.loads(file.read(int(file.read(_LENGTH), 16)))
                if directory is not None:
                    with tarfile.open(fileobj=file, mode="r:gz") as archive:
                        unpack(archive, directory)
        except DatabaseRefused as error:
            raise BadData(
                f"{error}; SQLFlow keeps the model {self.name} in a table of its name: train it first"
            ) from None
        except (ValueError, tarfile.TarError, EOFError, KeyError) as error:
            raise BadData(
                f"the table {self.name} of {self.source.name} has no model of SQLFlow ({type(error).__name__}: {error}); train it again"
            ) from error
        if not isinstance(known, dict):
            raise BadData(
                f"the table {self.name} of {self.source.name} has no model of SQLFlow; train it again"
            )
        return known

    def _blocks(self) -> Iterator[bytes]:
        try:
            for batch in self.source.rows(f"SELECT block FROM {self.name} ORDER BY id"):
                for block in batch.column(0).to_pylist():
                    yield base64.b64decode(block, validate=True)
        except (binascii.Error, TypeError) as error:
            raise ValueError(str(error)) from error


def _is_whole(file: IO[bytes]) -> bool:
    """Tell whether a file that is being written has all of the JSON."""
    end = file.tell()
    file.seek(0)
    whole = end >= _LENGTH and end >= _LENGTH + int(file.read(_LENGTH), 16)
    file.seek(end)
    return whole


def _batches(file: IO[bytes]) -> Iterator[pa.RecordBatch]:
    count = 0
    while blocks := [block for _ in range(_BLOCKS) if (block := file.read(_BLOCK))]:
        texts = [base64.b64encode(block).decode("ascii") for block in blocks]
        ids = pa.array(range(count, count + len(blocks)), pa.int32())
        yield pa.RecordBatch.from_arrays([ids, pa.array(texts, pa.string())], names=_COLUMNS)
        count += len(blocks)
