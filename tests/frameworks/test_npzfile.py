"""Files of trained models of the reference framework, and what may be wrong with them."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from elasticdl.errors import BadModel
from elasticdl.worker.npzfile import read_npz


def saved(**arrays: object) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def flipped() -> bytes:
    content = bytearray(saved(weight=np.arange(1000.0)))
    content[200] ^= 1
    return bytes(content)


def with_text() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("notes.txt", "hello")
    return file.getvalue()


def alone() -> bytes:
    file = io.BytesIO()
    np.save(file, np.arange(3))
    return file.getvalue()


def test_arrays_by_name(tmp_path: Path) -> None:
    (tmp_path / "m.npz").write_bytes(saved(weight=np.array([[1.5]]), bias=np.arange(3)))
    found = read_npz(tmp_path / "m.npz")
    assert {name: array.tolist() for name, array in found.items()} == {"weight": [[1.5]], "bias": [0, 1, 2]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda: b"", "is no whole .npz file, which is a zip archive"),
        (lambda: b"a,b\n1,2\n", "is no whole .npz file, which is a zip archive"),
        (alone, "is no whole .npz file, which is a zip archive"),
        (lambda: saved(weight=np.arange(1000.0))[:-30], "is no whole .npz file, which is a zip archive"),
        (flipped, "the array 'weight' in it is damaged, or has objects of Python"),
        (
            lambda: saved(weight=np.array([{}])),
            "the array 'weight' in it is damaged, or has objects of Python",
        ),
        (with_text, "the array 'notes.txt' in it is damaged"),
    ],
    ids=["empty", "text", "one array", "cut", "another byte", "objects", "a text"],
)
def test_files_that_are_wrong(tmp_path: Path, content: Callable[[], bytes], message: str) -> None:
    (tmp_path / "m.npz").write_bytes(content())
    with pytest.raises(BadModel) as refused:
        read_npz(tmp_path / "m.npz")
    assert f"--trained_model: {tmp_path / 'm.npz'}" in str(refused.value)
    assert message in str(refused.value)
    assert "copy the file again, or give one that" in str(refused.value)
    assert "pickle" not in str(refused.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="can't be read: No such file or directory"):
        read_npz(tmp_path / "m.npz")
