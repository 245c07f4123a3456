"""Which images data stands for, and what says what is in them.

It looks at names of files and directories only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from elasticdl.errors import BadData, BadSetting
from elasticdl.files import folders


class Form(StrEnum):
    """How it is known what is in images."""

    FOLDERS = "a directory for each class"
    LIST = "a list of paths and labels"
    COCO = "a COCO file"
    VOC = "files of Pascal VOC"
    PLAIN = "not at all"


@dataclass(frozen=True, slots=True)
class ImageOrigin:
    """Images that are meant.

    Attributes:
        form: how it is known what is in them.
        root: where their paths begin.
        annotations: the file or directory that says what is in them; the root if none does.
        names: the file that says which images of VOC are meant; None: all that have annotations.
        files: the images, of form PLAIN.
    """

    form: Form
    root: Path
    annotations: Path
    names: Path | None = None
    files: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class ImageParams:
    """Parameters of the readers of images.

    Attributes:
        annotations: what says what is in the images, from their directory on; empty: the directories that they lie in.
        classes: the classes in the order of their numbers; empty: those of the data, sorted.
    """

    annotations: str = ""
    classes: tuple[str, ...] = ()


def image_params(params: Mapping[str, Any]) -> ImageParams:
    """Read `data_reader_params` of images. Raises BadSetting."""
    known = ("annotations", "classes")
    for name in params:
        if name not in known:
            raise BadSetting(
                f"data_reader_params: images have the parameters annotations and classes; got {name}"
            )
    annotations = params.get("annotations", "")
    if not isinstance(annotations, str):
        raise BadSetting(f"data_reader_params: annotations is a path; got {annotations!r}")
    classes = params.get("classes", ())
    if not isinstance(classes, list | tuple) or not all(isinstance(name, str) for name in classes):
        raise BadSetting(f"data_reader_params: classes is a list of names; got {classes!r}")
    if len(set(classes)) < len(classes):
        raise BadSetting(f"data_reader_params: classes names one twice; got {classes!r}")
    return ImageParams(annotations, tuple(classes))


def image_origin(origin: str, params: Mapping[str, Any]) -> ImageOrigin | None:
    """Return the images that data stands for; None if it is no images. Raises BadData or BadSetting."""
    root = Path(origin).absolute()
    if "annotations" in params:
        return _annotated(origin, root, image_params(params).annotations)
    if folders.is_voc(root):
        return ImageOrigin(Form.VOC, root / "JPEGImages", root / "Annotations")
    if voc := folders.voc_of_split(root):
        return ImageOrigin(Form.VOC, voc / "JPEGImages", voc / "Annotations", root)
    try:
        if folders.class_folders(origin):
            return ImageOrigin(Form.FOLDERS, root, root)
        files = sorted(path.absolute() for path in folders.find(origin))
    except OSError as error:
        raise BadData(f"can't look for data at {origin}: {error.strerror}") from error
    if not files or not all(folders.is_image(path.name) for path in files):
        return None
    common = Path(os.path.commonpath([path.parent for path in files]))
    return ImageOrigin(Form.PLAIN, common, common, files=tuple(files))


def _annotated(origin: str, root: Path, annotations: str) -> ImageOrigin:
    if not root.is_dir():
        raise BadSetting(
            f"data_reader_params: annotations belong to the images of a directory; {origin} is none, so give the directory of the images"
        )
    path = root / annotations.replace("{name}", root.name)
    if path.is_dir():
        return ImageOrigin(Form.VOC, root, path)
    if not path.is_file():
        raise BadData(
            f"annotations={annotations!r}: there is no {path}; the path begins at the directory of the images, and {{name}} stands for "
            "that directory's name"
        )
    return ImageOrigin(Form.COCO if path.suffix.lower() == ".json" else Form.LIST, root, path)
