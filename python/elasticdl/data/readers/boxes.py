"""Boxes around what is seen in images: COCO, one JSON file, and Pascal VOC, one XML file for each image.

Both become the same: boxes as left, top, right, bottom in pixels, counted from 0 at the edges of the image, and a class for each. A box
that can't be so makes its image a corrupt record.
"""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from elasticdl.data.readers.imageorigins import ImageParams
from elasticdl.data.readers.imagesources import ImageRows, Sizes, numbered, text_of
from elasticdl.data.readers.imagetrees import Tree
from elasticdl.errors import BadData
from elasticdl.files import folders, reading

COLUMNS = [("boxes", pa.list_(pa.float32())), ("classes", pa.list_(pa.int64()))]
Box = tuple[float, float, float, float]


def coco(tree: Tree, path: str, params: ImageParams) -> ImageRows:
    """List the images of a COCO file, with the boxes of their objects; crowds, which are none, are left out. Raises BadData.

    Format: https://cocodataset.org/#format-data (object detection).
    """
    file = tree.named(path)
    (read,) = tree.contents([path])
    content = _loaded(file, read)
    names = {
        entry["id"]: str(entry["name"])
        for entry in _entries(content, "categories", {"id": (int,), "name": (str,)}, file)
    }
    if not names:
        raise BadData(f"{file} has no categories; is it a COCO file of instances?")
    if len(set(names.values())) < len(names):
        raise BadData(f"{file} has two categories of one name")
    ordered = [names[key] for key in sorted(names)]
    # Without `classes` the order is that of the categories' ids, which is what others do with COCO.
    classes = (
        numbered(ordered, params, file) if params.classes else {name: at for at, name in enumerate(ordered)}
    )
    numbers = {key: classes[name] for key, name in names.items()}
    images: dict[Any, Mapping[str, Any]] = {}
    for entry in _entries(content, "images", {"id": _ID, "file_name": (str,)}, file):
        if images.setdefault(entry["id"], entry) is not entry:
            raise BadData(f"{file} has two images with the id {entry['id']!r}; give each one of its own")
    if not images:
        raise BadData(f"{file} has no images")
    objects: dict[Any, list[Mapping[str, Any]]] = {key: [] for key in images}
    for entry in _entries(
        content, "annotations", {"image_id": _ID, "category_id": (int,), "bbox": (list,)}, file
    ):
        what = f"{file}: the annotation {_id(entry)}"
        if entry["image_id"] not in images:
            raise BadData(f"{what} is of the image {entry['image_id']!r}, which is not among its images")
        if entry["category_id"] not in numbers:
            raise BadData(
                f"{what} has the category {entry['category_id']!r}, which is not among its categories"
            )
        if not entry.get("iscrowd"):
            objects[entry["image_id"]].append(entry)
    rows = ImageRows(COLUMNS, class_names=list(classes))
    sizes = Sizes(tree, file)
    for key, image in images.items():
        name, size = str(image["file_name"]), (image.get("width"), image.get("height"))
        found = [
            _Object(
                _of_coco(one["bbox"]),
                numbers[one["category_id"]],
                one["bbox"],
                f"annotation {_id(one)} of {path.rpartition('/')[2]}",
            )
            for one in objects[key]
        ]
        rows.add(name, sizes.of(name), *_values(found, size))
    return rows


@dataclass(frozen=True, slots=True)
class _Object:
    """What is seen in an image: its box, None if it is none; its class; the box as it is written, and where."""

    box: Box | None
    number: int
    written: Any
    where: str


def _values(objects: Sequence[_Object], size: tuple[Any, Any]) -> tuple[Sequence[Any], str]:
    """Return the values of an image's columns, and what is wrong with it."""
    for one in objects:
        if wrong := _wrong_with(one.box, *size):
            return ([], []), f"its box {repr(one.written)[:80]} {wrong} (in {one.where}); mend the annotation"
    edges = [edge for one in objects if one.box is not None for edge in one.box]
    return (edges, [one.number for one in objects]), ""


def _loaded(path: str, read: bytes) -> Mapping[str, Any]:
    try:
        content = reading.load(read)
    except ValueError as error:
        raise BadData(f"{path} is no whole JSON: {error}; was it cut? Copy it again") from error
    if not isinstance(content, dict):
        raise BadData(
            f"{path} is no COCO file: it is a {type(content).__name__} instead of an object with images and annotations"
        )
    return content


_ID = (int, str)


def _id(annotation: Mapping[str, Any]) -> str:
    """Return an annotation's id as messages show it: one that is text may have what UTF-8 can't say."""
    return repr(annotation["id"]) if "id" in annotation else "(without id)"


def _entries(
    content: Mapping[str, Any], name: str, keys: Mapping[str, tuple[type, ...]], path: str
) -> list[dict[str, Any]]:
    """Return a list of objects with these keys, whose values have one of these types. Raises BadData."""
    entries = content.get(name)
    if not isinstance(entries, list):
        raise BadData(f"{path} is no COCO file of instances: it has no list {name!r}")
    for number, entry in enumerate(entries):
        for key, types in keys.items():
            if not isinstance(entry, dict) or type(entry.get(key)) not in types:
                raise BadData(
                    f"{path} is no COCO file of instances: in entry {number} of {name!r}, {key!r} is missing or of another type"
                )
    return entries


def _of_coco(bbox: Any) -> Box | None:
    try:
        left, top, width, height = map(reading.number, bbox)
    except ValueError:
        return None
    return left, top, left + width, top + height


def _wrong_with(box: Box | None, width: Any, height: Any) -> str:
    """Return why something is no box inside of an image, whose edges may cut off a pixel of it; empty if it is one."""
    if box is None or not all(map(math.isfinite, box)):
        return "is not four numbers"
    left, top, right, bottom = box
    if left >= right or top >= bottom:
        return "has no area"
    outside = left < -1 or top < -1
    outside |= isinstance(width, int) and right > width + 1
    outside |= isinstance(height, int) and bottom > height + 1
    return f"is not inside of the image, which has {width} × {height} pixels" if outside else ""


def voc(tree: Tree, annotations: str, split: str, params: ImageParams) -> ImageRows:
    """List images with the boxes of their VOC files: all that there are, or those that a split names. Raises BadData.

    Format: the development kit of http://host.robots.ox.ac.uk/pascal/VOC/; pixels are counted from 1 there, and the last ones belong to
    a box.
    """
    files = {
        entry.name
        for entry in tree.entries(annotations) or ()
        if entry.name.endswith(".xml") and not entry.folder
    }
    stems = list(_split(tree, split)) if split else sorted(name.removesuffix(".xml") for name in files)
    if not stems:
        raise BadData(
            f"{tree.named(split)} names no image" if split else f"{tree.named(annotations)} has no .xml file"
        )
    paths = [f"{annotations}/{stem}.xml" for stem in stems]
    for stem, path in zip(stems, paths, strict=True):
        if f"{stem}.xml" not in files:
            raise BadData(
                f"can't read {tree.named(path)}: there is no such file; each image of the split needs its annotations"
            )
    images = {
        entry.name.rpartition(".")[0]: entry.name
        for entry in tree.entries("") or ()
        if folders.is_image(entry.name)
    }
    parsed = [
        _parsed(tree.named(path), content) for path, content in zip(paths, tree.contents(paths), strict=True)
    ]
    named = sorted({name for objects, _ in parsed for name, _ in objects})
    classes = numbered(named, params, tree.named(annotations))
    rows = ImageRows(COLUMNS, class_names=list(classes))
    sizes = Sizes(tree, tree.named(split or annotations))
    for stem, (objects, size) in zip(stems, parsed, strict=True):
        found = [
            _Object(_of_voc(edges), classes[name], list(edges), f"{stem}.xml") for name, edges in objects
        ]
        name = images.get(stem, f"{stem}.jpg")
        rows.add(name, sizes.of(name), *_values(found, size))
    return rows


def _split(tree: Tree, path: str) -> Iterator[str]:
    (content,) = tree.contents([path])
    yield from (line.split()[0] for line in text_of(tree.named(path), content).splitlines() if line.strip())


_Objects = list[tuple[str, tuple[str, ...]]]


def _parsed(path: str, content: bytes) -> tuple[_Objects, tuple[int | None, int | None]]:
    """Return class and edges of each object of a VOC file, and width and height of its image."""
    try:
        root = ElementTree.fromstring(content)
    except ElementTree.ParseError as error:
        raise BadData(f"{path} is no whole XML: {error}; was it cut? Copy it again") from error
    if root.tag != "annotation":
        raise BadData(f"{path} is no file of VOC: it begins with <{root.tag}> instead of <annotation>")
    objects: _Objects = []
    for entry in root.iter("object"):
        name, box = entry.findtext("name", "").strip(), entry.find("bndbox")
        if not name:
            raise BadData(f"{path} has an object without a name")
        edges = tuple(
            "" if box is None else box.findtext(edge, "") for edge in ("xmin", "ymin", "xmax", "ymax")
        )
        objects.append((name, edges))
    width, height = (root.findtext(f"size/{one}", "") for one in ("width", "height"))
    return objects, (_pixels(width), _pixels(height))


def _pixels(text: str) -> int | None:
    return int(text) if text.strip().isdecimal() and len(text) < 10 and int(text) else None


def _of_voc(edges: Sequence[str]) -> Box | None:
    try:
        left, top, right, bottom = map(float, edges)
    except ValueError:
        return None
    return max(0.0, left - 1), max(0.0, top - 1), right, bottom
