"""Files that somebody else has put where a job reads or writes: nothing of theirs is followed, believed, or given all the memory."""

from __future__ import annotations

import io
import json
import os
import stat
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from elasticdl._core import crc32c
from elasticdl.checkpoint import group
from elasticdl.checkpoint import manifest as checkpoint
from elasticdl.checkpoint.layout import draft_of, make_draft
from elasticdl.cluster.local import place as places
from elasticdl.cluster.local.supervision import JobEnded
from elasticdl.control.protocol.status import JobEvent
from elasticdl.control.protocol.view import MemberId
from elasticdl.data.plan.order import Dealing
from elasticdl.data.plan.shard import Shard, Task
from elasticdl.data.readers import files
from elasticdl.data.readers.recordfiles import open_reader
from elasticdl.data.readers.writing import write_tfrecord
from elasticdl.errors import BadData, BadSetting
from elasticdl.files import drafts, ownership
from elasticdl.job import launcher, podrun
from elasticdl.job.display import PlainDisplay
from elasticdl.master.core import auditmark
from elasticdl.master.core.filepages import FilePages
from elasticdl.master.reporting.history import HistoryEvent
from elasticdl.master.reporting.statusstore import FileStatusStore
from elasticdl.spec.edge import absolute, build, from_arguments
from elasticdl.spec.jobspec import JobSpec
from elasticdl.worker.auditlog import AuditLog

# ------------------------------------------------------------------ drafts


def _summary_of_pods(folder: Path) -> Path:
    podrun._keep(folder / "summary.json", {"status": "finished"}, PlainDisplay(io.StringIO(), 0.0, 100))
    return folder / "summary.json"


def _mark_of_an_audit(folder: Path) -> Path:
    auditmark.write_finished(folder, view=1, step=2, state_view=1, complete=True)
    return folder / "finished"


def _manifest_of_a_checkpoint(folder: Path) -> Path:
    dealing = Dealing((Shard("a.csv", 0, 10),), 7, True, 4, 4)
    manifest = checkpoint.Manifest(1, "job-1", 1.5, 0, (), 0, dealing, {"slots": 0}, ())
    return checkpoint.write_manifest(folder, manifest)


def _part_of_a_state(folder: Path) -> Path:
    group.write_part(folder / "part-0", memoryview(b"a state"))
    return folder / "part-0"


def _head_of_a_state(folder: Path) -> Path:
    group.write_head(folder, b"{}")
    return folder / group.HEAD


def _records(folder: Path) -> Path:
    write_tfrecord(folder / "a.tfrecord", [b"one"])
    return folder / "a.tfrecord"


def _page_of_a_journal(folder: Path) -> Path:
    FilePages(folder).write(1, b"a page")
    return folder / "000001"


WRITERS = (
    _summary_of_pods,
    _mark_of_an_audit,
    _manifest_of_a_checkpoint,
    _part_of_a_state,
    _head_of_a_state,
    _records,
    _page_of_a_journal,
)


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_a_link_in_the_place_of_what_is_written_is_not_followed(
    tmp_path: Path, write: Callable[[Path], Path]
) -> None:
    (tmp_path / "first").mkdir()
    name = write(tmp_path / "first").name
    victim, folder = tmp_path / "victim", tmp_path / "second"
    victim.write_text("precious")
    folder.mkdir()
    guessed = (
        f".{name}.draft",
        f"{name}.draft",
        f"{name}.tmp",
        f"{Path(name).stem}.{os.getpid()}.tmp",
        f"{name}.{os.getpid()}.partial",
    )
    for guess in guessed:
        (folder / guess).symlink_to(victim)
    path = write(folder)
    assert victim.read_text() == "precious"
    assert path.is_file()
    assert not path.is_symlink()
    assert {left.name for left in folder.iterdir()} == {name, *guessed}  # no draft of our own is left


def test_a_summary_that_is_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "summary.json").symlink_to(victim)
    assert json.loads(_summary_of_pods(tmp_path).read_text()) == {"status": "finished"}
    assert victim.read_text() == "precious"


def test_even_a_draft_whose_name_was_guessed_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda count: "0" * 2 * count)
    draft, descriptor = drafts.new_draft(tmp_path / "a")
    os.close(descriptor)
    draft.unlink()
    draft.symlink_to(tmp_path / "victim")
    with pytest.raises(FileExistsError):
        drafts.replace_file(tmp_path / "a", "text")
    assert not (tmp_path / "victim").exists()


def test_what_fails_leaves_no_draft_and_what_a_killed_process_left_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / ("long" * 60)
    path.write_text("before")

    def write_half() -> None:
        with drafts.replacing(path) as file:
            file.write(b"half of")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert [left.read_text() for left in tmp_path.iterdir()] == ["before"]
    draft, descriptor = drafts.new_draft(path, 0o600)
    os.close(descriptor)
    assert drafts.drafts_in(tmp_path) == [draft]
    assert draft.stat().st_mode & 0o777 == 0o600


def test_a_checkpoint_is_not_written_where_a_link_leads(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    draft_of(tmp_path, 1).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotADirectoryError, match="it is a link"):
        make_draft(draft_of(tmp_path, 1))
    make_draft(draft_of(tmp_path / "made", 2))
    make_draft(draft_of(tmp_path / "made", 2))  # by another server


# ------------------------------------------------------------------ folders


def job() -> JobSpec:
    return build(from_arguments({"model_def": "a.b", "training_data": "x", "job_name": "a-job"}))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "a" / "b"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("no_umask")
def test_each_folder_that_is_made_for_jobs_is_private(home: Path) -> None:
    path = places.create(job()).path
    made = [path, *path.relative_to(home).parents]
    assert [mode(home / one) for one in made[:-1]] == [0o700] * 5


@pytest.mark.usefixtures("no_umask")
def test_each_file_of_a_job_is_private_and_each_folder(home: Path) -> None:
    place = places.create(job())
    os.close(place.hold())
    store = FileStatusStore(place)
    store.tell(HistoryEvent(JobEvent(1.0, "note", "", 0, 0, "a note", None)))
    store.conclude({"job": place.name, "status": "finished"})
    for summed_up in (False, True):
        if summed_up:
            launcher.sum_up(place, replace(job(), summary=str(home / "s.json")), JobEnded(0, "done"), None)
        made = sorted(place.path.rglob("*"))
        assert {"events.jsonl", "spec.json", "place.json", "summary.json"} <= {path.name for path in made}
        assert {path.name: mode(path) for path in made} == {
            path.name: 0o700 if path.is_dir() else 0o600 for path in made
        }
    assert mode(home / "s.json") == 0o666  # where the user wants one the umask decides


@pytest.mark.usefixtures("no_umask")
def test_an_audit_can_be_read_and_not_changed_by_others(home: Path) -> None:
    audit = home / "of this week" / "audit"
    auditmark.write_manifest(
        audit,
        [Shard("a", 0, 5)],
        seed=1,
        records_per_task=5,
        minibatch_size=5,
        num_epochs=1,
        has_servers=False,
        again=False,
    )
    AuditLog(audit, "worker-0-1", MemberId("0" * 32), lambda text: None).close()
    auditmark.write_finished(audit, view=1, step=1, state_view=1, complete=True)
    assert [mode(one) for one in (audit.parent, audit)] == [0o755] * 2
    assert [mode(one) for one in audit.iterdir()] == [0o644] * 3


@pytest.mark.parametrize("bits", [0o777, 0o770, 0o703])
@pytest.mark.parametrize("part", ["a", "a/b", "a/b/elasticdl", "a/b/elasticdl/jobs"])
def test_a_folder_that_others_may_write_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch, part: str, bits: int
) -> None:
    monkeypatch.setattr(ownership, "_is_private", lambda group: False)
    (home / part).mkdir(parents=True, mode=0o700)
    (home / part).chmod(bits)
    with pytest.raises(BadSetting, match=f"others may write in {home / part} .*set XDG_STATE_HOME"):
        places.create(job())
    assert list((home / part).iterdir()) == []
    assert list(home.glob("edl-*")) == []
    (home / "a/b/elasticdl/jobs").mkdir(parents=True, exist_ok=True)
    with pytest.raises(BadSetting, match="others may write"):
        places.places()


def test_a_folder_behind_a_link_is_looked_at_on_all_of_its_way(home: Path) -> None:
    (home / "open" / "deep").mkdir(parents=True)
    (home / "open").chmod(0o777)
    (home / "a").symlink_to("open/../open/deep")
    with pytest.raises(BadSetting, match=f"others may write in {home / 'open'} "):
        places.create(job())
    (home / "open").chmod(0o755)
    assert places.create(job()).name == "a-job-1"
    (home / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="symbolic links"):
        ownership.check_own(home / "loop", "")


def test_a_sticky_folder_may_be_of_all(home: Path) -> None:
    (home / "a").mkdir()
    (home / "a").chmod(0o1777)
    assert places.create(job()).name == "a-job-1"


def as_root(path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root gives files to others")
    os.chown(path, 54321, 54321)


def test_a_folder_of_another_user_is_refused(home: Path) -> None:
    (home / "a").mkdir()
    as_root(home / "a")
    with pytest.raises(BadSetting, match=f"{home / 'a'} belongs to the user with the number 54321"):
        places.create(job())


def test_a_foreign_folder_for_sockets_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = home / "run"
    folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    folder.chmod(0o777)
    with pytest.raises(BadSetting, match=f"others may write in {folder} .*set XDG_RUNTIME_DIR"):
        places.create(job())
    folder.chmod(0o700)
    as_root(folder)
    with pytest.raises(BadSetting, match=f"{folder} belongs to .*set XDG_RUNTIME_DIR"):
        places.create(job())
    assert list(places.jobs_directory().iterdir()) == []


def test_a_refused_folder_is_bad_input_of_the_command(home: Path) -> None:
    (home / "a").mkdir()
    (home / "a").chmod(0o777)
    command = [str(Path(sys.executable).with_name("elasticdl")), "list"]
    (home / "a/b/elasticdl/jobs").mkdir(parents=True)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    assert f"others may write in {home / 'a'}" in done.stderr


# ------------------------------------------------------------------ record indexes


def reader(folder: Path, origin: Path) -> list[bytes]:
    opened = open_reader(str(origin), {}, folder)
    (name, start, count) = opened.create_shards()[0]
    return list(opened.read_records(Task(0, 0, Shard(name, start, count), start, start + count)))


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is large enough for an index beside it."""
    monkeypatch.setattr(files, "LARGE", 1)
    (tmp_path / "data").mkdir()
    write_tfrecord(tmp_path / "data" / "a.tfrecord", [b"one", b"two", b"three"])
    return tmp_path / "data" / "a.tfrecord"


def forge(index: Path, keep: Callable[[list[int]], list[int]]) -> None:
    """Change an index and make its checksums right again."""
    content = bytearray(index.read_bytes())
    offsets = keep(list(struct.unpack(f"<{len(content) // 8 - 8}Q", content[64:])))
    body = struct.pack(f"<{len(offsets)}Q", *offsets)
    struct.pack_into("<QI", content, 40, len(offsets) - 1, crc32c(body))
    struct.pack_into("<I", content, 52, crc32c(bytes(content[:52])))
    index.write_bytes(bytes(content[:64]) + body)


@pytest.mark.parametrize(
    "keep",
    [lambda offsets: offsets[:-1], lambda offsets: offsets[1:], lambda offsets: [0]],
    ids=["stops early", "begins late", "is empty"],
)
def test_an_index_beside_data_that_leaves_records_out_is_made_anew(
    tmp_path: Path, data: Path, keep: Callable[[list[int]], list[int]]
) -> None:
    assert reader(tmp_path / "first", data) == [b"one", b"two", b"three"]
    forge(data.with_name(data.name + files.INDEX_SUFFIX), keep)
    assert reader(tmp_path / "second", data) == [b"one", b"two", b"three"]


def test_an_index_of_another_user_is_not_believed(tmp_path: Path, data: Path) -> None:
    reader(tmp_path / "first", data)
    index = data.with_name(data.name + files.INDEX_SUFFIX)
    # Three records are there, and this says that two of them are one.
    forge(index, lambda offsets: [offsets[0], *offsets[2:]])
    as_root(index)
    assert reader(tmp_path / "second", data) == [b"one", b"two", b"three"]


def test_an_index_that_is_cut_while_it_is_read_ends_in_an_error(tmp_path: Path, data: Path) -> None:
    script = """
import os, sys
from pathlib import Path
from elasticdl import _core
from elasticdl.errors import BadData
from elasticdl.data.readers.writing import write_tfrecord
data, index = sys.argv[1:]
write_tfrecord(Path(data), (b"record" for _ in range(20_000)))
_core.index_tfrecord(data, index)
opened = _core.TFRecordFile(data, index)
os.truncate(index, 64)
try:
    opened.read([19_999])
except BadData as error:
    print("refused", error)
"""
    arguments = [sys.executable, "-c", script, str(tmp_path / "b"), str(tmp_path / "index")]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert "refused the index" in done.stdout


# ------------------------------------------------------------------ names that are not UTF-8

NAME = os.fsdecode(b"d\xff")


def test_a_setting_that_is_not_utf8_is_refused_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for setting in ("training_data", "output", "summary", "model_zoo", "audit"):
        with pytest.raises(BadSetting, match=f"{setting}=.*not text in UTF-8") as raised:
            build(from_arguments({"model_def": "a.b", "training_data": "x", setting: str(tmp_path / NAME)}))
        str(raised.value).encode()
    (tmp_path / NAME).mkdir()
    monkeypatch.chdir(tmp_path / NAME)
    with pytest.raises(BadSetting, match="working directory"):
        absolute(job())
    place = places.JobPlace(tmp_path, tmp_path, 1.0, Path.cwd())
    assert place.directory.name == NAME


def test_data_whose_name_is_not_utf8_is_refused_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    for path in (tmp_path / NAME / "a.csv", tmp_path / f"{NAME}.csv"):
        path.write_text("1,2\n")
    for origin in (tmp_path, tmp_path / NAME, tmp_path / f"{NAME}.csv", tmp_path / "d*.csv"):
        with pytest.raises(BadData, match="not text in UTF-8") as raised:
            open_reader(str(origin), {}, tmp_path / "folder")
        str(raised.value).encode()


def test_a_command_with_a_path_that_is_not_utf8_is_bad_input(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("elasticdl")), "train", "--model_def=a.b"]
    arguments = [*command, f"--training_data={tmp_path / NAME}", f"--model_zoo={tmp_path}"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    assert "not text in UTF-8" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_is_no_file_is_not_replaced_by_one(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileExistsError, match="not replaced by a file"):
        drafts.replace_file(tmp_path / "pipe", "text")
    assert (tmp_path / "pipe").is_fifo()
    assert list(tmp_path.iterdir()) == [tmp_path / "pipe"]
