"""Files that somebody else has put where a job reads or writes: nothing of theirs is followed, believed, or given all the memory."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from elasticdl.control import manifest as checkpoint
from elasticdl.control.checkpoints import draft_of, make_draft
from elasticdl.data.files import pin
from elasticdl.data.order import Dealing
from elasticdl.data.shard import Shard
from elasticdl.data.writing import write_tfrecord
from elasticdl.job import podrun
from elasticdl.job.display import PlainDisplay
from elasticdl.master import auditmark
from elasticdl.master.filepages import FilePages
from elasticdl.spec import drafts
from elasticdl.worker import image

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


def _snapshot(folder: Path) -> Path:
    image.write(folder / "step-1-view-1.state", b"a state")
    return folder / "step-1-view-1.state"


def _records(folder: Path) -> Path:
    write_tfrecord(folder / "a.tfrecord", [b"one"])
    return folder / "a.tfrecord"


def _pinned_data(folder: Path) -> Path:
    pin("a.csv", {"a.csv": "1"}, folder)
    (path,) = folder.glob("data-*.json")
    return path


def _page_of_a_journal(folder: Path) -> Path:
    FilePages(folder).write(1, b"a page")
    return folder / "000001"


WRITERS = (
    _summary_of_pods,
    _mark_of_an_audit,
    _manifest_of_a_checkpoint,
    _snapshot,
    _records,
    _pinned_data,
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
    with pytest.raises(KeyboardInterrupt), drafts.replacing(path) as file:
        file.write(b"half of")
        raise KeyboardInterrupt
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
