"""Tables that are made once for a job, of data in which records have no numbers: lists of images, results of queries.

The master makes them; workers find them, or make them again where they can't see the master's, and compare what they made. What makes the
rows is other modules' business.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from elasticdl.errors import BadData
from elasticdl.files.drafts import replacing
from elasticdl.files.permissions import PRIVATE, PRIVATE_FOLDER

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 4096
"""Of a row group: small enough that a task which needs a few of them decodes little."""
_MARK = b"elasticdl.fingerprint"
_ABOUT = b"elasticdl.about"


@dataclass(frozen=True, slots=True)
class Made:
    """What a table is made of.

    Attributes:
        schema: its columns.
        batches: its rows, in their order.
        about: what else its readers want to know, as JSON.
    """

    schema: pa.Schema
    batches: Iterable[pa.RecordBatch]
    about: Any = None


@dataclass(frozen=True, slots=True)
class MadeTables:
    """A job's place for such tables.

    Attributes:
        folder: where they lie.
        most: bytes that one may have; 0: any number.
    """

    folder: Path
    most: int = 0

    def path(self, origin: str, params: Mapping[str, Any], suffix: str = ".parquet") -> Path:
        """Return where the table of some data lies, or a file beside it of another suffix."""
        key = hashlib.blake2b(repr((origin, sorted(params.items()))).encode(), digest_size=8).hexdigest()
        return self.folder / f"table-{key}{suffix}"

    def once(self, origin: str, params: Mapping[str, Any], make: Callable[[], Made]) -> Path:
        """Return the table of some data, made now if it is not there yet. Raises BadData, and what `make` raises."""
        path = self.path(origin, params)
        if not path.exists():
            made = make()
            self.put(origin, path, lambda file: self._write(origin, made, file))
        return path

    def put(self, origin: str, path: Path, write: Callable[[BinaryIO], None]) -> None:
        """Write a file that is made of some data; it is whole or not there. Raises BadData, and what `write` raises."""
        try:
            self.folder.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
            with replacing(path, PRIVATE) as file:
                write(file)
                self._check(origin, file)
        except OSError as error:
            raise BadData(
                f"the table that is made of {origin} can't be written: {error.strerror or error} ({self.folder}); --data_cache names "
                "another place"
            ) from error

    def _check(self, origin: str, file: BinaryIO) -> None:
        if self.most and file.tell() > self.most:
            raise BadData(
                f"what is found out about {origin} takes more than {self.most >> 20} MiB, and each pod would have to find it for itself; "
                "give --data_cache a directory on a volume that all pods mount"
            )

    def _write(self, origin: str, made: Made, file: BinaryIO) -> None:
        import pyarrow.parquet  # every process of every job has a place for tables; few have a table

        content = hashlib.blake2b(made.schema.serialize(), digest_size=16)
        with pyarrow.parquet.ParquetWriter(
            file, made.schema, compression="zstd", write_page_checksum=True
        ) as writer:
            for batch in made.batches:
                content.update(batch.serialize())
                writer.write_batch(batch, row_group_size=ROWS)
                self._check(origin, file)
            writer.add_key_value_metadata({_MARK: content.hexdigest(), _ABOUT: json.dumps(made.about)})


def about(path: Path) -> tuple[str, Any]:
    """Return what names the content of a table, and what its maker says besides. Raises BadData."""
    import pyarrow as pa
    import pyarrow.parquet

    try:
        found = pyarrow.parquet.read_metadata(path).metadata or {}
        return found[_MARK].decode(), json.loads(found[_ABOUT])
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise BadData(
            f"{path}, which was made for this job, can't be read: {error}; remove it, and it is made again"
        ) from error


@dataclass(frozen=True, slots=True)
class MadeTable:
    """The file of such a table, as a reader of tables takes it."""

    path: Path

    def fingerprint(self) -> str:
        """Return what names its content, the same wherever it is made. Raises BadData."""
        return about(self.path)[0]

    def opened(self) -> str:
        """Return its path."""
        return str(self.path)
