"""Models by name: versions that are whole or not there."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from elasticdl.errors import BadSetting
from elasticdl.query.registry import COMMIT, Store, Version, store_of, version_name


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def made(store: Store, name: str, number: int = 1) -> Version:
    with store.begin(name) as entry:
        (entry.directory / "model.keras").write_bytes(b"x")
        return entry.commit({"number": number})


def killed(act: Callable[[], object]) -> None:
    """Let a process do something, and be killed then."""
    child = os.fork()
    if not child:
        act()
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


def test_versions(store: Store) -> None:
    versions = [made(store, "my.model", number) for number in range(3)]
    made(store, "other")
    assert [one.json["number"] for one in store.versions("my%")] == [0, 1, 2]
    assert [str(one) for one in store.versions()][:3] == [str(one) for one in versions]
    assert store.find("my.model") == versions[2]
    assert store.find(f"my.model@{versions[0].version}") == versions[0]
    assert {path.name for path in versions[0].directory.iterdir()} == {"model.keras", COMMIT}
    for directory in (store.path, store.path / "my.model", versions[0].directory):
        assert directory.stat().st_mode & 0o777 == 0o700
    assert store.versions("my_model") == store.versions("my.model") != store.versions("MY%") == ()


def test_a_prefix_that_is_no_pin(store: Store) -> None:
    one, two = made(store, "m"), made(store, "m")
    same = one.version[:8]
    with pytest.raises(
        BadSetting,
        match=rf"m@{same} may be m@{one.version}, m@{two.version}; write more of the version, or m for",
    ):
        store.find(f"m@{same}")


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("incom_model", "there is no model incom_model in .*; did you mean income_model?"),
        ("x", "there is no model x in .*; SHOW MODELS lists them"),
        ("income_model@1999", "has no version that begins with '1999'; it has 20"),
        ("../x", "can't be the name of a model"),
        (".work", "can't be the name of a model"),
        ("a" * 65, "can't be the name of a model"),
        ("模型", "can't be the name of a model"),
    ],
)
def test_references_that_are_refused(store: Store, reference: str, says: str) -> None:
    made(store, "income_model")
    for asked in (store.find, store.drop):
        with pytest.raises(BadSetting, match=says):
            asked(reference)
    assert len(store.versions()) == 1


def test_a_store_that_is_not_there(store: Store) -> None:
    assert store.versions() == ()
    with pytest.raises(BadSetting, match="there is none yet"):
        store.find("m")
    assert not store.path.exists()


def test_drop(store: Store) -> None:
    one, two = made(store, "m"), made(store, "m")
    assert store.drop(f"m@{one.version}") == 1
    assert store.find("m") == two
    assert store.drop("m") == 1
    assert store.versions() == ()
    assert not (store.path / "m").exists()


def test_a_version_that_cannot_be_read_hides_no_other_and_can_be_dropped(store: Store) -> None:
    good, broken, empty = made(store, "a"), made(store, "b"), made(store, "c")
    (broken.directory / COMMIT).write_text("")
    (empty.directory / COMMIT).write_text("{}")
    assert [str(one) for one in store.versions()] == [str(good), str(broken), str(empty)]
    unread = rf"^the model {{}} can't be read: {store.path}/.*/model\.json: {{}}; DROP MODEL {{}} removes it$"
    for reference in ("b", str(broken)):
        with pytest.raises(BadSetting, match=unread.format(broken, "Expecting value.*", broken)):
            store.find(reference)
    with pytest.raises(BadSetting, match=unread.format(empty, "there is no 'columns'", empty)):
        store.find("c").json["columns"]
    assert store.drop(str(broken)) == store.drop("c") == 1
    assert store.versions() == (good,)


def test_who_is_killed_before_the_commit_leaves_no_version(store: Store) -> None:
    first = made(store, "m")

    def begin() -> None:
        (store.begin("m").directory / "model.keras").write_bytes(b"half")

    killed(begin)
    left = [path for path in (store.path / "m").iterdir() if path != first.directory]
    assert len(left) == 1
    assert store.versions() == (first,)
    with store.begin("m") as held:
        assert not left[0].exists()
        other = made(store, "m")  # what is being made stays
        assert held.directory.is_dir()
        assert held.commit({}).version < other.version
    assert store.find("m") == other


def test_an_error_leaves_no_version(store: Store) -> None:
    def fail() -> None:
        with store.begin("m") as entry:
            (entry.directory / "model.keras").write_bytes(b"x")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert store.versions() == ()
    assert list((store.path / "m").iterdir()) == []


def test_work_is_removed_unless_it_is_kept(store: Store) -> None:
    with store.work() as done:
        (done.directory / "rows").mkdir()
        assert done.directory.stat().st_mode & 0o777 == 0o700
    assert not done.directory.exists()
    with store.work() as failed:
        failed.keep("the job failed")
    killed(store.work)
    with store.work() as running, store.work() as beside:
        there = {path.name for path in (store.path / ".work").iterdir()}
        assert there == {failed.directory.name, running.directory.name, beside.directory.name}
    os.utime(failed.directory / "kept.txt", (0, 0))
    with store.work():
        assert not failed.directory.exists()


def test_names_of_versions_go_on_when_the_clock_is_set_back() -> None:
    now = datetime(2026, 11, 26, 11, 30, 5, 123456, tzinfo=UTC)
    newest = version_name(now, None, "ffff")
    assert newest == "20261126T113005123Z-ffff"
    assert version_name(now.replace(year=2025), newest, "0000") == "20261126T113005124Z-0000"


@pytest.mark.parametrize(
    ("environment", "path"),
    [
        ({"ELASTICDL_STORE": "/a", "XDG_DATA_HOME": "/b"}, "/a"),
        ({"XDG_DATA_HOME": "/b", "HOME": "/c"}, "/b/elasticdl/models"),
        ({"HOME": "/c"}, "/c/.local/share/elasticdl/models"),
    ],
)
def test_where_models_are(environment: dict[str, str], path: str) -> None:
    assert store_of("", environment) == Path(path)


@pytest.mark.parametrize(("given", "environment"), [("s3://b/m", {}), ("", {"ELASTICDL_STORE": "s3://b/m"})])
def test_a_url_is_no_place_for_models(given: str, environment: dict[str, str]) -> None:
    with pytest.raises(
        BadSetting, match=r"^--store: .* to a directory, and not to a URL; .* received 's3://b/m'$"
    ):
        store_of(given, environment)
