"""Manifests and folders of checkpoints: what is read back is what was written, and what is not whole is never taken for a checkpoint."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from elasticdl._core import crc32c
from elasticdl.checkpoint import layout as checkpoints
from elasticdl.checkpoint.choosing import newest_whole
from elasticdl.checkpoint.comparing import compare, rows_by_table
from elasticdl.checkpoint.manifest import NAME, Manifest, read_manifest, write_manifest
from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.psmessages import SlotSection
from elasticdl.data.plan.order import Dealing
from elasticdl.data.plan.shard import Shard
from elasticdl.errors import BadData, BadSetting
from elasticdl.tools.checkpoint import listed

SLOTS = 4
DEALING = Dealing((Shard("a.csv", 0, 100), Shard("b.csv", 5, 20)), 7, True, 8, 4)
ROWS = b"".join(
    word.to_bytes(8, "little")
    for word in (0x0154_4F4C_534C_4445, 0, 1, 1, 9, 3, 1 | 2 << 32, 5, 0, 2, 2, 8, 0)
)
"""A slot with one word of stamps and two pieces: five rows of table 2, and something else."""


def write(directory: Path, number: int, **changes: Any) -> Path:
    """Write a checkpoint of one file, as a master and its server do."""
    draft = checkpoints.draft_of(directory, number)
    draft.mkdir(parents=True)
    file = draft / "ps-0-1-00.slots"
    file.write_bytes(ROWS * SLOTS)
    length, crc = len(ROWS), crc32c(ROWS)
    sections = tuple(
        (file, SlotSection(slot, 1, slot * length, length, crc, 1, 0, 10, 5, 3, "0" * 32))
        for slot in range(SLOTS)
    )
    manifest = Manifest(number, "job-1", 1.5, 10, (), 2, DEALING, {"slots": SLOTS}, sections)
    write_manifest(draft, replace(manifest, **changes))
    return checkpoints.publish(directory, number).parent


def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder = write(tmp_path, 3, above=(12, 14))
    manifest = checkpoints.read(folder)
    assert (manifest.number, manifest.job, manifest.written_at) == (3, "job-1", 1.5)
    assert (manifest.low, manifest.above, manifest.roll_back) == (10, (12, 14), 2)
    assert manifest.dealing == DEALING
    assert [file for file, _ in manifest.sections] == [folder / "ps-0-1-00.slots"] * SLOTS
    assert manifest.sections[2][1].offset == 2 * len(ROWS)
    assert checkpoints.size_of(manifest) == SLOTS * len(ROWS)
    assert rows_by_table(manifest) == {2: 5 * SLOTS}
    compare(manifest)


def test_what_is_beyond_the_position_is_kept_and_shown(tmp_path: Path) -> None:
    folder = write(tmp_path, 1, dealing=replace(DEALING, shuffle=False), low=3, begun=((3, 1), (4, 2)))
    assert checkpoints.read(folder).begun == ((3, 1), (4, 2))
    (line,) = listed(tmp_path)
    assert "24 records and 12 in 3 minibatches of tasks that are not done" in line


def test_steps_of_several_gradients_are_kept(tmp_path: Path) -> None:
    dealing = replace(DEALING, grads_to_wait=4)
    folder = write(tmp_path, 1, dealing=dealing, step=20)
    manifest = checkpoints.read(folder)
    assert (manifest.dealing, manifest.step) == (dealing, 20)
    # Whoever wrote no such things applied each gradient by itself.
    path = folder / NAME
    body = json.loads(path.read_text())
    del body["position"]["step"], body["data"]["grads_to_wait"], body["checksum"]
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps({**body, "checksum": f"{zlib.crc32(text.encode()):08x}"}))
    manifest = checkpoints.read(folder)
    assert (manifest.dealing, manifest.step) == (DEALING, 0)


def test_it_is_between_tasks_if_no_slot_holds_more_than_the_position(tmp_path: Path) -> None:
    manifest = checkpoints.read(write(tmp_path, 1))
    assert manifest.is_between_tasks
    assert not replace(manifest, above=(12,)).is_between_tasks
    assert not replace(manifest, low=9).is_between_tasks


def change(path: Path, **changes: Any) -> None:
    body = json.loads(path.read_text())
    path.write_text(json.dumps({**body, **changes}))


def test_whatever_is_no_whole_checkpoint_is_refused_by_name(tmp_path: Path) -> None:
    folder = write(tmp_path, 1)
    path = folder / NAME
    good = path.read_text()
    for text, why in (
        (good[:-40], "no manifest of a checkpoint, or was changed or cut off"),
        ("[1, 2]", "no manifest of a checkpoint"),
        ('{"a": 1}', "no manifest of a checkpoint"),
        (good.replace('"format": 1', '"format": 2'), "written in format 2"),
        (good.replace('"low": 10', '"low": 11'), "its checksum does not hold"),
    ):
        path.write_text(text)
        with pytest.raises(BadData, match=why) as raised:
            checkpoints.read(folder)
        assert str(path) in str(raised.value)
    path.write_text(good)
    file = folder / "ps-0-1-00.slots"
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    with pytest.raises(BadData, match=r"the file has 415 bytes, and the manifest says 416"):
        checkpoints.read(folder)
    file.write_bytes(content[:150] + b"x" + content[151:])
    with pytest.raises(BadData, match="the checksum of slot 1 does not hold"):
        rows_by_table(checkpoints.read(folder))
    with pytest.raises(BadData, match="the checksum of slot 1 does not hold"):
        compare(checkpoints.read(folder))
    file.unlink()
    with pytest.raises(BadData, match="not whole"):
        checkpoints.read(folder)


def test_a_slot_that_is_not_there_once_is_missed(tmp_path: Path) -> None:
    folder = write(tmp_path, 1)
    manifest = read_manifest(folder / NAME)
    for sections in (manifest.sections[1:], (*manifest.sections[1:], manifest.sections[1]), ()):
        write_manifest(folder, replace(manifest, sections=sections))
        with pytest.raises(BadData, match="not every slot is there once"):
            read_manifest(folder / NAME)


def test_a_path_means_a_checkpoint_or_the_newest_whole_one_in_it(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"--flag: '.*nowhere' does not exist"):
        checkpoints.locate(tmp_path / "nowhere", "--flag")
    with pytest.raises(BadSetting, match="there is no whole checkpoint"):
        checkpoints.locate(tmp_path, "--flag")
    for number in (2, 9, 10):
        write(tmp_path, number)
    assert checkpoints.locate(tmp_path, "--flag").name == "checkpoint-10"
    assert checkpoints.locate(tmp_path / "checkpoint-2", "--flag").name == "checkpoint-2"
    (tmp_path / "checkpoint-11").mkdir()
    checkpoints.draft_of(tmp_path, 12).mkdir()
    assert checkpoints.locate(tmp_path, "--flag").name == "checkpoint-10"
    assert checkpoints.numbers(tmp_path) == [2, 9, 10, 11]
    with pytest.raises(BadSetting, match="is no directory"):
        checkpoints.locate(tmp_path / "checkpoint-2" / NAME, "--flag")


def test_of_a_directory_the_newest_that_is_not_damaged_is_taken(tmp_path: Path) -> None:
    older, newest = (write(tmp_path, number) for number in (1, 2))
    file = newest / "ps-0-1-00.slots"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    folder, _, passed_over = newest_whole(str(tmp_path), checkpoints.read, "--flag")
    assert folder == older
    assert f"{file}: the checkpoint is damaged: the checksum of slot 3 does not hold" in passed_over
    # Only manifests are looked at, or no other one was named, and those who read it compare it.
    assert newest_whole(str(tmp_path), checkpoints.read, "--flag", verify=False)[0] == newest
    assert newest_whole(str(newest), checkpoints.read, "--flag")[0] == newest
    file.unlink()
    with pytest.raises(BadSetting, match=r"--flag: .* is not whole.*; name another checkpoint"):
        newest_whole(str(newest), checkpoints.read, "--flag")


@pytest.mark.parametrize(("kept", "left"), [(2, [3, 4]), (1, [4]), (9, [1, 2, 3, 4]), (0, [1, 2, 3, 4])])
def test_the_newest_are_kept(tmp_path: Path, kept: int, left: list[int]) -> None:
    for number in (1, 2, 3, 4):
        write(tmp_path, number)
    for number in (2, 5):
        checkpoints.draft_of(tmp_path, number).mkdir()
    (tmp_path / "notes.txt").touch()
    checkpoints.remove_older(tmp_path, kept, 4)
    assert checkpoints.numbers(tmp_path) == left
    # The fifth is being written.
    assert [path.name for path in tmp_path.glob(".*")] == [".checkpoint-5.draft"]
    checkpoints.remove_drafts(tmp_path)
    assert not list(tmp_path.glob(".*"))
    assert (tmp_path / "notes.txt").exists()


def test_data_that_is_dealt_out_otherwise_is_told_by_what_differs() -> None:
    assert list(DEALING.differences(DEALING)) == []
    other = replace(DEALING, seed=8, shuffle=False, minibatch_size=2, shards=(Shard("a.csv", 0, 100),))
    assert list(DEALING.differences(other)) == [
        "seed (7 and 8)",
        "shuffle (True and False)",
        "minibatch size (4 and 2)",
        "number of shards (2 and 1)",
    ]
    moved = replace(DEALING, shards=(DEALING.shards[0], Shard("c.csv", 5, 20)))
    assert list(DEALING.differences(moved)) == [
        "shards (records 5 to 24 of 'b.csv' and records 5 to 24 of 'c.csv')"
    ]
    later = replace(DEALING, shards=(DEALING.shards[0], Shard("b.csv", 25, 20)))
    assert list(DEALING.differences(later)) == [
        "shards (records 5 to 24 of 'b.csv' and records 25 to 44 of 'b.csv')"
    ]
