"""Images and their labels from folders of classes, folders of images, and lists.

It makes the rows of a table, one for each image, and opens none. COCO and VOC, which have boxes, are in `boxes.py`.
"""

from __future__ import annotations

import csv
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa

from elasticdl.data.readers.imageorigins import ImageParams
from elasticdl.data.readers.imagetrees import Tree
from elasticdl.data.readers.madetables import Made
from elasticdl.errors import BadData
from elasticdl.files import folders
from elasticdl.files.reading import is_utf8

ROWS = 10_000
"""Of a batch."""
_FIELDS = [("path", pa.string()), ("size", pa.int64()), ("wrong", pa.string())]


@dataclass(slots=True)
class ImageRows:
    """Rows of a table of images.

    Attributes:
        of: the columns besides path, size and what is wrong, with their types.
        paths: of the images, from their root on.
        sizes: bytes of each.
        wrong: why an image's annotations can't be used; empty for most.
        values: of those columns.
        class_names: what their numbers mean.
    """

    of: Sequence[tuple[str, pa.DataType]]
    paths: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    values: list[Sequence[Any]] = field(default_factory=list)
    class_names: Sequence[str] = ()

    def add(self, path: str, size: int, values: Sequence[Any], wrong: str = "") -> None:
        """Add an image."""
        self.paths.append(path)
        self.sizes.append(size)
        self.values.append(values)
        self.wrong.append(wrong)

    def made(self) -> Made:
        """Return the table's content."""
        schema = pa.schema([*_FIELDS, *self.of])

        def batches() -> Iterator[pa.RecordBatch]:
            for begin in range(0, len(self.paths), ROWS):
                part = slice(begin, begin + ROWS)
                values = list(zip(*self.values[part], strict=True))
                columns = [self.paths[part], self.sizes[part], self.wrong[part], *values]
                arrays = [
                    pa.array(column, column_field.type)
                    for column, column_field in zip(columns, schema, strict=True)
                ]
                yield pa.record_batch(arrays, schema=schema)

        return Made(schema, batches(), list(self.class_names))


def numbered(names: Sequence[str], params: ImageParams, where: str) -> dict[str, int]:
    """Return the number of each class. Raises BadData for one that `classes` does not name."""
    for name in names:
        if params.classes and name not in params.classes:
            raise BadData(
                f"{where} has the class {name!r}, which data_reader_params does not name: classes={list(params.classes)!r}"
            )
    return {name: number for number, name in enumerate(params.classes or sorted(names))}


def folder_of_classes(tree: Tree, names: Sequence[str], params: ImageParams) -> ImageRows:
    """List directories, one for each class, mixed: in the order of a hash of their paths. Raises BadData."""
    found = {name: list(_images_below(tree, name)) for name in names}
    with_images = [name for name, images in found.items() if images]
    if with_images and len(with_images) < len(found) and not params.classes:
        raise BadData(
            f"{tree.named(next(name for name in found if name not in with_images))} is the directory of a class and has no image; put its "
            "images there or remove it, or name the classes in the order of their numbers: "
            f"--data_reader_params=\"classes=['{with_images[0]}', …]\""
        )
    classes = numbered(with_images, params, tree.named(""))
    rows = ImageRows([("label", pa.int64())], class_names=list(classes))
    images = [(path, size, classes[name]) for name, images in found.items() for path, size in images]
    # Sorted, minibatches would be of one class each.
    images.sort(key=lambda image: hashlib.blake2b(os.fsencode(image[0]), digest_size=8).digest())
    for path, size, label in images:
        rows.add(path, size, (label,))
    return rows


def _images_below(tree: Tree, folder: str) -> Iterator[tuple[str, int]]:
    for entry in tree.entries(folder) or ():
        if not folders.is_data(entry.name) or (folders.is_note(entry.name) and not entry.folder):
            continue
        path = f"{folder}/{entry.name}"
        if entry.folder:
            yield from _images_below(tree, path)
        elif not folders.is_image(entry.name) or not tree.is_file(path):
            raise BadData(
                f"{tree.named(path)} is in the directory of a class and is no file with the name of an image "
                f"({', '.join(folders.IMAGE_SUFFIXES)}); remove it, or rename it so that it begins with '_'"
            )
        else:
            _check_name(tree, path)
            yield path, entry.size or 0


def _check_name(tree: Tree, path: str) -> None:
    """Raise BadData if a name is no text."""
    if not is_utf8(tree.named(path)):
        raise BadData(
            f"{tree.named(path)!r} has a name that is not text in UTF-8; rename the file, or the directory that it lies in"
        )


def plain_images(tree: Tree, paths: Sequence[str]) -> ImageRows:
    """List images of which nothing is known but their names. Raises BadData."""
    rows, sizes = ImageRows([]), Sizes(tree, "the data")
    for path in paths:
        _check_name(tree, path)
        rows.add(path, sizes.of(path), ())
    return rows


def listed(tree: Tree, path: str, params: ImageParams) -> ImageRows:
    """List the images that a text file names, `path,label` on each line, in its order. Raises BadData.

    Fields are separated by commas or tabs, or the label is what follows the last space. A first line whose path is no image's is a header.
    """
    name = tree.named(path)
    (content,) = tree.contents([path])
    pairs = [pair for pair in _pairs(name, content) if pair[1]]
    if pairs and not folders.is_image(pairs[0][1]):
        del pairs[0]
    if not pairs:
        raise BadData(f"{name} names no image; write lines such as cats/1.jpg,cat")
    for line, image, label in pairs:
        if not label:
            raise BadData(f"line {line} of {name} has no label; write lines such as cats/1.jpg,cat")
        if not folders.is_image(image):
            raise BadData(
                f"line {line} of {name} has no path of an image ({', '.join(folders.IMAGE_SUFFIXES)}) in its first field: {image!r}"
            )
    labels = [label for _, _, label in pairs]
    values: Sequence[Any]
    kind, values, names = _labels(labels, params, name)
    rows = ImageRows([("label", kind)], class_names=names)
    sizes = Sizes(tree, name)
    for (_, image, _), value in zip(pairs, values, strict=True):
        rows.add(image, sizes.of(image), (value,))
    return rows


def text_of(path: str, content: bytes) -> str:
    """Return the text of a file. Raises BadData."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadData(f"can't read {path}: it is no text in UTF-8") from error


def _pairs(path: str, content: bytes) -> Iterator[tuple[int, str, str]]:
    """Yield number, path and label of each line."""
    text = text_of(path, content)
    first = text.partition("\n")[0]
    separator = next((mark for mark in "\t," if mark in first), "")
    lines = text.splitlines()
    fields = csv.reader(lines, delimiter=separator) if separator else (line.rsplit(None, 1) for line in lines)
    for number, row in enumerate(fields, 1):
        if row and len(row) != 2:
            raise BadData(
                f"line {number} of {path} has {len(row)} field{'s' * (len(row) != 1)}; expected a path and a label, such as cats/1.jpg,cat"
            )
        if row:
            yield number, row[0].strip(), row[1].strip()


def _labels(
    labels: Sequence[str], params: ImageParams, path: str
) -> tuple[pa.DataType, Sequence[Any], Sequence[str]]:
    """Return labels as numbers, their type, and the names of classes if they are names."""
    if not params.classes and (numbers := _numbers(labels)):
        whole = all(isinstance(number, int) for number in numbers)
        return pa.int64() if whole else pa.float32(), numbers, ()
    classes = numbered(sorted(set(labels)), params, path)
    return pa.int64(), [classes[label] for label in labels], list(classes)


def _numbers(labels: Sequence[str]) -> list[int | float]:
    """Return labels as numbers, whole ones if all are; nothing if some are none, or are too large."""
    for kind, most in ((int, (1 << 63) - 1), (float, 3e38)):
        try:
            numbers = list(map(kind, labels))
        except ValueError:
            continue
        if all(-most <= number <= most for number in numbers):
            return numbers
    return []


class Sizes:
    """Looks for files that a list names, a directory at a time."""

    def __init__(self, tree: Tree, by: str) -> None:
        """`by`: what names them."""
        self._tree = tree
        self._by = by
        self._known: dict[str, dict[str, int]] = {}

    def of(self, name: str) -> int:
        """Return the bytes of a file. Raises BadData if it is not there."""
        where = PurePosixPath(name)
        parent = str(where.parent)
        if "\0" in name or not is_utf8(name):
            raise BadData(f"{self._by} names {name!r}, which can be no path")
        if where.is_absolute() or ".." in where.parts:
            raise BadData(
                f"{self._by} names {name}, which is not in {self._tree.named('')}; paths begin at that directory"
            )
        if parent not in self._known:
            found = self._tree.entries("" if parent == "." else parent) or ()
            self._known[parent] = {entry.name: entry.size for entry in found if entry.size is not None}
        if where.name not in self._known[parent]:
            raise BadData(
                f"{self._by} names {name}, which is not in {self._tree.named('')}; copy the image there, or give its directory as the data"
            )
        return self._known[parent][where.name]
