"""Images and their labels from folders of classes, folders of images, and lists.

It makes the rows of a table, one for each image, and opens none. COCO and VOC, which have boxes, are in `boxes.py`.
"""

from __future__ import annotations

import csv
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa

from elasticdl.data.readers.imageorigins import ImageParams
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


def folder_of_classes(root: Path, params: ImageParams) -> ImageRows:
    """List a directory whose directories are classes, mixed: in the order of a hash of their paths. Raises BadData."""
    found: dict[str, list[tuple[str, int]]] = {}
    for folder in folders.class_folders(str(root)):
        found[folder.name] = list(_images_below(folder, f"{folder.name}/"))
    classes = numbered(
        [name for name, images in found.items() if images or not params.classes], params, str(root)
    )
    rows = ImageRows([("label", pa.int64())], class_names=list(classes))
    images = [(path, size, classes[name]) for name, images in found.items() for path, size in images]
    # Sorted, minibatches would be of one class each.
    images.sort(key=lambda image: hashlib.blake2b(os.fsencode(image[0]), digest_size=8).digest())
    for path, size, label in images:
        rows.add(path, size, (label,))
    return rows


def _images_below(folder: Path, prefix: str) -> Iterator[tuple[str, int]]:
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if not folders.is_data(entry.name):
                continue
            path = Path(entry.path)
            if entry.is_dir(follow_symlinks=False):
                yield from _images_below(path, f"{prefix}{entry.name}/")
            elif not folders.is_image(entry.name) or not folders.is_file(path):
                raise BadData(
                    f"{path} is in the directory of a class and is no file with the name of an image "
                    f"({', '.join(folders.IMAGE_SUFFIXES)}); remove it, or rename it so that it begins with '_'"
                )
            else:
                yield prefix + named(path), _size(path)


def named(path: Path) -> str:
    """Return the name of a file. Raises BadData if it is no text."""
    if not is_utf8(str(path)):
        raise BadData(
            f"{str(path)!r} has a name that is not text in UTF-8; rename the file, or the directory that it lies in"
        )
    return path.name


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise BadData(f"can't read {path}: {error.strerror}") from error


def plain_images(files: Sequence[Path], root: Path) -> ImageRows:
    """List images of which nothing is known but their names. Raises BadData."""
    rows = ImageRows([])
    for path in files:
        named(path)
        rows.add(os.path.relpath(path, root), _size(path), ())
    return rows


def listed(root: Path, path: Path, params: ImageParams) -> ImageRows:
    """List the images that a text file names, `path,label` on each line, in its order. Raises BadData.

    Fields are separated by commas or tabs, or the label is what follows the last space. A first line whose path is no image's is a header.
    """
    pairs = [pair for pair in _pairs(path) if pair[1]]
    if pairs and not folders.is_image(pairs[0][1]):
        del pairs[0]
    if not pairs:
        raise BadData(f"{path} names no image; write lines such as cats/1.jpg,cat")
    for line, image, _ in pairs:
        if not folders.is_image(image):
            raise BadData(
                f"line {line} of {path} has no path of an image ({', '.join(folders.IMAGE_SUFFIXES)}) in its first field: {image!r}"
            )
    labels = [label for _, _, label in pairs]
    values: Sequence[Any]
    kind, values, names = _labels(labels, params, path)
    rows = ImageRows([("label", kind)], class_names=names)
    sizes = Sizes(root, str(path))
    for (_, image, _), value in zip(pairs, values, strict=True):
        rows.add(image, sizes.of(image), (value,))
    return rows


def _pairs(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield number, path and label of each line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadData(f"can't read {path}: {getattr(error, 'strerror', 'it is no text in UTF-8')}") from error
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
    labels: Sequence[str], params: ImageParams, path: Path
) -> tuple[pa.DataType, Sequence[Any], Sequence[str]]:
    """Return labels as numbers, their type, and the names of classes if they are names."""
    if not params.classes and (numbers := _numbers(labels)):
        whole = all(isinstance(number, int) for number in numbers)
        return pa.int64() if whole else pa.float32(), numbers, ()
    classes = numbered(sorted(set(labels)), params, str(path))
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

    def __init__(self, root: Path, by: str) -> None:
        """`by`: what names them."""
        self._root = root
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
                f"{self._by} names {name}, which is not in {self._root}; paths begin at that directory"
            )
        if parent not in self._known:
            self._known[parent] = self._sizes(parent)
        if where.name not in self._known[parent]:
            raise BadData(
                f"{self._by} names {name}, which is not in {self._root}; copy the image there, or give its directory as the data"
            )
        return self._known[parent][where.name]

    def _sizes(self, parent: str) -> dict[str, int]:
        try:
            with os.scandir(self._root / parent) as entries:
                return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise BadData(f"can't read {self._root / parent}: {error.strerror}") from error
