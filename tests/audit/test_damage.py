"""What the history needs and is missing or altered is a failure that names the file, the line or the record."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from elasticdl.audit import Report, audit
from elasticdl.errors import AuditFailed
from tests.audit.histories import History, Member, chain, histories, seal

SEED = 33
"""A history with several members in its views, members that died, redone steps and chunks of one size in several steps."""
SEEDS = st.integers(0, 2**32)
PROPERTY = settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def history(tmp_path: Path) -> History:
    return histories(SEED, tmp_path, disturb=0.3)


def rewrite(member: Member, directory: Path, lines: list[str]) -> None:
    """Write a member's file anew with valid checksums: what is wrong then is the history, not the bytes."""
    member.file(directory).write_bytes(chain(lines) + member.cut)


def counted(history: History, member: Member, kind: str = "contributed") -> list[int]:
    """Return the indices of the member's lines of a kind that count and hold records."""
    found = []
    for index, line in enumerate(member.lines):
        fields = line.split()
        if fields[0] == kind and history.lineage.get(int(fields[2])) == int(fields[1]) and fields[-2] != "0":
            found.append(index)
    return found


def contributor(history: History) -> tuple[Member, int]:
    """Return a member and the middle one of its lines that count."""
    member = max(history.everybody, key=lambda one: len(counted(history, one)))
    lines = counted(history, member)
    return member, lines[len(lines) // 2]


def test_a_record_missing(history: History, tmp_path: Path) -> None:
    member, index = contributor(history)
    rewrite(member, tmp_path, member.lines[:index] + member.lines[index + 1 :])
    step = member.lines[index].split()[2]
    with pytest.raises(AuditFailed, match=rf"step {step} .* a contributed line is missing"):
        audit(tmp_path)


def test_a_record_missing_together_with_its_sum(history: History, tmp_path: Path) -> None:
    """A whole step that forgets a chunk, consistently in all files, is found by the epoch's count."""
    victim, index = contributor(history)
    _, view, step, _, epoch, task, chunk, records, _ = victim.lines[index].split()
    for member in history.everybody:
        lines = []
        for line in member.lines:
            fields = line.split()
            if line == victim.lines[index]:
                continue
            if fields[0] == "committed" and fields[1:3] == [view, step]:
                line = f"committed {view} {step} {int(fields[3]) - int(records)} 1"
            lines.append(line)
        rewrite(member, tmp_path, lines)
    with pytest.raises(
        AuditFailed, match=rf"never trained in epoch {int(epoch) + 1}: task {task}, chunk {chunk} \(.* of s\d"
    ):
        audit(tmp_path)


def test_a_record_twice(history: History, tmp_path: Path) -> None:
    """Two steps train the same chunk, everything else fits."""
    member, index = contributor(history)
    _, _, _, _, epoch, task, chunk, records, _ = member.lines[index].split()
    other = next(
        (one, at)
        for one in history.everybody
        for at in counted(history, one)
        if one.lines[at].split()[4] == epoch
        and one.lines[at].split()[7] == records
        and one.lines[at] != member.lines[index]
    )
    one, at = other
    lines = list(one.lines)
    lines[at] = " ".join([*lines[at].split()[:5], task, chunk, records, "0"])
    rewrite(one, tmp_path, lines)
    with pytest.raises(
        AuditFailed,
        match=rf"audit, line \d+: trained twice in epoch {int(epoch) + 1}: task {task}, chunk {chunk} ",
    ):
        audit(tmp_path)


def test_a_lane_twice(history: History, tmp_path: Path) -> None:
    member, index = contributor(history)
    rewrite(member, tmp_path, [*member.lines[: index + 1], *member.lines[index:]])
    with pytest.raises(AuditFailed, match=rf"line {index + 2}: lane \d+ of step \d+ was contributed twice"):
        audit(tmp_path)


@pytest.mark.parametrize(
    ("field", "value", "message"), [(5, "9999", "no task"), (4, "7", "no task"), (7, "99", "not 99")]
)
def test_a_record_that_never_was(
    history: History, tmp_path: Path, field: int, value: str, message: str
) -> None:
    member, index = contributor(history)
    fields = member.lines[index].split()
    fields[field] = value
    rewrite(member, tmp_path, [*member.lines[:index], " ".join(fields), *member.lines[index + 1 :]])
    with pytest.raises(AuditFailed, match=rf"line {index + 1}: .*{message}"):
        audit(tmp_path)


def test_more_corrupt_records_than_there_are(history: History, tmp_path: Path) -> None:
    member, index = contributor(history)
    fields = member.lines[index].split()
    fields[-1] = str(int(fields[-2]) + 1)
    rewrite(member, tmp_path, [*member.lines[:index], " ".join(fields), *member.lines[index + 1 :]])
    with pytest.raises(AuditFailed, match=rf"line {index + 1}: \d+ of \d+ records are said to be corrupt"):
        audit(tmp_path)


def test_members_that_disagree_whether_a_step_changed_the_model(history: History, tmp_path: Path) -> None:
    commits = [
        (member, line)
        for member in history.everybody
        for line in member.lines
        if line.startswith("committed")
    ]
    member, line = next(
        (member, line) for member, line in commits if sum(line == other for _, other in commits) > 1
    )
    other = line.removesuffix(" 1") + " 0"
    rewrite(member, tmp_path, [other if one == line else one for one in member.lines])
    with pytest.raises(AuditFailed, match=f"whether step {line.split()[2]} changed the model"):
        audit(tmp_path)


@pytest.mark.parametrize("kind", ["contributed", "committed"])
def test_a_file_cut_where_it_counts(history: History, tmp_path: Path, kind: str) -> None:
    """Members lose the end of their files, in the middle of a line that counts."""
    for member in history.everybody if kind == "committed" else [contributor(history)[0]]:
        lines = counted(history, member, kind)
        if lines:
            whole = chain(member.lines[: lines[-1] + 1])
            member.file(tmp_path).write_bytes(whole[:-3])
    with pytest.raises(AuditFailed, match=r"missing"):
        audit(tmp_path)


def test_a_file_cut_before_a_view_that_counts(history: History, tmp_path: Path) -> None:
    member, index = contributor(history)
    base = max(at for at in range(index) if member.lines[at].startswith("base"))
    rewrite(member, tmp_path, member.lines[:base])
    with pytest.raises(AuditFailed, match=rf"member {member.id} is cut where it counts"):
        audit(tmp_path)


def test_a_cut_line_that_does_not_count_is_fine(history: History, tmp_path: Path) -> None:
    for member in history.everybody:
        member.file(tmp_path).write_bytes(chain(member.lines) + b"contributed 99 9")
    assert len(audit(tmp_path).cut_files) == len(history.everybody)


def test_an_edited_line(history: History, tmp_path: Path) -> None:
    member, index = contributor(history)
    file = member.file(tmp_path)
    lines = file.read_bytes().split(b"\n")
    lines[index] = lines[index].replace(b"contributed", b"Contributed")
    file.write_bytes(b"\n".join(lines))
    with pytest.raises(AuditFailed, match=rf"{file.name}, line {index + 1}: its checksum does not hold"):
        audit(tmp_path)


def test_two_lines_exchanged(history: History, tmp_path: Path) -> None:
    member, index = contributor(history)
    file = member.file(tmp_path)
    lines = file.read_bytes().split(b"\n")
    lines[index], lines[index + 1] = lines[index + 1], lines[index]
    file.write_bytes(b"\n".join(lines))
    with pytest.raises(AuditFailed, match=rf"{file.name}, line {index + 1}: "):
        audit(tmp_path)


def test_a_missing_file(history: History, tmp_path: Path) -> None:
    member, _ = contributor(history)
    member.file(tmp_path).unlink()
    with pytest.raises(
        AuditFailed, match=rf"missing file: .* member {member.id}, which took part in view \d+"
    ):
        audit(tmp_path)


def test_the_missing_file_of_a_member_that_owned_no_lane(tmp_path: Path) -> None:
    """Whoever stood in a view that counts has to have a file, also one that computed nothing."""
    for seed in range(50):
        (tmp_path / str(seed)).mkdir()
        history = histories(seed, tmp_path / str(seed), disturb=0.2)
        for member in history.everybody:
            views = {line.split()[1] for line in member.lines if line.startswith("base")}
            if not counted(history, member) and views & {str(view) for view in history.lineage.values()}:
                member.file(history.directory).unlink()
                with pytest.raises(AuditFailed, match="missing file"):
                    audit(history.directory)
                return
    pytest.fail("no such member in 50 histories")


def test_a_file_under_another_name(history: History, tmp_path: Path) -> None:
    member, _ = contributor(history)
    member.file(tmp_path).rename(tmp_path / f"worker-9-9-{member.id}.audit")
    with pytest.raises(AuditFailed, match=r"line 1: the file of .* under another name"):
        audit(tmp_path)


def test_missing_manifest(history: History, tmp_path: Path) -> None:
    (tmp_path / "manifest").unlink()
    with pytest.raises(AuditFailed, match="manifest: missing file"):
        audit(tmp_path)


@pytest.mark.parametrize("name", ["manifest", "finished"])
@pytest.mark.parametrize("how", ["edited", "cut", "format", "empty", "list", "fields"])
def test_altered_manifest(history: History, tmp_path: Path, name: str, how: str) -> None:
    path = tmp_path / name
    body = json.loads(path.read_text())
    plain = {key: value for key, value in body.items() if key != "checksum"}
    changed: dict[str, Callable[[], str]] = {
        "edited": lambda: json.dumps(body | ({"seed": 1} if name == "manifest" else {"step": 1})),
        "cut": lambda: path.read_text()[:-5],
        "format": lambda: seal(plain | {"format": 2}),
        "empty": lambda: "",
        "list": lambda: "[1]",
        "fields": lambda: seal({"format": 1}),
    }
    path.write_text(changed[how]())
    with pytest.raises(AuditFailed, match=rf"^{name}: "):
        audit(tmp_path)


def test_a_commit_nobody_saw(history: History, tmp_path: Path) -> None:
    """`finished` claims a step more than there are commits for."""
    history.write_finished(step=history.step + 1)
    with pytest.raises(AuditFailed):
        audit(tmp_path)


def test_a_result_of_another_lineage(history: History, tmp_path: Path) -> None:
    history.write_finished(state_view=history.lineage[history.step] - 1)
    with pytest.raises(AuditFailed, match="finished: the result is step"):
        audit(tmp_path)


def test_complete_that_is_not(tmp_path: Path) -> None:
    seed = next(
        seed
        for seed in range(100)
        if 0 < (one := History(seed, tmp_path, stop_early=True)).end < len(one.steps)
    )
    history = histories(seed, tmp_path, stop_early=True)
    history.write_finished(complete=True)
    with pytest.raises(AuditFailed, match="never trained in epoch"):
        audit(tmp_path)


def test_members_that_disagree_on_a_view(history: History, tmp_path: Path) -> None:
    member = max(history.everybody, key=lambda one: len(one.lines))
    index = next(
        at for at, line in enumerate(member.lines) if line.startswith("base") and line.count(",") >= 1
    )
    fields = member.lines[index].split()
    fields[-1] = ",".join(reversed(fields[-1].split(",")))
    rewrite(member, tmp_path, [*member.lines[:index], " ".join(fields), *member.lines[index + 1 :]])
    with pytest.raises(AuditFailed, match=r"view \d+ has another content than in"):
        audit(tmp_path)


def test_a_later_view_that_redid_a_step_which_counts(tmp_path: Path) -> None:
    """The lineage is broken if the newest state rests on a commit that a later view had given up."""
    alice, bob = "a" * 32, "b" * 32
    body = {
        "format": 1,
        "shards": [["s", 0, 3]],
        "seed": 0,
        "records_per_task": 1,
        "minibatch_size": 1,
        "num_epochs": 1,
    }
    (tmp_path / "manifest").write_text(seal(body))
    (tmp_path / "finished").write_text(
        seal({"format": 1, "view": 4, "step": 3, "state_view": 3, "complete": True})
    )

    def work(view: int, step: int) -> list[str]:
        return [f"contributed {view} {step} 0 0 {step - 1} 0 1 0", f"committed {view} {step} 1 1"]

    old = ["base 1 0 1 " + alice, *work(1, 1), "base 3 1 1 " + alice, *work(3, 2), *work(3, 3)]
    new = ["base 2 0 1 " + bob, *work(2, 1)]
    for name, member, lines in (("worker-0-1", alice, old), ("worker-1-1", bob, new)):
        (tmp_path / f"{name}-{member}.audit").write_bytes(
            chain([f"elasticdl-audit 1 {member} {name}", *lines])
        )
    with pytest.raises(AuditFailed, match="lineage is broken"):
        audit(tmp_path)


def _outcome(directory: Path) -> Report | None:
    try:
        return audit(directory)
    except AuditFailed:
        return None


@PROPERTY
@given(seed=SEEDS, data=st.data())
def test_any_changed_byte_is_found_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, seed: int, data: st.DataObject
) -> None:
    """Whatever one byte of one file becomes, the audit fails or still proves the very same."""
    directory = tmp_path_factory.mktemp("audit")
    histories(seed, directory)
    before = audit(directory)
    path = data.draw(st.sampled_from(sorted(directory.iterdir())))
    content = bytearray(path.read_bytes())
    assume(content)
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] = data.draw(st.integers(0, 255).filter(lambda byte: byte != content[at]))
    path.write_bytes(content)
    after = _outcome(directory)
    if after is not None:
        assert (after.records, after.epochs, after.steps, after.complete) == (
            before.records, before.epochs, before.steps, before.complete,
        )  # fmt: skip


@PROPERTY
@given(seed=SEEDS, data=st.data())
def test_any_lost_tail_is_found_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, seed: int, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("audit")
    histories(seed, directory)
    before = audit(directory)
    path = data.draw(st.sampled_from(sorted(directory.glob("*.audit"))))
    content = path.read_bytes()
    path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    after = _outcome(directory)
    assert after is None or (after.records, after.epochs, after.steps) == (
        before.records,
        before.epochs,
        before.steps,
    )


@PROPERTY
@given(seed=SEEDS, data=st.data())
def test_any_lost_line_that_counts_is_found(
    tmp_path_factory: pytest.TempPathFactory, seed: int, data: st.DataObject
) -> None:
    """Also with checksums made anew, no contribution that counts can be taken away."""
    directory = tmp_path_factory.mktemp("audit")
    history = histories(seed, directory)
    members = [member for member in history.everybody if counted(history, member)]
    member = data.draw(st.sampled_from(members))
    index = data.draw(st.sampled_from(counted(history, member)))
    rewrite(member, directory, member.lines[:index] + member.lines[index + 1 :])
    assert _outcome(directory) is None
