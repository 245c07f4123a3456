"""Which images data stands for, and what says what is in them.

It looks at names of files and directories only. For those on servers, `remoteimages.py` asks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from elasticdl.data.readers.imagetrees import LocalTree, Tree
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
        tree: where their paths begin.
        annotations: the file or directory that says what is in them; empty if none does.
        names: the file that says which images of VOC are meant; empty: all that have annotations.
        classes: the directories of classes, of form FOLDERS.
        files: the images, of form PLAIN.
    """

    form: Form
    tree: Tree
    annotations: str = ""
    names: str = ""
    classes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


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
                f"--data_reader_params: images have the parameters annotations and classes; got {name}"
            )
    annotations = params.get("annotations", "")
    if not isinstance(annotations, str):
        raise BadSetting(f"--data_reader_params: annotations is a path; got {annotations!r}")
    classes = params.get("classes", ())
    if not isinstance(classes, list | tuple) or not all(isinstance(name, str) for name in classes):
        raise BadSetting(f"--data_reader_params: classes is a list of names; got {classes!r}")
    if len(set(classes)) < len(classes):
        raise BadSetting(f"--data_reader_params: classes names one twice; got {classes!r}")
    return ImageParams(annotations, tuple(classes))


def image_classes(params: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of classes that `data_reader_params` gives, which only images have; none if it gives no list."""
    classes = params.get("classes")
    return tuple(classes) if isinstance(classes, list | tuple) else ()


def image_origin(origin: str, params: Mapping[str, Any]) -> ImageOrigin | None:
    """Return the images that data stands for; None if it is no images. Raises BadData or BadSetting."""
    root = Path(origin).absolute()
    if "annotations" in params:
        return _annotated(origin, root, image_params(params).annotations)
    if folders.is_voc(root):
        return _voc(root)
    if voc := folders.voc_of_split(root):
        return _voc(voc, str(root))
    try:
        if classes := folders.class_folders(origin, image_classes(params)):
            return ImageOrigin(
                Form.FOLDERS, LocalTree(root), classes=tuple(folder.name for folder in classes)
            )
        files = sorted(path.absolute() for path in folders.find(origin))
    except OSError as error:
        raise BadData(f"can't look for data at {origin}: {error.strerror}") from error
    if not files or not all(folders.is_image(path.name) for path in files):
        return None
    common = Path(os.path.commonpath([path.parent for path in files]))
    return ImageOrigin(
        Form.PLAIN, LocalTree(common), files=tuple(os.path.relpath(path, common) for path in files)
    )


def _voc(voc: Path, names: str = "") -> ImageOrigin:
    return ImageOrigin(Form.VOC, LocalTree(voc / "JPEGImages"), str(voc / "Annotations"), names)


def _annotated(origin: str, root: Path, annotations: str) -> ImageOrigin:
    if not root.is_dir():
        raise BadSetting(
            f"--data_reader_params: annotations belong to the images of a directory; {origin} is none, so give the directory of the images"
        )
    path = root / annotations.replace("{name}", root.name)
    is_file = None if not path.exists() else path.is_file()
    return of_annotations(LocalTree(root), annotations, str(path), is_file)


def of_annotations(tree: Tree, given: str, path: str, is_file: bool | None) -> ImageOrigin:
    """Return the images of a directory with their annotations.

    Args:
        tree: the directory.
        given: the parameter.
        path: what it stands for.
        is_file: whether that is a file; None if it is not there.

    Raises BadData.
    """
    if is_file is None:
        raise BadData(
            f"annotations={given!r}: there is no {tree.named(path)}; the path begins at the directory of the images, and {{name}} stands "
            "for that directory's name"
        )
    if not is_file:
        return ImageOrigin(Form.VOC, tree, path)
    return ImageOrigin(Form.COCO if path.lower().endswith(".json") else Form.LIST, tree, path)
