"""The model zoo that travels with a job: what is packed, and what is refused."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from elasticdl.errors import BadSetting
from elasticdl.spec.podplace import pack_zoo


def test_of_a_link_its_file_is_packed(tmp_path: Path) -> None:
    zoo = tmp_path / "zoo"
    zoo.mkdir()
    (tmp_path / "shared.py").write_text("x = 1\n")
    (zoo / "model.py").symlink_to(tmp_path / "shared.py")
    packed = pack_zoo(zoo, 10_000)
    assert packed == pack_zoo(zoo, 10_000)
    with tarfile.open(fileobj=io.BytesIO(packed)) as files:
        (entry,) = files
        content = files.extractfile(entry)
        assert entry.isfile()
        assert content is not None
        assert content.read() == b"x = 1\n"


def test_packing_ends_at_the_first_file_that_is_too_much(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(os.urandom(300_000))
    (tmp_path / "b.py").write_bytes(os.urandom(300_000))
    (tmp_path / "c.py").symlink_to("/proc/self/mem")  # nobody gets as far as this
    with pytest.raises(BadSetting, match=r"more than the 400,000 bytes .* \(up to b.py\)"):
        pack_zoo(tmp_path, 400_000)


def test_a_file_that_can_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.py").symlink_to("/proc/self/mem")
    with pytest.raises(BadSetting, match=r"a.py can't be read: "):
        pack_zoo(tmp_path, 1000)
