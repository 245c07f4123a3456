"""The result's final name, and the master's files in an audit directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticdl.audit import audit
from elasticdl.cluster.local.place import JobPlace
from elasticdl.control.protocol.view import StateId, ViewId
from elasticdl.data.plan.shard import Shard
from elasticdl.errors import AuditFailed, BadInput, BadSetting
from elasticdl.master.core.auditmark import write_finished, write_manifest
from elasticdl.master.core.publishing import publish, remove_unpublished
from elasticdl.master.core.records import FinishedRecord
from elasticdl.master.running.outputs import Outputs
from elasticdl.spec.jobspec import JobSpec


def saved_model(path: Path, content: str) -> Path:
    (path / "variables").mkdir(parents=True)
    (path / "variables" / "0").write_text(content)
    (path / "saved_model.pb").touch()
    return path


def test_a_file_replaces_the_earlier_one(tmp_path: Path) -> None:
    output, exported = tmp_path / "m.keras", tmp_path / ".m.step-3-view-2.keras"
    output.write_text("earlier")
    exported.write_text("new")
    for _ in range(2):  # every master that reads `finished` does it
        publish(exported, output)
        assert output.read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["m.keras"]


@pytest.mark.parametrize("earlier", [False, True])
def test_a_directory_replaces_the_earlier_one(tmp_path: Path, earlier: bool) -> None:
    output, exported = tmp_path / "m", tmp_path / ".m.step-3-view-2"
    if earlier:
        saved_model(output, "earlier")
    saved_model(exported, "new")
    for _ in range(2):
        publish(exported, output)
        assert (output / "variables" / "0").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


ASIDE = ".m.0123456789abcdef.replaced"


@pytest.mark.parametrize("killed", ["before", "after"])
def test_what_stays_aside_is_no_obstacle_and_is_removed(tmp_path: Path, killed: str) -> None:
    """A master was killed before or after the second rename, of this job or of an earlier one."""
    output, exported = tmp_path / "m", tmp_path / ".m.step-3-view-2"
    saved_model(tmp_path / ASIDE, "older")
    saved_model(exported if killed == "before" else output, "new")
    saved_model(tmp_path / f".other{ASIDE}", "of another output")
    publish(exported, output)
    assert (output / "variables" / "0").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == [f".other{ASIDE}", "m"]


def test_an_earlier_result_stays_aside_until_there_is_another(tmp_path: Path) -> None:
    saved_model(tmp_path / ASIDE, "earlier")
    with pytest.raises(FileNotFoundError):
        publish(tmp_path / ".m.step-3-view-2", tmp_path / "m")
    assert (tmp_path / ASIDE / "variables" / "0").read_text() == "earlier"


def test_nobody_can_be_in_the_way_of_what_steps_aside(tmp_path: Path) -> None:
    output, exported, victim = tmp_path / "m", tmp_path / ".m.step-3-view-2", tmp_path / "victim"
    saved_model(output, "earlier")
    saved_model(exported, "new")
    saved_model(victim, "precious")
    # rmtree follows no link and removes none, and no directory is renamed onto one.
    guessed = tmp_path / ".m.replaced"
    guessed.symlink_to(victim)
    publish(exported, output)
    assert (output / "variables" / "0").read_text() == "new"
    assert (victim / "variables" / "0").read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".m.replaced", "m", "victim"]


def test_a_directory_of_other_things_stays(tmp_path: Path) -> None:
    output, exported = tmp_path / "m", tmp_path / ".m.step-3-view-2"
    saved_model(output, "earlier")
    (output / "thesis.txt").write_text("precious")
    saved_model(exported, "new")
    with pytest.raises(FileExistsError, match=r"other things in it, such as 'thesis.txt'"):
        publish(exported, output)
    assert (output / "thesis.txt").read_text() == "precious"
    assert (exported / "variables" / "0").read_text() == "new"


def test_a_lost_export_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        publish(tmp_path / ".m.step-3-view-2.keras", tmp_path / "m.keras")


def test_only_exports_of_this_output_are_removed(tmp_path: Path) -> None:
    output = tmp_path / "m.keras"
    gone = [tmp_path / ".m.step-3-view-2.keras", tmp_path / ".m.step-9-view-4.keras"]
    stay = [
        tmp_path / name
        for name in ("m.keras", ".other.step-3-view-2.keras", ".m.step-3.keras", "m.step-3-view-2.keras")
    ]
    for path in (*gone, *stay):
        path.write_text("")
    saved_model(tmp_path / ".m.step-1-view-1.keras", "a directory")
    saved_model(tmp_path / "..m.step-5-view-1.keras.x1y2", "what a killed exporter was writing to")
    remove_unpublished(output)
    assert sorted(tmp_path.iterdir()) == sorted(stay)
    remove_unpublished(tmp_path / "nowhere" / "m.keras")


def manifest(directory: Path, again: bool = False, seed: int = 7) -> None:
    write_manifest(
        directory,
        [Shard("a", 0, 10)],
        seed=seed,
        records_per_task=4,
        minibatch_size=2,
        num_epochs=1,
        has_servers=False,
        again=again,
    )


def test_the_auditor_reads_the_manifest(tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        audit(tmp_path)
    manifest(tmp_path / "deep" / "audit")
    assert audit(tmp_path / "deep" / "audit").records == 0
    write_finished(tmp_path / "deep" / "audit", view=3, step=2, state_view=1, complete=True)
    with pytest.raises(AuditFailed):  # two steps are said to count, and nobody recorded them
        audit(tmp_path / "deep" / "audit")


def test_a_directory_belongs_to_one_job(tmp_path: Path) -> None:
    manifest(tmp_path)
    before = (tmp_path / "manifest").read_bytes()
    with pytest.raises(BadSetting, match="another job"):
        manifest(tmp_path)
    with pytest.raises(BadSetting, match="another job"):
        manifest(tmp_path, again=True, seed=8)
    manifest(tmp_path, again=True)
    assert (tmp_path / "manifest").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["manifest"]


def test_an_audit_that_was_removed_is_named(tmp_path: Path) -> None:
    spec = JobSpec(training_data="data", model_def="model.custom_model", audit=str(tmp_path / "audit"))
    outputs = Outputs(JobPlace(tmp_path / "job", tmp_path, 0.0, tmp_path), spec)

    def complete(record: FinishedRecord) -> None:
        write_finished(
            Path(spec.audit),
            view=record.view,
            step=record.state.step,
            state_view=record.state.view,
            complete=True,
        )

    record = FinishedRecord(ViewId(2), StateId(3, ViewId(2)), "m.keras")
    failed = outputs.complete_audit(complete, record)
    assert failed is not None
    assert (
        f"the directory {spec.audit} was removed while the job ran; what it trained can't be proven" in failed
    )
    (tmp_path / "audit").mkdir()
    assert outputs.complete_audit(complete, record) is None
