"""Images on servers: which are meant by a URL, and their names, sizes and contents.

The images of a chunk are asked for together. A server that does not tell sizes with names, as HTTP, is asked once for each image, many at
a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from elasticdl.data.readers.imageorigins import (
    Form,
    ImageOrigin,
    image_classes,
    image_params,
    of_annotations,
)
from elasticdl.data.readers.imagetrees import Entry
from elasticdl.data.readers.patience import may_pass
from elasticdl.errors import BadSetting
from elasticdl.files import folders

_Answer = TypeVar("_Answer")


class FileServer(Protocol):
    """A server of files (`remotefiles.Server`)."""

    path: str

    def url(self, path: str) -> str:
        """Return the whole URL of a path."""

    def ask(self, path: str, ask: Callable[[Any], _Answer]) -> _Answer:
        """Ask the server until it answers. Raises BadData."""

    def together(self, paths: Sequence[str], ask: Callable[[Any, list[str]], list[_Answer]]) -> list[_Answer]:
        """Ask about several files at once. Raises BadData."""

    def sizes(self, paths: Sequence[str]) -> list[int]:
        """Return the bytes of files. Raises BadData."""


class RemoteTree:
    """A directory on a server."""

    def __init__(self, server: FileServer, root: str) -> None:
        """`root`: its path there."""
        self._server, self._root = server, root
        self._known: dict[str, list[Entry] | None] = {}

    def named(self, path: str) -> str:
        """Return the URL."""
        return self._server.url(self._whole(path))

    def entries(self, path: str) -> list[Entry] | None:
        """Return what is in a directory, by name; None if there is none. Raises BadData."""
        whole = self._whole(path)
        if whole not in self._known:
            self._known[whole] = self._listed(whole)
        return self._known[whole]

    def is_file(self, path: str) -> bool:
        """Tell a file from a directory."""
        parent, _, name = self._whole(path).rpartition("/")
        if parent not in self._known:
            self._known[parent] = self._listed(parent)
        return any(entry.name == name and not entry.folder for entry in self._known[parent] or ())

    def contents(self, paths: Sequence[str]) -> list[bytes]:
        """Return the contents of files, asked for together. Raises BadData."""
        return self._server.together(list(map(self._whole, paths)), contents)

    def below(self, path: str) -> RemoteTree:
        """Return a directory that can be reached from this one."""
        return RemoteTree(self._server, self._whole(path))

    def _whole(self, path: str) -> str:
        # Not by posixpath, which would make one slash of the two in a URL.
        parts = self._root.rstrip("/").split("/")
        for part in path.split("/"):
            if part == "..":
                del parts[-1:]
            elif part:
                parts.append(part)
        return "/".join(parts)

    def _listed(self, whole: str) -> list[Entry] | None:
        def ask(files: Any) -> list[tuple[str, str, Any]] | None:
            try:
                found = files.ls(whole, detail=True)
            except (FileNotFoundError, NotADirectoryError) as error:
                if may_pass(error):
                    raise
                return None
            return [(entry["name"], entry["type"], entry.get("size")) for entry in found]

        listed = self._server.ask(whole, ask)
        if listed is None or [path.rstrip("/") for path, _, _ in listed] == [whole]:
            return None  # of a file there is itself
        # Without an object that stands for the directory itself.
        listed = [entry for entry in listed if entry[0].rstrip("/") != whole]
        sizes = {path: size for path, kind, size in listed if kind != "directory"}
        unsaid = [path for path, size in sizes.items() if not isinstance(size, int)]
        sizes.update(zip(unsaid, self._server.sizes(unsaid), strict=True))
        found = [
            Entry(path.rstrip("/").rpartition("/")[2], kind == "directory", sizes.get(path))
            for path, kind, _ in listed
        ]
        return sorted(found, key=lambda entry: entry.name)


def contents(
    files: Any, paths: list[str], starts: list[int] | None = None, ends: list[int] | None = None
) -> list[bytes]:
    """Fetch files of a file system of fsspec, or a part of each, together. Raises what it raises."""
    found = files.cat_ranges(paths, starts, ends)
    for content in found:
        if isinstance(content, Exception):  # some of them return what they should raise
            raise content
    return list(map(bytes, found))


def remote_image_origin(
    server: FileServer, origin: str, params: Mapping[str, Any], files: Sequence[str], is_folder: bool
) -> ImageOrigin | None:
    """Return the images that a URL stands for; None if it is no images.

    Args:
        server: where it points to.
        origin: the URL.
        params: of the readers.
        files: the paths of the files that it stands for; of a directory, those in it.
        is_folder: whether it is one.

    Raises BadData or BadSetting.
    """
    root = server.path.rstrip("/")
    tree = RemoteTree(server, root)
    if "annotations" in params:
        if not is_folder:
            raise BadSetting(
                f"--data_reader_params: annotations belong to the images of a directory; {origin} is none, so give the directory of the "
                "images"
            )
        given = image_params(params).annotations
        path = given.replace("{name}", root.rpartition("/")[2])
        is_file = tree.is_file(path) or (None if tree.entries(path) is None else False)
        return of_annotations(tree, given, path, is_file)
    if is_folder and _is_voc(tree):
        return ImageOrigin(Form.VOC, tree.below("JPEGImages"), "../Annotations")
    parts = root.split("/")
    if root.endswith(".txt") and len(parts) > 3 and parts[-3] == "ImageSets":
        voc = RemoteTree(server, "/".join(parts[:-3]))
        if _is_voc(voc):
            return ImageOrigin(
                Form.VOC, voc.below("JPEGImages"), "../Annotations", "/".join(["..", *parts[-3:]])
            )
    if is_folder and (classes := _classes(tree, origin, image_classes(params))):
        return ImageOrigin(Form.FOLDERS, tree, classes=classes)
    if not files or not all(map(folders.is_image, files)):
        return None
    common = files[0]
    while common and not all(path.startswith(f"{common}/") for path in files):
        common = common.rpartition("/")[0]
    return ImageOrigin(
        Form.PLAIN,
        RemoteTree(server, common),
        files=tuple(path.removeprefix(f"{common}/") for path in files),
    )


def _is_voc(tree: RemoteTree) -> bool:
    inside = {entry.name for entry in tree.entries("") or () if entry.folder}
    return {"JPEGImages", "Annotations"} <= inside


def _classes(tree: RemoteTree, origin: str, given: Sequence[str]) -> tuple[str, ...]:
    """Return the directories of classes, as `folders.class_folders` does of this machine. Raises BadData."""
    inside = [entry for entry in tree.entries("") or () if folders.is_data(entry.name)]
    names = tuple(entry.name for entry in inside if entry.folder)
    first = next(filter(None, (_first_file(tree, name) for name in names)), "")
    if not folders.is_image(first):
        return ()
    if not given:
        folders.check_beside(origin, names, [entry.name for entry in inside if not entry.folder])
    return names


def _first_file(tree: RemoteTree, folder: str) -> str:
    """Return the name of the first file of data in a directory or below, an image if there is one; empty if there is no file."""
    inside = [entry for entry in tree.entries(folder) or () if folders.is_data(entry.name)]
    files = [entry.name for entry in inside if not entry.folder and not folders.is_note(entry.name)]
    here = next(filter(folders.is_image, files), "") or next(iter(files), "")
    return here or next(
        filter(None, (_first_file(tree, f"{folder}/{entry.name}") for entry in inside if entry.folder)), ""
    )
