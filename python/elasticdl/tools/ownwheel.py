"""The wheel of the elasticdl that runs here, made again from what its installation wrote down.

An installer lists every file of a wheel, with its hash, in RECORD, and keeps the wheel's tags in WHEEL (PyPA specifications "Recording
installed projects" and "Binary distribution format"). So an image gets exactly what runs here, from this machine: a name and a version
alone could mean another package, since anybody can claim a name in a package index.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import zipfile
from importlib.metadata import Distribution, PackagePath, distribution
from pathlib import Path

from elasticdl.errors import BadSetting

_PACKAGE = "elasticdl"
_INSTALLERS = frozenset({"INSTALLER", "RECORD", "REQUESTED", "direct_url.json", "uv_cache.json"})
"""Files of `.dist-info` that installers write, and wheels don't have."""
_ADVICE = "name a wheel of it with --wheel; `make wheel` in a clone makes one in dist/"
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip archive knows, so that the same installation gives the same wheel."""


def make(folder: Path) -> Path:
    """Write the wheel of this installation into `folder` and return its path.

    Raises BadSetting if it can't be made: from an editable installation, or one whose files have been changed.
    """
    here = distribution(_PACKAGE)
    contents = {path: _content(here, path) for path in _files(here)}
    name = f"{_PACKAGE}-{here.version}"
    record = io.StringIO()
    lines = csv.writer(record, lineterminator="\n")
    target = folder / f"{name}-{_tag(here)}.whl"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as wheel:
        for path, content in contents.items():
            _put(wheel, path.as_posix(), content)
            lines.writerow([path.as_posix(), f"sha256={_hash('sha256', content)}", len(content)])
        lines.writerow([f"{name}.dist-info/RECORD", "", ""])
        _put(wheel, f"{name}.dist-info/RECORD", record.getvalue().encode())
    return target


def _files(here: Distribution) -> list[PackagePath]:
    """Return the files of the wheel: all but those that an installer adds. Raises BadSetting."""
    found = []
    for path in here.files or []:
        in_info = path.parts[0].endswith(".dist-info")
        if "__pycache__" in path.parts or (in_info and path.name in _INSTALLERS):
            continue
        if path.parts[0] == "..":  # commands, which installers make from entry_points.txt
            continue
        found.append(path)
    if not any(path.as_posix() == f"{_PACKAGE}/__init__.py" for path in found):
        raise BadSetting(
            "--wheel is needed: the elasticdl that runs here is an editable installation (its files are those of a clone), of which no "
            f"wheel can be made again; {_ADVICE}"
        )
    return found


def _content(here: Distribution, path: PackagePath) -> bytes:
    """Return the content of a file as it was installed. Raises BadSetting if it is another now."""
    try:
        content = Path(str(here.locate_file(path))).read_bytes()
    except OSError as error:
        raise BadSetting(
            f"--wheel is needed: {path} of the installed elasticdl can't be read ({error.strerror}); {_ADVICE}"
        ) from None
    if path.hash is None or _hash(path.hash.mode, content) != path.hash.value:
        raise BadSetting(
            f"--wheel is needed: {path} of the installed elasticdl is not what was installed (its hash is not that in RECORD); {_ADVICE}"
        )
    return content


def _tag(here: Distribution) -> str:
    """Return the tags of the wheel as they stand in its file name. Raises BadSetting."""
    tags = re.findall(r"^Tag: ([\w.]+)-([\w.]+)-([\w.]+)$", here.read_text("WHEEL") or "", re.MULTILINE)
    if not tags:
        raise BadSetting(
            f"--wheel is needed: the installed elasticdl does not say for which machines it is; {_ADVICE}"
        )
    return "-".join(".".join(dict.fromkeys(part)) for part in zip(*tags, strict=True))


def _hash(name: str, content: bytes) -> str:
    digest = hashlib.new(name, content).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _put(wheel: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
    wheel.writestr(entry, content)
