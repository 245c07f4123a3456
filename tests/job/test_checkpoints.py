"""Checkpoints of jobs with parameter servers: a job that is killed, or has ended, continues as another one, exactly where it was."""

from __future__ import annotations

import functools
import hashlib
import os
import resource
import shutil
import signal
import time
from pathlib import Path

import keras
import numpy as np
import psutil

from elasticdl.audit import audit
from elasticdl.checkpoint import layout as checkpoints
from elasticdl.checkpoint.comparing import rows_by_table
from elasticdl.checkpoint.manifest import NAME
from elasticdl.control.protocol.status import JobEvent
from elasticdl.tools.checkpoint import listed, shown

from .conftest import EPOCHS, IDS, RECORDS, WIDTH, Job, Start, orphans
from .test_faults import seen
from .test_group_checkpoints import flip
from .test_ps import at, processes


def weights(path: Path) -> list[np.ndarray]:
    """Return the rows of the table and the sum of all that are written there."""
    if path.suffix == ".npz":
        made = np.load(path)
        return [made["rows"], made["total"]]
    model = keras.models.load_model(path)
    return [*model.get_layer("rows").get_weights(), *model.get_layer("total").get_weights()]


def check(job: Job, output: Path, ids: np.ndarray, epochs: int = EPOCHS) -> dict[str, object]:
    """Let a job end, and compare its result with what the data says."""
    summary = job.wait().succeeded().summary
    rows, total = weights(output)
    expected = np.bincount(ids, minlength=IDS).astype(np.float32) * epochs
    np.testing.assert_array_equal(rows, np.repeat(expected[:, None], WIDTH, 1))
    assert total.item() == RECORDS * epochs
    return summary


def saved(directory: Path, job: Job, *, within_tasks: bool = False) -> Path:
    """Wait for a job's first checkpoint, or the first one of which slots hold chunks of tasks that are not done; return it."""
    until = time.monotonic() + 300
    while True:
        for number in checkpoints.numbers(directory):
            folder = checkpoints.folder_of(directory, number)
            if not (within_tasks and checkpoints.read(folder).is_between_tasks):
                return folder
        assert job.process.poll() is None, job.wait().logs
        assert time.monotonic() < until
        time.sleep(0.05)  # another process's file has no event


def kill_all(job: Job) -> None:
    """Kill a whole job at once."""
    for process in psutil.Process(job.process.pid).children(recursive=True):
        process.kill()
    job.process.kill()
    job.process.communicate()
    assert not orphans(str(job.state))


def digest(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return hashlib.blake2b(b"".join(path.read_bytes() for path in files)).hexdigest()


def test_a_killed_job_goes_on_with_any_number_of_servers(
    plain: Start, tmp_path: Path, ids: np.ndarray
) -> None:
    directory = tmp_path / "checkpoints"
    job = plain(checkpoint_dir=directory, checkpoint_steps=8, keep_checkpoint_max=0)
    folder = saved(directory, job, within_tasks=True)
    kill_all(job)
    (tmp_path / "go").touch()
    manifest = checkpoints.read(folder)
    before = digest(folder)
    for servers in (1, 2, 3):
        output, records = tmp_path / f"{servers}.npz", tmp_path / f"audit-{servers}"
        job = plain(
            checkpoint_dir_for_init=folder,
            num_ps_pods=servers,
            num_workers=2 if servers == 2 else 1,
            output=output,
            audit=records,
        )
        summary = check(job, output, ids)
        assert (summary["steps"], summary["roll_backs"]) == (250, 0)
        assert summary["resumed_from"] == str(folder)
        report = audit(records)
        assert report.complete
        assert report.slots == 1024
        done = sum(epoch.before for epoch in report.epochs)
        assert done == manifest.low + len(manifest.above) > 0
        assert report.trained == report.records < RECORDS * EPOCHS
        assert f"left at {folder / NAME}" in report.statement
        assert digest(folder) == before


def test_a_job_that_has_ended_goes_on_for_another_epoch_as_if_it_had_not(
    plain: Start, tmp_path: Path, ids: np.ndarray
) -> None:
    """With one worker and one server, slots take gradients in one order; what Adam makes of them depends on all before.

    With several servers, a slot that is busy being copied may take a minibatch after the next one: Adam shows it from the fifth digit on.
    """
    (tmp_path / "go").touch()
    directory = tmp_path / "checkpoints"
    plain = functools.partial(plain, optimizer="adam", num_workers=1, num_ps_pods=1)
    assert plain(output=tmp_path / "whole.npz").wait().code == 0
    first = plain(num_epochs=1, checkpoint_dir=directory).wait().succeeded()
    folder = checkpoints.folder_of(directory, checkpoints.numbers(directory)[-1])
    assert first.summary["checkpoint"] == str(folder)
    (line,) = listed(directory)
    assert line.startswith(f"{folder.name} ")
    assert line.endswith("all files are there")
    lines = list(shown(directory))
    assert lines[-1].split(maxsplit=1) == ["state", "whole: all checksums hold"]
    assert any("1 epoch, 2,000 records" in line for line in lines)
    assert any(f"{len(np.unique(ids)):,} rows of 2" in line for line in lines)
    newer = shutil.copytree(folder, checkpoints.folder_of(directory, 9))
    (damaged, *_) = checkpoints.read(newer).sizes()
    flip(damaged)
    result = (
        plain(
            checkpoint_dir_for_init=directory,
            checkpoint_dir=directory,
            output=tmp_path / "resumed.npz",
        )
        .wait()
        .succeeded()
    )
    assert f"{damaged}: the checkpoint is damaged" in result.err
    assert f"{folder} is taken, the one before" in result.err
    assert result.summary["resumed_from"] == str(folder)
    assert checkpoints.numbers(directory)[1:] == [9, 10]
    plain(checkpoint_dir_for_init=folder, num_ps_pods=3, output=tmp_path / "three.npz").wait().succeeded()
    wholes = weights(tmp_path / "whole.npz")
    for resumed, three, whole in zip(
        weights(tmp_path / "resumed.npz"), weights(tmp_path / "three.npz"), wholes, strict=True
    ):
        np.testing.assert_array_equal(resumed, whole)
        np.testing.assert_allclose(three, whole, rtol=1e-4)


def test_at_the_end_of_an_epoch_data_may_be_dealt_out_otherwise(
    plain: Start, tmp_path: Path, ids: np.ndarray
) -> None:
    (tmp_path / "go").touch()
    directory, output = tmp_path / "checkpoints", tmp_path / "tallied.npz"
    few = {"num_workers": 1, "num_ps_pods": 1, "num_minibatches_per_task": 1}
    plain(num_epochs=1, checkpoint_dir=directory, **few).wait().succeeded()
    other = {"seed": 5, "minibatch_size": 32, "num_minibatches_per_task": 8}
    job = plain(checkpoint_dir_for_init=directory, output=output, audit=tmp_path / "audit", **other)
    check(job, output, ids)
    report = audit(tmp_path / "audit")
    assert report.complete
    assert [epoch.counted for epoch in report.epochs] == [0, RECORDS]


def test_a_full_disk_costs_a_checkpoint_and_nothing_else(
    plain: Start, tmp_path: Path, ids: np.ndarray
) -> None:
    """A limit on the size of a server's files stands for the disk."""
    directory, output = tmp_path / "checkpoints", tmp_path / "tallied.npz"
    job = plain(checkpoint_dir=directory, checkpoint_steps=20, output=output)
    server: list[int] = []
    at(job, 1, lambda status: server.append(processes(status, "ps")[0]))
    psutil.Process(server[0]).rlimit(resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))
    note = next(item for item in seen(job) if isinstance(item, JobEvent) and "given up" in item.text)
    assert "File too large" in note.text
    psutil.Process(server[0]).rlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    saved(directory, job)
    (tmp_path / "go").touch()
    summary = check(job, output, ids)
    numbers = checkpoints.numbers(directory)
    assert numbers[0] > 1
    assert summary["checkpoint"] == str(checkpoints.folder_of(directory, numbers[-1]))
    assert not list(directory.glob(".*"))
    for number in numbers:
        rows_by_table(checkpoints.read(checkpoints.folder_of(directory, number)))


def test_what_can_not_be_resumed_is_refused(plain: Start, tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    job = plain(checkpoint_dir=directory, checkpoint_steps=20)
    folder = saved(directory, job)
    os.kill(job.process.pid, signal.SIGKILL)
    job.process.communicate()
    (tmp_path / "go").touch()
    before = digest(folder)

    def refuse(*words: str, path: Path = folder, **settings: object) -> None:
        few = {"num_workers": 1, "num_ps_pods": 1}
        result = plain(checkpoint_dir_for_init=path, output=tmp_path / "no.npz", **few, **settings).wait()
        assert result.code == 2, result.err + result.logs
        for word in words:
            assert word in result.err
        assert not (tmp_path / "no.npz").exists()

    manifest = checkpoints.read(folder)
    epoch = manifest.low // manifest.dealing.ledger().num_tasks + 1
    refuse(f"in the middle of epoch {epoch},", "seed (0 and 3)", seed=3)
    refuse("nothing is left to train", num_epochs=1, max_step=1)
    refuse("does not exist", path=tmp_path / "nowhere")
    refuse("there are checkpoints of another job", path=_copy(folder, tmp_path), checkpoint_dir=directory)
    refuse("is of another model", "table 'rows'", "admission 1 and 2", embedding_admission=2)
    (file, *_) = checkpoints.read(folder).sizes()
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    refuse("can't be restored", "its checksum differs from the manifest's")
    file.write_bytes(content[:-8])
    refuse("is damaged", "bytes, and the manifest says")
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert digest(folder) == before


def _copy(folder: Path, to: Path) -> Path:
    return Path(shutil.copytree(folder, to / "elsewhere"))
