"""Images: folders of classes, lists, COCO and VOC; what is in them, and what may be wrong with them."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from elasticdl.data.plan.shard import Task
from elasticdl.data.readers.imagefiles import wrong_with
from elasticdl.data.readers.madetables import MadeTables
from elasticdl.data.readers.reader import BadRecords, Reader, check_unchanged, shards_of
from elasticdl.data.readers.recordfiles import open_reader
from elasticdl.data.readers.records import Columns
from elasticdl.errors import BadData, BadSetting


def picture(number: int = 0, form: str = "PNG") -> bytes:
    pixels = np.random.default_rng(number).integers(0, 255, (12, 16, 3), np.uint8)
    file = io.BytesIO()
    PIL.Image.fromarray(pixels).save(file, form)
    return file.getvalue()


def put(path: Path, content: bytes | str = b"") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content or picture())
    return path


def opened(path: Path, tmp_path: Path, params: Mapping[str, Any] | None = None, **more: Any) -> Reader:
    return open_reader(str(path), params or {}, tmp_path / "job", **more)


def read(reader: Reader, records: Sequence[int] | None = None) -> Mapping[str, Any]:
    (shard,) = shards_of(reader)
    found = reader.read(Task(0, 0, shard, 0, shard.count), range(shard.count) if records is None else records)
    assert isinstance(found, Columns)
    assert all(len(array) == found.count for array in found.arrays.values())
    return found.arrays


# ------------------------------------------------------------------ folders


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Eight dogs and four cats, one of them deeper."""
    for number in range(8):
        put(tmp_path / f"pets/dog/{number}.jpg", picture(number, "JPEG"))
    for number in range(3):
        put(tmp_path / f"pets/cat/{number}.PNG", picture(10 + number))
    put(tmp_path / "pets/cat/more/3.png", picture(13))
    put(tmp_path / "pets/cat/.DS_Store", b"x")
    return tmp_path / "pets"


def test_a_folder_for_each_class(pets: Path, tmp_path: Path) -> None:
    reader = opened(pets, tmp_path)
    assert reader.metadata.class_names == ("cat", "dog")
    assert reader.metadata.column_dtypes == {"path": "string", "label": "int64", "image": "binary"}
    found = read(reader)
    labels = dict(zip(found["path"], found["label"].tolist(), strict=True))
    assert labels == {
        **{f"dog/{number}.jpg": 1 for number in range(8)},
        **{f"cat/{number}.PNG": 0 for number in range(3)},
        "cat/more/3.png": 0,
    }
    contents = {path: (pets / path).read_bytes() for path in labels}
    assert dict(zip(found["path"], found["image"], strict=True)) == contents


def test_the_order_is_mixed_and_the_same_for_all(pets: Path, tmp_path: Path) -> None:
    one = read(opened(pets, tmp_path))
    assert one["path"].tolist() != sorted(one["path"])
    other = read(opened(pets, tmp_path / "elsewhere"))
    assert other["path"].tolist() == one["path"].tolist()
    assert read(opened(pets, tmp_path), [5, 2])["path"].tolist() == one["path"][[5, 2]].tolist()


def test_the_list_is_made_once(pets: Path, tmp_path: Path) -> None:
    shards = shards_of(opened(pets, tmp_path))
    put(pets / "cat" / "later.png")
    check_unchanged(opened(pets, tmp_path), shards)
    with pytest.raises(BadData, match="pets has changed since the job began"):
        check_unchanged(opened(pets, tmp_path / "a pod of its own"), shards)


def test_numbers_of_classes_may_be_given(pets: Path, tmp_path: Path) -> None:
    reader = opened(pets, tmp_path, {"classes": ["fish", "dog", "cat"]})
    assert reader.metadata.class_names == ("fish", "dog", "cat")
    assert set(read(reader)["label"].tolist()) == {1, 2}
    with pytest.raises(BadData, match="has the class 'cat', which data_reader_params does not name"):
        opened(pets, tmp_path, {"classes": ["dog", "fish"]})


def test_images_without_labels(tmp_path: Path) -> None:
    put(tmp_path / "plain/b.png", picture(1))
    put(tmp_path / "plain/a.jpg", picture(2, "JPEG"))
    reader = opened(tmp_path / "plain", tmp_path)
    assert reader.metadata.column_names == ("path", "image")
    assert read(reader)["path"].tolist() == ["a.jpg", "b.png"]
    assert read(opened(tmp_path / "plain" / "*.png", tmp_path))["path"].tolist() == ["b.png"]


NOTES = ("README.md", "LICENSE", "Thumbs.db", ".DS_Store", "_labels.csv")


@pytest.mark.parametrize("place", ["", "cat"])
def test_notes_beside_classes_and_in_them(pets: Path, tmp_path: Path, place: str) -> None:
    for name in NOTES:
        put(pets / place / name, "# Pets\nThey are dogs, and cats.\n")
    assert len(read(opened(pets, tmp_path))["path"]) == 12


def test_a_class_may_be_called_as_a_note_is(pets: Path, tmp_path: Path) -> None:
    put(pets / "license" / "1.png", picture(20))
    assert opened(pets, tmp_path).metadata.class_names == ("cat", "dog", "license")


@pytest.mark.parametrize(
    ("name", "pattern"),
    [("labels.csv", "*.csv"), ("9.jpg", "*.jpg"), ("part.parquet", "*.parquet"), ("train-00001", "*")],
)
def test_data_beside_directories_of_images(pets: Path, tmp_path: Path, name: str, pattern: str) -> None:
    put(pets / name, b"a,b\n1,2\n")
    put(pets / "README")
    with pytest.raises(BadData) as refused:
        opened(pets, tmp_path)
    assert f"{pets} has directories with images, cat, dog, and beside them {name}: which of them" in str(
        refused.value
    )
    assert f"give a glob in quotes: '{pets}/{pattern}'" in str(refused.value)
    assert len(read(opened(pets, tmp_path, {"classes": ["cat", "dog"]}))["path"]) == 12


def test_a_class_without_images(pets: Path, tmp_path: Path) -> None:
    put(pets / "cow" / "README", "to be filled")
    with pytest.raises(BadData, match=f"{pets}/cow is the directory of a class and has no image; .*'cat', …"):
        opened(pets, tmp_path)
    assert opened(pets, tmp_path, {"classes": ["cat", "cow", "dog"]}).metadata.class_names == (
        "cat",
        "cow",
        "dog",
    )


def test_what_is_no_image_in_a_class(pets: Path, tmp_path: Path) -> None:
    path = put(
        pets / "cat" / "0.txt", "x"
    )  # before the first image of the first class, where names are sorted
    with pytest.raises(
        BadData, match=f"{path} is in the directory of a class and is no file with the name of an image"
    ):
        opened(pets, tmp_path)


def test_links_in_a_class(pets: Path, tmp_path: Path) -> None:
    (pets / "dog" / "linked.png").symlink_to(pets / "cat" / "1.PNG")
    assert len(read(opened(pets, tmp_path))["path"]) == 13
    (pets / "dog" / "round").symlink_to(pets / "dog")
    with pytest.raises(BadData, match=r"dog/round is in the directory of a class and is no file"):
        opened(pets, tmp_path / "other")


def test_a_fifo_in_a_class(pets: Path, tmp_path: Path) -> None:
    os.mkfifo(pets / "dog" / "pipe.png")
    with pytest.raises(BadData, match=r"pipe.png is a FIFO, and only regular files are read"):
        opened(pets, tmp_path)


def test_a_name_that_is_no_text(pets: Path, tmp_path: Path) -> None:
    (Path(os.fsdecode(os.fsencode(pets) + b"/dog/\xff.png"))).write_bytes(picture())
    with pytest.raises(BadData, match="has a name that is not text in UTF-8"):
        opened(pets, tmp_path)


def test_directories_without_images_are_no_classes(tmp_path: Path) -> None:
    put(tmp_path / "tables/1/part.csv", "a,b\n1,2\n")
    with pytest.raises(BadData, match=r"give the glob '.*/\*/\*.csv'"):
        opened(tmp_path / "tables", tmp_path)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "GIF", "BMP", "WEBP"])
def test_images_that_were_cut(form: str) -> None:
    whole = picture(form=form)
    assert wrong_with(whole) == ""
    for size in (1, len(whole) // 2, len(whole) - 1):
        assert wrong_with(whole[:size]), size
    assert wrong_with(b"") == "it is empty"
    assert "it is no image" in wrong_with(b"hello")


def test_a_jpeg_whose_small_image_is_whole() -> None:
    whole = picture(form="JPEG")
    inside = b"\xff\xe1" + (len(whole) + 2).to_bytes(2, "big") + whole
    assert wrong_with(whole[:2] + inside + whole[2:]) == ""
    assert "cut" in wrong_with(whole[:2] + inside + whole[2:-2])


def test_a_png_with_another_byte() -> None:
    whole = bytearray(picture())
    whole[60] ^= 1
    assert "another checksum" in wrong_with(bytes(whole))


def test_a_corrupt_image_is_skipped_or_named(pets: Path, tmp_path: Path) -> None:
    path = pets / "dog" / "3.jpg"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(
        BadData, match=rf"the image {path} \(record \d+ of {pets}\) is corrupt: it ends too early"
    ):
        read(opened(pets, tmp_path))
    found = read(opened(pets, tmp_path, bad_records=BadRecords(1)))
    assert len(found["path"]) == 11
    assert "dog/3.jpg" not in found["path"]


def test_an_image_that_changes_or_goes(pets: Path, tmp_path: Path) -> None:
    reader = opened(pets, tmp_path)
    put(pets / "dog" / "3.jpg", picture(3, "JPEG") + b"x")
    with pytest.raises(BadData, match=r"dog/3.jpg has changed since the job began"):
        read(reader)
    (pets / "dog" / "3.jpg").unlink()
    with pytest.raises(BadData, match=r"can't read .*dog/3.jpg: No such file"):
        read(reader)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"class": ["a"]}, "images have the parameters annotations and classes; got class"),
        ({"classes": "a"}, "classes is a list of names; got 'a'"),
        ({"classes": ["a", "a"]}, "names one twice"),
        ({"annotations": 1}, "annotations is a path; got 1"),
    ],
)
def test_parameters_that_are_wrong(pets: Path, tmp_path: Path, params: dict[str, Any], message: str) -> None:
    with pytest.raises(BadSetting, match=message):
        opened(pets, tmp_path, params)


def test_a_table_that_is_too_large_for_each_pod(pets: Path, tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"more than 0 MiB.*--data_cache"):
        opened(pets, tmp_path, made=MadeTables(tmp_path / "cache", 10))
    assert not list((tmp_path / "cache").iterdir())


# ------------------------------------------------------------------ lists


@pytest.mark.parametrize(
    ("text", "labels", "names"),
    [
        ("dog/1.jpg,dog\ncat/1.PNG,cat\n", [1, 0], ("cat", "dog")),
        ("path,label\ndog/1.jpg,7\ncat/1.PNG,3\n", [7, 3], ()),
        ("dog/1.jpg\t0.5\ncat/1.PNG\t1\n", [0.5, 1], ()),
        ("dog/1.jpg 1\n\ncat/1.PNG 0\n", [1, 0], ()),
        ('"dog/1.jpg","big, brown"\ncat/1.PNG,small\n', [0, 1], ("big, brown", "small")),
    ],
)
def test_lists(pets: Path, tmp_path: Path, text: str, labels: list[float], names: tuple[str, ...]) -> None:
    put(tmp_path / "pets.csv", text)
    reader = opened(pets, tmp_path, {"annotations": "../{name}.csv"})
    assert reader.metadata.class_names == names
    found = read(reader)
    assert found["path"].tolist() == ["dog/1.jpg", "cat/1.PNG"]
    assert found["label"].tolist() == labels
    assert found["image"][1] == (pets / "cat/1.PNG").read_bytes()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no image; write lines such as"),
        ("path,label\n", "names no image"),
        ("dog/1.jpg,dog\ncat/9.png,cat\n", "names cat/9.png, which is not in"),
        ("dog/1.jpg,dog\n../x.png,cat\n", "names ../x.png, which is not in"),
        ("dog/1.jpg,dog\ncat/1.PNG\n", "line 2 of .* has 1 field; expected a path and a label"),
        ("dog/1.jpg,dog\ncat/1.PNG,\n", "line 2 of .* has no label"),
        ("dog/1.jpg,dog\nnotes.txt,cat\n", "line 2 of .* has no path of an image"),
    ],
)
def test_lists_that_are_wrong(pets: Path, tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "list.csv"
    path.write_text(text)
    with pytest.raises(BadData, match=message):
        opened(pets, tmp_path, {"annotations": "../list.csv"})


def test_a_list_that_is_missing_or_for_a_file(pets: Path, tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"there is no .*the path begins at the directory of the images"):
        opened(pets, tmp_path, {"annotations": "list.csv"})
    with pytest.raises(BadSetting, match="give the directory of the images"):
        opened(put(tmp_path / "x.csv", "a,b\n"), tmp_path, {"annotations": "list.csv"})


# ------------------------------------------------------------------ COCO


def coco() -> dict[str, Any]:
    def box(id: int, image: int, category: int, *edges: float, crowd: int = 0) -> dict[str, Any]:
        return {"id": id, "image_id": image, "category_id": category, "bbox": list(edges), "iscrowd": crowd}

    return {
        "images": [{"id": 7 + one, "file_name": f"{one}.png", "width": 16, "height": 12} for one in range(3)],
        "categories": [{"id": 44, "name": "apple"}, {"id": 3, "name": "zebra"}],
        "annotations": [
            box(1, 7, 44, 1, 2, 3, 4),
            box(2, 9, 3, 0, 0, 16, 12),
            box(3, 7, 3, 2.5, 0, 1, 1),
            box(4, 9, 3, 0, 0, 5, 5, crowd=1),
        ],
    }


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number in range(3):
        put(tmp_path / f"photos/{number}.png", picture(number))
    put(tmp_path / "notes/photos.json", json.dumps(coco()))
    return tmp_path / "photos"


COCO = {"annotations": "../notes/{name}.json"}


def test_coco(photos: Path, tmp_path: Path) -> None:
    reader = opened(photos, tmp_path, COCO)
    assert reader.metadata.class_names == ("zebra", "apple")
    assert reader.metadata.column_dtypes == {
        "path": "string",
        "boxes": "float32[][4]",
        "classes": "int64[]",
        "image": "binary",
    }
    found = read(reader)
    assert found["path"].tolist() == ["0.png", "1.png", "2.png"]
    assert [boxes.shape for boxes in found["boxes"]] == [(2, 4), (0, 4), (1, 4)]
    assert found["boxes"][0].tolist() == [[1, 2, 4, 6], [2.5, 0, 3.5, 1]]
    assert found["boxes"][0].dtype == np.float32
    assert [classes.tolist() for classes in found["classes"]] == [[1, 0], [], [0]]
    assert found["image"][2] == (photos / "2.png").read_bytes()


Change = Callable[[dict[str, Any]], Any]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda file: file.pop("images"), "it has no list 'images'"),
        (lambda file: file["images"].clear(), "has no images"),
        (lambda file: file["images"].append(dict(file["images"][0])), "has two images with the id"),
        (lambda file: file["categories"].clear(), "has no categories"),
        (lambda file: file["annotations"][0].pop("bbox"), "in entry 0 of 'annotations', 'bbox' is missing"),
        (
            lambda file: file["annotations"][0].update(image_id=1),
            "annotation 1 is of the image 1, which is not",
        ),
        (
            lambda file: file["annotations"][0].update(category_id=1),
            "annotation 1 has the category 1, which is not",
        ),
        (lambda file: file["images"][0].update(file_name="x.png"), "names x.png, which is not in"),
    ],
)
def test_coco_files_that_are_wrong(photos: Path, tmp_path: Path, change: Change, message: str) -> None:
    file = coco()
    change(file)
    put(tmp_path / "notes/photos.json", json.dumps(file))
    with pytest.raises(BadData, match=message):
        opened(photos, tmp_path, COCO)


@pytest.mark.parametrize("text", ["{", "", "[]"])
def test_annotations_that_are_no_coco(photos: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "notes/photos.json").write_text(text)
    with pytest.raises(BadData, match=r"photos.json is no (whole JSON|COCO file)"):
        opened(photos, tmp_path, COCO)


@pytest.mark.parametrize(
    ("box", "why"),
    [
        ([1, 1, 0, 5], "has no area"),
        ([1, 1, 5, -5], "has no area"),
        ([10, 1, 16, 1], "is not inside of the image, which has 16 × 12 pixels"),
        ([1, 1, 1], "is not four numbers"),
        ([1, 1, "a", 1], "is not four numbers"),
        ([1, 1, float("nan"), 1], "is not four numbers"),
    ],
)
def test_a_corrupt_box_makes_a_corrupt_image(photos: Path, tmp_path: Path, box: list[Any], why: str) -> None:
    file = coco()
    file["annotations"][2]["bbox"] = box
    put(tmp_path / "notes/photos.json", json.dumps(file))
    with pytest.raises(
        BadData, match=rf"0.png .* is corrupt: its box .* {why} \(in annotation 3 of photos.json\)"
    ):
        read(opened(photos, tmp_path, COCO))
    found = read(opened(photos, tmp_path, COCO, bad_records=BadRecords(1)))
    assert found["path"].tolist() == ["1.png", "2.png"]


# ------------------------------------------------------------------ VOC


def objects(*boxes: tuple[str, object, object, object, object]) -> str:
    edges = ("xmin", "ymin", "xmax", "ymax")
    inside = "".join(
        f"<object><name>{name}</name><bndbox>"
        + "".join(f"<{edge}>{at}</{edge}>" for edge, at in zip(edges, box, strict=True))
        + "</bndbox></object>"
        for name, *box in boxes
    )
    return f"<annotation><size><width>16</width><height>12</height></size>{inside}</annotation>"


@pytest.fixture
def voc(tmp_path: Path) -> Path:
    for number in range(3):
        put(tmp_path / f"VOC/JPEGImages/00{number}.jpg", picture(number, "JPEG"))
    put(tmp_path / "VOC/Annotations/000.xml", objects(("dog", 1, 1, 16, 12), ("cat", 3, 4, 5, 6)))
    put(tmp_path / "VOC/Annotations/001.xml", objects())
    put(tmp_path / "VOC/Annotations/002.xml", objects(("cat", 1, 2, 3, 4)))
    put(tmp_path / "VOC/ImageSets/Main/train.txt", "002 1\n000 -1\n")
    return tmp_path / "VOC"


def test_voc(voc: Path, tmp_path: Path) -> None:
    reader = opened(voc, tmp_path)
    assert reader.metadata.class_names == ("cat", "dog")
    found = read(reader)
    assert found["path"].tolist() == ["000.jpg", "001.jpg", "002.jpg"]
    assert found["boxes"][0].tolist() == [[0, 0, 16, 12], [2, 3, 5, 6]]
    assert [classes.tolist() for classes in found["classes"]] == [[1, 0], [], [0]]


def test_a_split_of_voc(voc: Path, tmp_path: Path) -> None:
    found = read(opened(voc / "ImageSets/Main/train.txt", tmp_path))
    assert found["path"].tolist() == ["002.jpg", "000.jpg"]


def test_annotations_of_voc_beside_images(voc: Path, tmp_path: Path) -> None:
    found = read(opened(voc / "JPEGImages", tmp_path, {"annotations": "../Annotations"}))
    assert len(found["boxes"]) == 3


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("Annotations/000.xml", "<annotation>", "000.xml is no whole XML"),
        ("Annotations/000.xml", "<html></html>", "begins with <html> instead of <annotation>"),
        ("Annotations/000.xml", "<annotation><object/></annotation>", "has an object without a name"),
        ("Annotations/009.xml", objects(), "names 009.jpg, which is not in"),
        ("ImageSets/Main/train.txt", "007\n", "can't read .*007.xml: there is no such file"),
        ("ImageSets/Main/train.txt", "\n", "train.txt names no image"),
    ],
)
def test_voc_that_is_wrong(voc: Path, tmp_path: Path, name: str, text: str, message: str) -> None:
    put(voc / name, text)
    with pytest.raises(BadData, match=message):
        opened(voc / name if "Sets" in name else voc, tmp_path)


def test_a_corrupt_box_of_voc(voc: Path, tmp_path: Path) -> None:
    put(voc / "Annotations/001.xml", objects(("dog", "x", 1, 2, 3)))
    with pytest.raises(
        BadData, match=r"001.jpg .* is corrupt: its box .* is not four numbers \(in 001.xml\)"
    ):
        read(opened(voc, tmp_path))
