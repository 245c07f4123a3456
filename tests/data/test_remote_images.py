"""Images on servers: the same as here, whatever says what is in them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from elasticdl.data.plan.shard import Task
from elasticdl.data.readers.reader import Reader, shards_of
from elasticdl.data.readers.recordfiles import open_reader
from elasticdl.data.readers.records import Columns
from elasticdl.errors import BadData, BadSetting
from tests.httpfiles import Files, serving

LABELS = [f"{number % 7}.5" for number in range(12)]


def image(path: Path, name: str) -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / name).write_bytes(b"GIF89a" + name.encode() + b";")


def classes(root: Path) -> tuple[str, dict[str, Any]]:
    for number in range(12):
        image(root / "data" / ("odd" if number % 2 else "even/deeper"), f"{number}.gif")
    (root / "data" / "odd" / "_notes").touch()
    return "data/", {}


def plain(root: Path) -> tuple[str, dict[str, Any]]:
    for number in range(12):
        image(root / "data", f"{number}.gif")
    return "data/", {}


def listed(root: Path) -> tuple[str, dict[str, Any]]:
    plain(root)
    lines = (f"{number}.gif,{label}\n" for number, label in enumerate(LABELS))
    (root / "labels.txt").write_text("".join(lines))
    return "data/", {"annotations": "../labels.txt"}


def coco(root: Path) -> tuple[str, dict[str, Any]]:
    plain(root)
    content = {
        "images": [{"id": number, "file_name": f"{number}.gif"} for number in range(12)],
        "categories": [{"id": 1, "name": "thing"}],
        "annotations": [
            {"id": number, "image_id": number, "category_id": 1, "bbox": [number, 0, 3, 4]}
            for number in range(0, 12, 2)
        ],
    }
    (root / "more").mkdir()
    (root / "more" / "of_data.json").write_text(json.dumps(content))
    return "data/", {"annotations": "../more/of_{name}.json"}


def voc(root: Path) -> tuple[str, dict[str, Any]]:
    for number in range(12):
        image(root / "data" / "JPEGImages", f"{number}.gif")
        box = "".join(
            f"<{edge}>{number + 1 + at}</{edge}>" for at, edge in enumerate(("xmin", "ymin", "xmax", "ymax"))
        )
        (root / "data" / "Annotations").mkdir(exist_ok=True)
        (root / "data" / "Annotations" / f"{number}.xml").write_text(
            f"<annotation><object><name>thing</name><bndbox>{box}</bndbox></object></annotation>"
        )
    return "data/", {}


def split(root: Path) -> tuple[str, dict[str, Any]]:
    voc(root)
    (root / "data" / "ImageSets" / "Main").mkdir(parents=True)
    (root / "data" / "ImageSets" / "Main" / "train.txt").write_text("7\n3 1\n")
    return "data/ImageSets/Main/train.txt", {}


Write = Callable[[Path], tuple[str, dict[str, Any]]]
each_form = pytest.mark.parametrize(
    "write", [classes, plain, listed, coco, voc, split], ids=lambda write: write.__name__
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Files]:
    (tmp_path / "served").mkdir()
    with serving(tmp_path / "served") as server:
        yield server


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    files = fsspec.filesystem("memory")
    yield files
    files.rm("/", recursive=True)


def rows(reader: Reader) -> list[dict[str, Any]]:
    (shard,) = shards_of(reader)
    found = reader.read(Task(0, 0, shard, 0, shard.count), range(shard.count))
    assert isinstance(found, Columns)
    return [
        {
            name: getattr(column[row], "tolist", lambda value=column[row]: value)()
            for name, column in found.arrays.items()
        }
        for row in range(len(found))
    ]


@each_form
def test_the_same_images(
    tmp_path: Path, server: Files, memory: fsspec.AbstractFileSystem, write: Write
) -> None:
    what, params = write(server.root)
    local = open_reader(str(server.root / what), params, tmp_path / "job")
    memory.put(f"{server.root}/", "/", recursive=True)
    for origin in (f"{server.url}/{what}", f"memory://{what}"):
        remote = open_reader(origin, params, tmp_path / "job")
        assert remote.metadata == local.metadata
        assert [(shard.name, shard.count) for shard in shards_of(remote)] == [
            (origin, shards_of(local)[0].count)
        ]
        assert rows(remote) == rows(local)


def test_images_that_are_wrong(tmp_path: Path, server: Files) -> None:
    what, _ = classes(server.root)
    origin, path = f"{server.url}/{what}", server.root / "data" / "odd" / "3.gif"
    reader = open_reader(origin, {}, tmp_path / "job")
    rows(reader)
    whole = path.read_bytes()
    path.write_bytes(whole + b";")
    with pytest.raises(BadData, match=rf"{server.url}/data/odd/3.gif has changed since the job began"):
        rows(reader)
    path.unlink()
    with pytest.raises(BadData, match=r"/odd/3.gif does not exist; images must not change while a job runs"):
        rows(reader)
    path.write_bytes(whole[:-1])
    with pytest.raises(BadData, match=r"the image .*/odd/3.gif .* is corrupt: it ends too early"):
        rows(open_reader(origin, {}, tmp_path / "again"))
    path.rename(path.with_suffix(".txt"))
    with pytest.raises(BadData, match=r"/odd/3.txt is in the directory of a class and is no file"):
        open_reader(origin, {}, tmp_path / "more")


def test_what_lies_beside_classes(tmp_path: Path, server: Files) -> None:
    what, _ = classes(server.root)
    origin, beside = f"{server.url}/{what}", server.root / "data" / "labels.csv"
    beside.write_text("a,b\n")
    with pytest.raises(BadData, match=r"even, odd, and beside them labels.csv: .* give the URL of one\."):
        open_reader(origin, {}, tmp_path / "job")
    given = open_reader(origin, {"classes": ["odd", "even"]}, tmp_path / "job")
    beside.rename(beside.with_name("README.md"))
    assert len(rows(open_reader(origin, {}, tmp_path / "job"))) == len(rows(given)) == 12


def test_annotations_that_are_wrong(tmp_path: Path, server: Files) -> None:
    what, _ = plain(server.root)
    with pytest.raises(
        BadData, match=rf"there is no {server.url}/labels.txt; the path begins at the directory"
    ):
        open_reader(f"{server.url}/{what}", {"annotations": "../labels.txt"}, tmp_path / "job")
    with pytest.raises(BadSetting, match="give the directory of the images"):
        open_reader(f"{server.url}/data/1.gif", {"annotations": "../labels.txt"}, tmp_path / "job")


def test_voc_that_is_wrong(tmp_path: Path, server: Files) -> None:
    what, _ = split(server.root)
    (server.root / "data" / "JPEGImages" / "3.gif").unlink()
    with pytest.raises(
        BadData, match=rf"train.txt names 3.jpg, which is not in {server.url}/data/JPEGImages"
    ):
        open_reader(f"{server.url}/{what}", {}, tmp_path / "job")
    (server.root / "data" / "Annotations" / "7.xml").unlink()
    with pytest.raises(BadData, match=r"/Annotations/7.xml: there is no such file; each image of the split"):
        open_reader(f"{server.url}/{what}", {}, tmp_path / "job")
