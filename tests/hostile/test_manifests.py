"""JSON that a job reads again: any value in any field gives a valid object or our own error, and never a traceback."""

from __future__ import annotations

import copy
import gzip
import io
import json
import os
import tarfile
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elasticdl._core import crc32c
from elasticdl.audit import audit
from elasticdl.catalog.catalog import read_catalog
from elasticdl.checkpoint import group
from elasticdl.checkpoint import layout as checkpoints
from elasticdl.checkpoint import stateimage as image
from elasticdl.checkpoint.comparing import rows_by_table
from elasticdl.checkpoint.manifest import NAME
from elasticdl.cluster.kubernetes import podplace
from elasticdl.cluster.kubernetes.api import Api
from elasticdl.cluster.local import place
from elasticdl.control.protocol.status import EventKind, JobEvent, JobStatus, WorkerStatus
from elasticdl.control.protocol.view import StateId
from elasticdl.data.plan.schedule import Schedule
from elasticdl.data.plan.shard import Position
from elasticdl.errors import AuditFailed, BadData, BadInput, BadModel, BadSetting, JobFailed, TransferFailed
from elasticdl.job.display import status_lines
from elasticdl.job.podjob import PodJob
from elasticdl.master.allreduce import resuming
from elasticdl.master.core.filepages import FilePages
from elasticdl.master.core.journal import Journal
from elasticdl.master.core.recordforms import FORMAT, record_from_json, record_to_json
from elasticdl.master.core.records import read_journal
from elasticdl.master.reporting.history import HistoryEvent
from elasticdl.spec.edge import build, from_arguments
from elasticdl.spec.jobspec import from_text
from elasticdl.tools.checkpoint import listed, shown
from elasticdl.tools.export import export_tables

HUGE = 10**15
STRANGE = (
    None, True, False, -1, 0, 1, 2**31, 2**53, 2**63, 2**64, 10**40, 10**400, 0.5, -0.0, float("nan"), float("inf"), 1e308,
    "", "1", "..", "/etc/passwd", "a\0b", "\ud800", "é" * 300, [], [[]], [None], {}, {"": 0}, [[[[[[[[1]]]]]]]],
)  # fmt: skip
"""What a reader may not have thought of; hypothesis adds its own."""

values = st.sampled_from(STRANGE) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
attacks = settings(
    deadline=None,
    max_examples=80,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


def places_in(body: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every value, that of the whole first."""
    yield here
    inside = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    for key, value in inside:
        yield from places_in(value, (*here, key))


@st.composite
def forged(draw: st.DrawFn, good: Any) -> Any:
    """Draw a good value in which one or two values are others, or missing."""
    body: Any = [copy.deepcopy(good)]
    for _ in range(draw(st.integers(1, 2))):
        *way, last = draw(st.sampled_from(list(places_in(body))[1:]))
        around: Any = body
        for key in way:
            around = around[key]
        if isinstance(around, dict) and draw(st.integers(0, 9)) == 0:
            del around[last]
        else:
            around[last] = copy.deepcopy(draw(values))
    return body[0]


def sealed(body: Any) -> str:
    if not isinstance(body, dict):
        return json.dumps(body)
    text = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    return json.dumps({**body, "checksum": f"{zlib.crc32(text):08x}"})


CATALOG = {
    "seed": 7,
    "slots": 1,
    "tables": [
        {"name": "rows", "width": 2, "initial": {"kind": "uniform", "first": -1.0, "second": 1.0}, "admission": 1, "decays": True}
    ],
    "variables": [{"name": "kernel", "shape": [2, 3], "decays": False, "adds": False}],
    "rule": {"name": "sgd", "parameters": {"momentum": 0.0, "nesterov": 0.0}, "weight_decay": 0.0},
}  # fmt: skip
CHECKPOINT = {
    "format": 1,
    "number": 3,
    "job": "deepfm-2",
    "written_at": 1.5,
    "position": {"low": 6, "above": [8, 9], "roll_back": 0, "step": 0, "begun": [[10, 1]]},
    "data": {
        "shards": [["a.csv", 0, 100], ["b.csv", 5, 20]],
        "block": 1,
        "seed": 7,
        "shuffle": True,
        "records_per_task": 8,
        "minibatch_size": 4,
        "minibatches_per_task": 2,
        "grads_to_wait": 2,
    },
    "model": CATALOG,
    "slots": [["ps-0-1-00.slots", 0, 1, 0, 4, 1, 1, 0, 10, 5, 3, "0" * 32]],
}


def checkpoint(directory: Path, body: Any) -> Path:
    folder = directory / "checkpoint-3"
    folder.mkdir(exist_ok=True)
    (folder / "ps-0-1-00.slots").write_bytes(b"slot")
    (folder / NAME).write_text(sealed(body))
    return folder


def test_a_good_checkpoint_is_read(tmp_path: Path) -> None:
    assert checkpoints.read(checkpoint(tmp_path, CHECKPOINT)).number == 3


@attacks
@given(body=forged(CHECKPOINT))
def test_a_forged_checkpoint_ends_in_our_error(tmp_path: Path, body: Any) -> None:
    folder = checkpoint(tmp_path, body)
    try:
        manifest = checkpoints.read(folder)
    except BadData as error:
        named = str(folder) in str(error)
        with pytest.raises(BadInput):
            export_tables(str(folder), str(tmp_path / "out"))
        assert named
        return
    assert manifest.sections[0][0].parent == folder
    assert len(list(listed(tmp_path))) == 1
    with suppress(BadData, BadModel):
        rows_by_table(manifest)
    with suppress(BadInput):
        export_tables(str(folder), str(tmp_path / "out"))


GROUP = {
    "format": 1,
    "kind": "group",
    "number": 3,
    "job": "mnist-2",
    "written_at": 1.5,
    "state": [7, 2],
    "position": [0, 4, 2, 1],
    "data": {**CHECKPOINT["data"], "grads_to_wait": 0},
    "sums": {"loss": 0.5, "examples": 3.0},
    "passed": True,
    "best": [0.25, 7],
    "meta": {"arrays": [{"name": "w", "shape": [2], "dtype": "float32", "bytes": 8}], "callbacks": []},
    "parts": [["part-0", 4, crc32c(b"abcd")], ["part-1", 4, crc32c(b"efgh")]],
}


def group_checkpoint(directory: Path, body: Any) -> Path:
    folder = directory / "checkpoint-3"
    folder.mkdir(exist_ok=True)
    (folder / "part-0").write_bytes(b"abcd")
    (folder / "part-1").write_bytes(b"efgh")
    (folder / NAME).write_text(sealed(body))
    return folder


def test_a_good_checkpoint_of_a_group_is_read(tmp_path: Path) -> None:
    folder = group_checkpoint(tmp_path, GROUP)
    manifest = checkpoints.read_of_group(folder)
    assert (manifest.state, manifest.is_best, manifest.size) == (StateId(7, 2), True, 8)
    assert group.read_state(folder / NAME).image.body.tobytes() == b"abcdefgh"
    assert "7 steps" in listed(tmp_path)[0]


@attacks
@given(body=forged(GROUP))
def test_a_forged_checkpoint_of_a_group_ends_in_our_error(tmp_path: Path, body: Any) -> None:
    folder = group_checkpoint(tmp_path, body)
    assert len(list(listed(tmp_path))) == 1
    with suppress(BadData, BadModel):
        list(shown(folder))
    try:
        manifest = checkpoints.read_of_group(folder)
    except BadData as error:
        named = str(folder) in str(error)
        with pytest.raises(BadData):
            group.read_state(folder / NAME)
        assert named
        return
    assert {part.file.parent for part in manifest.parts} == {folder}
    found = resuming.GroupCheckpoint(folder / NAME, manifest)
    schedule = Schedule(manifest.dealing.ledger(), 3, 0)
    with suppress(BadSetting):
        record = resuming.resume(found, schedule, manifest.dealing, 3)
        assert schedule.has(record.position)
        assert record_from_json(record_to_json(record)) == record
    with suppress(BadData):
        assert group.read_state(folder / NAME).image.body.nbytes == manifest.size


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"parts": [["part-0", 4, 1], ["part-0", 4, 1]]}, "not every part is there once"),
        ({"parts": []}, "not every part is there once"),
        ({"parts": [["../part-0", 4, 1]]}, "no name of a file beside it"),
        ({"parts": [["part-0", HUGE, 1]]}, "the manifest says 1,000,000,000,000,000"),
        ({"parts": [["part-0", 4, 1]]}, "its checksum does not hold"),
        ({"kind": "other"}, "is no manifest of a checkpoint"),
        ({"kind": "servers"}, "a checkpoint of a job with parameter servers"),
    ],
)
def test_a_checkpoint_of_a_group_that_can_not_be_so_takes_no_memory_and_is_named(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    folder = group_checkpoint(tmp_path, {**GROUP, **changes})
    with pytest.raises(BadData) as refused:
        group.read_state(folder / NAME)
    assert said in str(refused.value)
    assert str(folder) in str(refused.value)


@attacks
@given(body=forged(CATALOG))
def test_a_forged_catalog_ends_in_our_error(body: Any) -> None:
    with suppress(BadModel):
        catalog = read_catalog(json.dumps(body))
        assert read_catalog(catalog.text()) == catalog
        with suppress(ValueError):  # of an optimizer that servers do not know
            catalog.core()


MANIFEST = {
    "format": 1,
    "shards": [["a.csv", 0, 8]],
    "seed": 7,
    "records_per_task": 4,
    "minibatch_size": 4,
    "num_epochs": 1,
    "serving": True,
}
FINISHED = {"format": 1, "view": 0, "step": 2, "state_view": 0, "complete": True}
ACCOUNTS = {"format": 1, "slots": [[0, 2, "0" * 32]]}
BEGINNING = {
    "format": 1,
    "checkpoint": "checkpoint-1",
    "low": 1,
    "above": [3],
    "begun": [[2, 1]],
    "slots": [[0, 0, "0" * 32]],
}


@attacks
@given(data=st.data(), name=st.sampled_from(["manifest", "finished", "beginning"]))
def test_forged_marks_of_a_group_s_audit_end_in_our_error(
    tmp_path: Path, data: st.DataObject, name: str
) -> None:
    beginning = {"format": 1, "checkpoint": "c", "step": 2, "epoch": 0, "done": [1], "begun": [[0, 1]]}
    manifest = {key: value for key, value in MANIFEST.items() if key != "serving"}
    good = {"manifest": manifest, "finished": FINISHED, "beginning": beginning}
    for mark, body in good.items():
        (tmp_path / mark).write_text(sealed(data.draw(forged(body)) if mark == name else body))
    with suppress(AuditFailed, BadInput):
        str(audit(tmp_path))


@attacks
@given(data=st.data(), name=st.sampled_from(["manifest", "finished", "accounts", "beginning"]))
def test_forged_marks_of_an_audit_end_in_our_error(tmp_path: Path, data: st.DataObject, name: str) -> None:
    good = {"manifest": MANIFEST, "finished": FINISHED, "accounts": ACCOUNTS, "beginning": BEGINNING}
    for mark, body in good.items():
        (tmp_path / mark).write_text(sealed(data.draw(forged(body)) if mark == name else body))
    with suppress(AuditFailed, BadInput):
        str(audit(tmp_path))


BARRIER = {
    "state": [3, 1],
    "values": [["val_loss", 0.5]],
    "seconds": 1.5,
    "task": 4,
    "epoch": 0,
    "epoch_ended": True,
}
RECORDS: tuple[dict[str, Any], ...] = (
    {"type": "epoch", "epoch": 1},
    {"type": "shards", "shards": [["a.csv", 0, 8, 1, "5f"]], "validation": [["b.csv", 0, 4, 1, ""]]},
    {"type": "evaluated", **BARRIER},
    {
        "type": "view",
        "view": {
            "id": 1,
            "members": [{"id": "a", "name": "worker-0-1", "address": "unix:/a"}],
            "base": {"step": 0, "view": 1},
            "position": {"epoch": 0, "first_task": 0, "lanes": 1, "chunk": 0},
            "first": [0],
            "later": [0],
            "wave_lanes": 1,
            "sources": ["initial", None],
            "final": False,
            "exporter": None,
            "snapshot": None,
            "reason": "",
        },
        "evicted": ["worker-1-1"],
        "fruitless": [0, 0],
    },
    {"type": "launched", "lives": ["worker-0-1"]},
    {"type": "workers", "joined": ["worker-0-1"], "left": [], "evicted": ["worker-1-1"]},
    {"type": "snapshot", "view": 1, "state": [1, 1], "position": [0, 0, 1, 0], "path": "/a", "number": 1, "passed": False},
    {"type": "resumed-state", "number": 1, "path": "/a", "state": [1, 0], "position": [0, 0, 1, 0], "passed": False},
    {"type": "wanted", "workers": 2, "servers": None},
    {"type": "error", "worker": "worker-0-1", "signature": "E"},
    {"type": "stopping", "reason": "asked"},
    {"type": "finished", "view": 1, "state": [1, 1], "path": "/a", "digest": "d", "metrics": [["loss", 0.5]]},
    {"type": "failed", "reason": "r", "kind": "program", "worker": "w", "traceback": "t"},
    {"type": "known", "members": ["a"]},
    {"type": "model", "catalog": "{}"},
    {"type": "placement", "joined": [[0, "ps-0-1", "unix:/a"]], "gone": [1], "entries": [[0, 1, 1, 0, None, 0]], "position": [0, [2]]},
    {"type": "done", "tasks": [1], "roll_back": 0},
    {"type": "cut", "number": 1, "position": [0, []], "roll_back": 0, "step": 0, "best": True},
    {"type": "saved", "number": 1, "path": "/a"},
    {"type": "position", "done": [0, []], "roll_back": 0},
    {"type": "resumed", "number": 1, "path": "/a", "position": [0, []], "roll_back": 1, "renumbered": None, "model": "{}", "step": 0,
     "barriers": [BARRIER]},
    {"type": "checkpoint", "path": "/a"},
)  # fmt: skip


@pytest.mark.parametrize("good", RECORDS, ids=lambda good: good["type"])
@settings(attacks, max_examples=20)
@given(data=st.data())
def test_a_forged_page_of_a_journal_ends_in_our_error(
    tmp_path: Path, good: dict[str, Any], data: st.DataObject
) -> None:
    record_from_json(good)
    page = data.draw(
        forged({"format": FORMAT, "record": good}) | forged({"format": FORMAT, "compacted": [good]})
    )
    (tmp_path / "000001").write_text(json.dumps(page))
    with suppress(JobFailed, BadSetting, BadData):
        read_journal(*Journal(FilePages(tmp_path)).read())


HEAD = {
    "state": {"step": 1, "view": 1},
    "position": {"epoch": 0, "first_task": 0, "lanes": 1, "chunk": 0},
    "sums": {"loss": 0.5, "examples": 3.0},
    "passed": False,
    "best": [0.25, 1],
    "meta": {"shapes": []},
}


@attacks
@given(head=forged(HEAD), length=st.none() | st.integers(0, 2**32 - 1))
def test_a_forged_state_ends_in_our_error(head: Any, length: int | None) -> None:
    text = json.dumps(head).encode()
    content = b"EDLSTATE" + (4).to_bytes(4, "little")
    content += (len(text) if length is None else length).to_bytes(4, "little") + text + b"weights"
    with suppress(TransferFailed):
        state = image.decode(content + crc32c(content).to_bytes(4, "little"))
        assert isinstance(state.position, Position)


def test_a_good_state_is_read() -> None:
    text = json.dumps(HEAD).encode()
    content = b"EDLSTATE" + (4).to_bytes(4, "little") + len(text).to_bytes(4, "little") + text + b"weights"
    assert image.decode(content + crc32c(content).to_bytes(4, "little")).id == StateId(1, 1)


@attacks
@given(body=forged({"format": 1, "sockets": "/s", "submitted_at": 1.5, "directory": "/d"}))
def test_a_forged_place_of_a_job_ends_in_our_error(tmp_path: Path, body: Any) -> None:
    (tmp_path / "place.json").write_text(json.dumps(body))
    with suppress(BadSetting):
        assert place.open_place(tmp_path).sockets


@attacks
@given(body=forged(json.loads(podplace.job_text("n", "ns", "u", 1.5, "m", own_policy=True))))
def test_forged_settings_of_a_pod_end_in_our_error(tmp_path: Path, body: Any) -> None:
    (tmp_path / "job.json").write_text(json.dumps(body))
    with pytest.raises((BadSetting, OSError)):  # there is no certificate
        podplace.open_pod(tmp_path, tmp_path / "secret", tmp_path, "a", is_master=False)


DEEP = "[" * 200_000


def _deep_checkpoint(folder: Path) -> None:
    (folder / NAME).write_text(DEEP)
    checkpoints.read(folder)


def _deep_audit(folder: Path) -> None:
    (folder / "manifest").write_text('{"shards": ' + DEEP)
    audit(folder)


def _deep_journal(folder: Path) -> None:
    (folder / "000001").write_text(DEEP)
    Journal(FilePages(folder)).read()


def _deep_catalog(folder: Path) -> None:
    read_catalog(DEEP)


def _deep_place(folder: Path) -> None:
    (folder / "place.json").write_text(DEEP)
    place.open_place(folder)


@pytest.mark.parametrize(
    "read",
    [_deep_checkpoint, _deep_audit, _deep_journal, _deep_catalog, _deep_place],
    ids=lambda read: read.__name__,
)
def test_what_is_nested_too_deeply_ends_in_our_error(tmp_path: Path, read: Callable[[Path], None]) -> None:
    with pytest.raises((BadData, AuditFailed, JobFailed, BadModel, BadSetting)):
        read(tmp_path)


# ------------------------------------------------------------------ memory


@contextmanager
def little_memory(most: int = 100 << 20) -> Iterator[None]:
    """Fail if Python takes more than so many bytes at any moment."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


def test_slots_that_a_manifest_only_names_take_no_memory(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, {**CHECKPOINT, "model": {**CATALOG, "slots": HUGE}})
    with little_memory(), pytest.raises(BadData, match="not every slot is there once"):
        checkpoints.read(folder)


def test_a_manifest_with_an_endless_file_behind_it_takes_no_memory(tmp_path: Path) -> None:
    (tmp_path / NAME).touch()
    os.truncate(tmp_path / NAME, 1 << 40)  # a hole, which takes no room on the disk either
    with little_memory(), pytest.raises(BadData, match="longer than"):
        checkpoints.read(tmp_path)


def lines(directory: Path, *content: str) -> None:
    checksum, out = 0, ""
    for line in ("elasticdl-audit 1 0 worker-0-1", *content):
        checksum = zlib.crc32(line.encode(), checksum)
        out += f"{line} {checksum:08x}\n"
    (directory / "worker-0-1-0.audit").write_text(out)


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("with_beginning", [True, False])
def test_records_that_an_audit_only_names_take_no_memory(
    tmp_path: Path, complete: bool, with_beginning: bool
) -> None:
    body = {**MANIFEST, "shards": [["a.csv", 0, HUGE]], "records_per_task": 1, "minibatch_size": 1}
    (tmp_path / "manifest").write_text(sealed(body))
    (tmp_path / "finished").write_text(sealed({**FINISHED, "complete": complete}))
    (tmp_path / "accounts").write_text(sealed({**ACCOUNTS, "slots": [[0, 0, "0" * 32]]}))
    if with_beginning:
        (tmp_path / "beginning").write_text(sealed({**BEGINNING, "begun": []}))
    lines(tmp_path, f"chunk {HUGE - 1} 0 0 {HUGE - 1} 1 0 0")
    with little_memory():
        if complete:
            with pytest.raises(AuditFailed):
                audit(tmp_path)
        else:
            assert audit(tmp_path).records == 1


def test_records_that_the_audit_of_steps_only_names_take_no_memory(tmp_path: Path) -> None:
    body = {**MANIFEST, "shards": [["a.csv", 0, HUGE]], "serving": False}
    (tmp_path / "manifest").write_text(sealed(body))
    lines(tmp_path, "base 1 0 1 0", "contributed 1 1 0 0 0 0 4 0", "committed 1 1 4 1")
    with little_memory():
        assert audit(tmp_path).records == 4


@pytest.mark.parametrize("changes", [{"num_epochs": HUGE}, {"shards": [["a.csv", 0, 0]]}, {"num_epochs": 0}])
def test_epochs_that_an_audit_only_names_take_no_memory(tmp_path: Path, changes: dict[str, Any]) -> None:
    (tmp_path / "manifest").write_text(sealed({**MANIFEST, **changes}))
    lines(tmp_path, f"chunk {2 * HUGE} 0 {HUGE} 0 4 0 0")
    with little_memory(), pytest.raises(AuditFailed):
        audit(tmp_path)


def test_a_line_without_an_end_takes_no_memory(tmp_path: Path) -> None:
    (tmp_path / "manifest").write_text(sealed(MANIFEST))
    lines(tmp_path)
    os.truncate(tmp_path / "worker-0-1-0.audit", 1 << 28)
    with little_memory(), pytest.raises(AuditFailed, match="line 2: it has no end"):
        audit(tmp_path)


SETTINGS = build(
    from_arguments(
        {"model_def": "a.b", "training_data": "x", "num_workers": "1:3", "model_params": "a=1;b=[2]", "envs": "A=1", "image_name": "i"}
    )
).to_json()  # fmt: skip


@attacks
@given(body=forged(SETTINGS))
def test_forged_settings_end_in_our_error(tmp_path: Path, body: Any) -> None:
    (tmp_path / "spec.json").write_text(json.dumps(body))
    try:
        spec = place.JobPlace(tmp_path, tmp_path, 1.5, tmp_path).spec()
    except BadSetting:
        return
    assert from_text(json.dumps(spec.to_json())) == spec


@pytest.mark.parametrize("content", ["", "{", "[]", "[" * 100_000, "\0"])
def test_settings_that_are_none_end_in_our_error(content: str) -> None:
    with pytest.raises(BadSetting, match="the job's settings"):
        from_text(content)


STATUS = asdict(
    JobStatus(
        "job", "training", "", 3, 7, 0, 2, 0.5, 0.25, 700, 12.5, None, 2,
        (WorkerStatus("worker-0-1", "training", 12, "m-1"), WorkerStatus("worker-1-1", "pending", None, None, "no room")),
    )
)  # fmt: skip
SAID = {"job": "job", "status": "finished", "reason": "all data was trained", "exit_code": 0, "steps": 7}


@attacks
@given(status=forged(STATUS), summary=forged(SAID))
def test_a_forged_board_ends_in_our_error(status: Any, summary: Any) -> None:
    store = {"status": json.dumps(status), "summary": json.dumps(summary)}
    try:
        seen = PodJob(cast(Api, Objects(store, "")), "job").look()
    except JobFailed:
        return
    assert seen.summary is not None
    assert seen.summary["exit_code"] in range(256)
    assert seen.status is not None
    assert len(status_lines(seen.status)) >= 2
    assert all(type(worker.name) is str for worker in seen.status.workers)


@attacks
@given(
    event=forged(
        json.loads(
            HistoryEvent(JobEvent(1.5, EventKind.LOST, "worker-0-1", 3, 7, "why", 0.5), "killed", 2).to_line()
        )
    )
)
def test_a_forged_event_is_left_out(event: Any) -> None:
    job = PodJob(cast(Api, Objects({"told": "1"}, json.dumps(event))), "job")
    for found in job.look().events:
        assert found.time > 0
        assert (type(found.kind), type(found.worker), type(found.step), type(found.text)) == (
            EventKind,
            str,
            int,
            str,
        )


class Objects:
    """An API with one job that runs."""

    namespace = "default"

    def __init__(self, store: dict[str, str], events: str) -> None:
        self.store, self.told = store, events

    def get(self, kind: str, name: str) -> Any:
        if kind == "Job":
            return {"spec": {}, "status": {}}
        return {"metadata": {}, "data": {"events": self.told} if name.endswith("-events") else self.store}

    def list(self, kind: str, labels: str = "", fields: str = "") -> Any:
        return [], ""


def zoo(tmp_path: Path, content: bytes) -> podplace.PodPlace:
    (tmp_path / podplace.ZOO_ARCHIVE).write_bytes(content)
    spec = build(from_arguments({"model_def": "a.b", "training_data": "x"}))
    (tmp_path / "spec.json").write_text(json.dumps(spec.to_json()))
    work = tmp_path / "work"
    return podplace.PodPlace("n", "ns", "u", 1.5, work, "a", "m", False, None, tmp_path, tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.XHDTYPE], ids=["a member", "a header"])
def test_a_zoo_of_gigabytes_in_a_small_archive_takes_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: bytes
) -> None:
    monkeypatch.setattr(podplace, "_UNPACKED", 8 << 20)
    entry = tarfile.TarInfo("model.py")
    entry.size, entry.type = 1 << 30, kind
    content = gzip.compress(entry.tobuf() + bytes(64 << 20), 1)
    with little_memory(40 << 20), pytest.raises(BadSetting, match="no model zoo has"):
        zoo(tmp_path, content).spec()
    assert not (tmp_path / "work" / "zoo").exists()


def test_a_zoo_is_unpacked_as_it_was_packed(tmp_path: Path) -> None:
    (tmp_path / "zoo" / "folder").mkdir(parents=True)
    (tmp_path / "zoo" / "folder" / ("long" * 40 + ".py")).write_text("x = 1\n")
    spec = zoo(tmp_path, podplace.pack_zoo(tmp_path / "zoo", 10_000)).spec()
    (found,) = Path(spec.model_zoo).rglob("*.py")
    assert found.read_text() == "x = 1\n"


@pytest.mark.parametrize(
    "content", [b"", b"no archive", gzip.compress(b"no archive" * 100, mtime=0), b"\x1f\x8b\x08"]
)
def test_what_is_no_archive_ends_in_our_error(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(BadSetting, match=r"zoo.tar.gz"):
        zoo(tmp_path, content).spec()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("../model.py", tarfile.REGTYPE),
        ("zoo/../../model.py", tarfile.REGTYPE),
        ("/model.py", tarfile.REGTYPE),
        ("zoo", tarfile.SYMTYPE),
        ("zoo", tarfile.LNKTYPE),
        ("zoo", tarfile.FIFOTYPE),
        ("zoo", tarfile.CHRTYPE),
    ],
)
def test_a_zoo_reaches_nothing_beside_it(tmp_path: Path, name: str, kind: bytes) -> None:
    out = io.BytesIO()
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, "/"
    with tarfile.open(fileobj=out, mode="w:gz") as files:
        files.addfile(entry, io.BytesIO())
    with pytest.raises(BadSetting, match="is no file of a model zoo"):
        zoo(tmp_path, out.getvalue()).spec()


def test_a_zoo_that_is_not_one_directory_is_refused(tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as files:
        for name in ("a/model.py", "b/model.py"):
            files.addfile(tarfile.TarInfo(name), io.BytesIO())
    with pytest.raises(BadSetting, match="2 directories, not one"):
        zoo(tmp_path, out.getvalue()).spec()


def test_a_zoo_that_no_pod_would_unpack_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(podplace, "_UNPACKED", 1 << 20)
    (tmp_path / "data.bin").write_bytes(bytes(1 << 20))
    with pytest.raises(BadSetting, match=r"more than 1,048,576 bytes .*data.bin"):
        podplace.pack_zoo(tmp_path, 10_000)
