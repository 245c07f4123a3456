"""A process takes only what its launcher has opened for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elasticdl.cluster.local import inherited, parentdeath
from elasticdl.errors import BadSetting


def test_a_descriptor_is_known_by_its_inode(tmp_path: Path) -> None:
    with (tmp_path / "a").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        said = inherited.written(file.fileno())
        assert inherited.found(said) == file.fileno()
        assert not os.get_inheritable(file.fileno())
        with (tmp_path / "b").open("w") as other:
            os.dup2(other.fileno(), file.fileno())
        assert inherited.found(said) is None
    assert inherited.found(said) is None


def test_a_program_that_a_worker_has_started_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = os.pipe()
    monkeypatch.setenv(parentdeath.ENVIRONMENT, inherited.written(near))
    for end in (near, far):
        os.close(end)
    with pytest.raises(BadSetting, match=r"has to become it \(`exec`\)"):
        parentdeath.watch_parent()
