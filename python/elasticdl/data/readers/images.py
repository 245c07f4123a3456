"""The reader of images, with what is known about each.

Which images there are, and their order, is a table that is made once (`madetables.py`); the files themselves are read when they are
needed, so nothing is copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, assert_never

import numpy as np
import numpy.typing as npt

from elasticdl.data.plan.shard import Shard, Task
from elasticdl.data.readers.boxes import coco, voc
from elasticdl.data.readers.files import Kind
from elasticdl.data.readers.imagefiles import wrong_with
from elasticdl.data.readers.imageorigins import Form, ImageOrigin, ImageParams, image_params
from elasticdl.data.readers.imagesources import ImageRows, folder_of_classes, listed, plain_images
from elasticdl.data.readers.madetables import MadeTable, MadeTables, about
from elasticdl.data.readers.reader import BadRecords, Metadata
from elasticdl.data.readers.records import Columns, Records
from elasticdl.data.readers.tablefiles import TableReader
from elasticdl.data.readers.tables import TableParams
from elasticdl.errors import BadData


def _rows(of: ImageOrigin, params: ImageParams) -> ImageRows:
    """List images. Raises BadData."""
    match of.form:
        case Form.FOLDERS:
            return folder_of_classes(of.tree, of.classes, params)
        case Form.LIST:
            return listed(of.tree, of.annotations, params)
        case Form.COCO:
            return coco(of.tree, of.annotations, params)
        case Form.VOC:
            return voc(of.tree, of.annotations, of.names, params)
        case Form.PLAIN:
            return plain_images(of.tree, of.files)
    assert_never(of.form)


class ImageReader:
    """Reads images, as `image` of bytes, with the columns of their table.

    Attributes:
        metadata: names and types of the columns, and the names of the classes.
        fingerprints: of the list of images, with the bytes of each.
        block: any image can be had by itself.
    """

    block = 1

    def __init__(
        self,
        name: str,
        images: ImageOrigin,
        params: Mapping[str, Any],
        tables: MadeTables,
        bad_records: BadRecords,
    ) -> None:
        """List the images, unless they are; `name`: what the data is called. Raises BadData or BadSetting."""
        self._bad_records = bad_records
        self._name, self._tree = name, images.tree
        of = image_params(params)
        path = tables.once(name, params, lambda: _rows(images, of).made())
        made = MadeTable(path)
        self._table = TableReader(Kind.PARQUET, {self._name: made}, TableParams(), 1, bad_records)
        self.fingerprints = self._table.fingerprints
        self._count = sum(count for _, _, count in self._table.create_shards())
        dtypes = {
            name: dtype
            for name, dtype in self._table.metadata.column_dtypes.items()
            if name not in ("size", "wrong")
        }
        dtypes["image"] = "binary"
        if "boxes" in dtypes:
            dtypes["boxes"] = "float32[][4]"
        self.metadata = Metadata(tuple(dtypes), dtypes, tuple(about(path)[1]))

    def create_shards(self) -> list[tuple[str, int, int]]:
        """Return all images as one shard."""
        return [(self._name, 0, self._count)]

    def read(self, task: Task, records: Sequence[int]) -> Records:
        """Return `records` in the order asked, without bad ones if the policy allows them. Raises BadData."""
        rows = self._table.read(replace(task, shard=Shard(self._name, 0, self._count)), records)
        assert isinstance(rows, Columns), "a table of images has no bad rows"
        columns = dict(rows.arrays)
        sizes, wrong = columns.pop("size"), columns.pop("wrong")
        images = np.empty(len(rows), object)
        bad: list[tuple[int, str]] = []
        good = []
        paths = [str(path) for path in columns["path"]]
        for row, (record, path, content) in enumerate(
            zip(records, paths, self._contents(paths), strict=True)
        ):
            images[row], name = content, self._tree.named(path)
            if len(content) != sizes[row]:
                raise BadData(
                    f"{name} has changed since the job began: it has {len(content):,} bytes instead of {sizes[row]:,}; start the job again"
                )
            if why := wrong[row] or wrong_with(content):
                bad.append((record, f"the image {name} (record {record} of {self._name}) is corrupt: {why}"))
            else:
                good.append(row)
        self._bad_records.allow(self._name, bad)
        if not good:
            return []
        columns["image"] = images
        if "boxes" in columns:
            columns["boxes"] = _in_fours(columns["boxes"])
        return Columns(len(good), {name: column[good] for name, column in columns.items()})

    def _contents(self, paths: Sequence[str]) -> list[bytes]:
        try:
            return self._tree.contents(paths)
        except BadData as error:
            raise BadData(f"{error}; images must not change while a job runs") from error


def _in_fours(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    boxes = np.empty(len(column), object)
    for row, edges in enumerate(column):
        boxes[row] = edges.reshape(-1, 4)
    return boxes
