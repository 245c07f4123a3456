"""Readers of other packages, and what they have to be.

A package names a function in the entry point group `elasticdl.readers`. `--training_data=NAME://REST` calls it, in the master and in each
worker; from there on its reader is as good as those of this package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from elasticdl.data.readers.reader import BadRecords, Reader
from elasticdl.errors import BadSetting
from elasticdl.spec import entrypoints
from elasticdl.spec.readers import GROUP


@dataclass(frozen=True, slots=True)
class Opening:
    """What a reader may want to know of the job.

    Attributes:
        folder: of the job, where files may be made that its processes on this machine share.
        records_per_task: records of a task, unless the reader's blocks are larger.
        bad_records: who decides on corrupt records; `read` tells it those that it leaves out.
    """

    folder: Path
    records_per_task: int
    bad_records: BadRecords


class OpenReader(Protocol):
    """What the entry point names."""

    def __call__(self, rest: str, params: Mapping[str, Any], opening: Opening) -> Reader:
        """Return a reader.

        Args:
            rest: what follows `://` in `--training_data`.
            params: `--data_reader_params`.
            opening: what the job says.

        Raises BadData or BadSetting, with what is wrong and what to do; these end the job with exit code 2.
        """


_PARTS = ("metadata", "fingerprints", "block", "create_shards", "read")


def open_installed(name: str, origin: str, params: Mapping[str, Any], opening: Opening) -> Reader:
    """Open data with the installed reader of this name. Raises BadSetting if what it returns is no reader, and what it raises."""
    found: OpenReader = entrypoints.find(GROUP, name, "training_data")
    reader = found(origin.partition("://")[2], params, opening)
    missing = [part for part in _PARTS if not hasattr(reader, part)]
    if missing:
        raise BadSetting(
            f"--training_data: the reader {name!r} returned a {type(reader).__name__}, which is none: it has no {', '.join(missing)}"
        )
    if type(reader.block) is not int or reader.block < 1:
        raise BadSetting(
            f"--training_data: the block of the reader {name!r} is {reader.block!r}; expected 1, or the most records that are decoded "
            "together"
        )
    return reader
