"""True histories pass, and the report says what they were."""

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elasticdl.audit import audit
from elasticdl.errors import AuditFailed, BadInput
from tests.audit.histories import History, chain, histories, unchain

SEEDS = st.integers(0, 2**32)
PROPERTY = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


@PROPERTY
@given(seed=SEEDS)
def test_a_disturbed_job_is_proven(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    history = histories(seed, tmp_path_factory.mktemp("audit"))
    report = audit(history.directory)
    records = sum(int(count) for _, _, count in history.shards)
    assert report.finished
    assert report.complete
    assert report.steps == len(history.steps)
    assert report.records == records * history.epochs
    assert [epoch.counted for epoch in report.epochs] == [records] * history.epochs
    assert all(epoch.complete for epoch in report.epochs)
    assert report.members == len(history.everybody)
    assert len(report.cut_files) == sum(bool(member.cut) for member in history.dead)
    assert "exactly once" in str(report)


@PROPERTY
@given(seed=SEEDS, early=st.booleans())
def test_what_was_not_trained_is_not_proven_to_be(
    tmp_path_factory: pytest.TempPathFactory, seed: int, early: bool
) -> None:
    """Corrupt records, and steps that changed nothing, are counted apart from what was trained."""
    history = histories(seed, tmp_path_factory.mktemp("audit"), stop_early=early, leaves_out=True)
    report = audit(history.directory)
    counted = [
        (step, *chunk) for step, chunks in enumerate(history.steps[: history.end], 1) for chunk in chunks
    ]
    bad = sum(history.bad(task, chunk, records) for _, _, task, chunk, records in counted)
    idle = sum(
        records - history.bad(task, chunk, records)
        for step, _, task, chunk, records in counted
        if step in history.idle
    )
    assert (report.bad_records, report.idle_records, report.idle_steps) == (bad, idle, len(history.idle))
    assert report.trained == report.records - bad - idle
    if bad:
        assert f"{bad:,} were skipped as corrupt" in report.statement
    if idle:
        assert f"{idle:,} were in " in report.statement
    if bad or idle:
        assert "each of the" not in report.statement


@PROPERTY
@given(seed=SEEDS)
def test_a_job_ended_early_counts_up_to_its_result(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    history = histories(seed, tmp_path_factory.mktemp("audit"), stop_early=True)
    report = audit(history.directory)
    assert report.finished
    assert report.steps == history.end
    assert report.complete == (history.end == len(history.steps))
    assert report.records == sum(chunk[3] for step in history.steps[: history.end] for chunk in step)


@PROPERTY
@given(seed=SEEDS)
def test_a_running_job_is_proven_as_far_as_it_has_come(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    history = histories(seed, tmp_path_factory.mktemp("audit"))
    (history.directory / "finished").unlink()
    report = audit(history.directory)
    assert not report.finished
    assert not report.complete
    assert report.steps == len(history.steps)
    assert "has not finished" in report.statement


def test_an_undisturbed_job_discards_nothing(tmp_path: Path) -> None:
    report = audit(histories(3, tmp_path, disturb=0.0).directory)
    assert (report.redone_steps, report.discarded_chunks, report.discarded_records) == (0, 0, 0)


def test_discarded_contributions_are_counted(tmp_path: Path) -> None:
    history = histories(5, tmp_path, disturb=0.9)
    told = [
        line.split()
        for member in history.everybody
        for line in member.lines
        if line.startswith("contributed")
    ]
    counted = [line for line in told if history.lineage.get(int(line[2])) == int(line[1])]
    report = audit(tmp_path)
    assert report.discarded_chunks == len(told) - len(counted) > 0
    assert report.discarded_records == sum(int(line[7]) for line in told) - report.records
    assert report.redone_steps == len(
        {line[2] for line in told} & {line[2] for line in told if line not in counted}
    )


def test_a_job_that_has_just_begun(tmp_path: Path) -> None:
    history = histories(1, tmp_path)
    (tmp_path / "finished").unlink()
    for member in history.everybody:
        member.file(tmp_path).unlink()
    report = audit(tmp_path)
    assert (report.steps, report.records, report.epochs) == (0, 0, ())


def test_lines_written_while_the_auditor_reads_wait_for_the_next_time(tmp_path: Path) -> None:
    """Every moment of a running job is auditable: cut all files at one instant of a common clock."""
    history = histories(12, tmp_path, disturb=0.3)
    (tmp_path / "finished").unlink()
    # a member's own order is kept; members' lines interleave by (view, kind, step), which is a possible order of time
    rank = {"elasticdl-audit": 0, "base": 1, "contributed": 2, "committed": 3}
    stamped = []
    for index, member in enumerate(history.everybody):
        latest = (0, 0, 0)
        for number, line in enumerate(member.lines):
            kind, *rest = line.split()
            if kind == "base":
                latest = max(latest, (int(rest[0]), 0, 1))
            elif kind in ("contributed", "committed"):
                latest = max(latest, (int(rest[0]), int(rest[1]), rank[kind]))
            stamped.append((latest, index, number))
    stamped.sort()
    lengths = [0] * len(history.everybody)
    rng = random.Random(1)
    for position, (_, index, number) in enumerate(stamped):
        lengths[index] = number + 1
        if rng.random() < 0.2 or position == len(stamped) - 1:
            for member, length in zip(history.everybody, lengths, strict=True):
                member.file(tmp_path).write_bytes(chain(member.lines[:length]))
            audit(tmp_path)


@pytest.mark.parametrize("name", ["elsewhere", ""])
def test_nothing_to_audit(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match="holds no audit"):
        audit(tmp_path / name)


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    history = histories(2, tmp_path)
    member = history.everybody[0]
    lines = unchain(member.file(tmp_path).read_bytes())
    lines[0] = lines[0].replace("elasticdl-audit 1", "elasticdl-audit 2")
    member.file(tmp_path).write_bytes(chain(lines))
    with pytest.raises(AuditFailed, match="format"):
        audit(tmp_path)


def test_the_report_says_alike_epochs_once(tmp_path: Path) -> None:
    seed = next(seed for seed in range(100) if History(seed, tmp_path).epochs == 2)
    text = str(audit(histories(seed, tmp_path).directory))
    assert text.startswith("epochs 1 to 2, each: ")
    (tmp_path / "finished").unlink()
    assert str(audit(tmp_path)).splitlines()[-1].endswith("(the job has not finished, or failed).")
