"""The proof for a synchronous job: of each step the history is the highest view that committed it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from elasticdl.audit.records import (
    MOST_EPOCHS,
    Earlier,
    File,
    Finished,
    Manifest,
    Seen,
    Step,
    View,
    epochs_of,
    read_earlier,
    sizes_of,
)
from elasticdl.audit.report import Report
from elasticdl.errors import AuditFailed

_MAX_LANES = 1 << 20
_NEAR_LANES = 1 << 10
"""Of these the set of a step is a number; more are rare, and such a number is as long as its highest lane says."""


def prove(directory: Path, manifest: Manifest, finished: Finished | None) -> Report:
    """Check the records of a synchronous job. Raises AuditFailed."""
    # Members of a running job write on. A base line refers to commits, a commit to contributions, each written earlier, so
    # sizes taken in this order see the cause of everything that they see.
    limits = {kind: sizes_of(directory) for kind in (b"base", b"committed", b"contributed")}
    files = [File(directory / name, size) for name, size in sorted(limits[b"contributed"].items())]

    evidence = _Evidence()
    for file in files:
        evidence.read(file, limits)
    earlier = read_earlier(directory, manifest)
    history = _history(evidence, finished, Step(0) if earlier is None else earlier.step)
    _check_members(history, evidence, {file.member for file in files if file.member}, directory)
    return _count_chunks(directory, manifest, finished, files, evidence, history, earlier)


@dataclass(frozen=True, slots=True)
class _Base:
    step: Step
    state_view: View
    members: tuple[str, ...]


class _Evidence:
    """What the files say of views and commits."""

    def __init__(self) -> None:
        self.bases: dict[View, tuple[_Base, str]] = {}
        """Per view its base, and the line that said so."""
        self.installed: dict[View, set[str]] = {}
        self.commits: dict[View, array[int]] = {}
        """Per view the trailers' sums of records, of its base's next step and those that follow: a view skips no step."""
        self.idle: dict[View, set[int]] = {}
        """Per view the steps that changed nothing."""

    def committed(self, view: View) -> range:
        """Return the steps that somebody committed in a view."""
        first = self.bases[view][0].step + 1
        return range(first, first + len(self.commits.get(view, ())))

    def read(self, file: File, limits: dict[bytes, dict[str, int]]) -> None:
        """Take in `base` and `committed` lines, and check that the member did one step after the other, in views it had installed."""
        name = file.path.name
        bases_end, commits_end = limits[b"base"].get(name, 0), limits[b"committed"].get(name, 0)
        own: dict[View, _Base] = {}
        done: dict[View, int] = {}
        for entry in file.entries():
            where = f"{name}, line {entry.line}"
            view = View(entry.numbers[0])
            if entry.kind == b"base":
                base = _Base(Step(entry.numbers[1]), View(entry.numbers[2]), entry.members)
                if own and view <= max(own):
                    raise AuditFailed(f"{where}: view {view} was installed after view {max(own)}")
                if file.member is None or file.member not in base.members:
                    raise AuditFailed(f"{where}: view {view} does not name this member")
                own[view] = base
                done[view] = base.step
                self.installed.setdefault(view, set()).add(file.member)
                if entry.offset < bases_end:
                    self._base(view, base, where)
                continue
            if view not in own:
                raise AuditFailed(f"{where}: view {view} was never installed by this member")
            step = entry.numbers[1]
            if step != done[view] + 1:
                raise AuditFailed(
                    f"{where}: step {step} in view {view}, where this member had come to step {done[view]}"
                )
            if entry.kind == b"committed":
                done[view] = step
                if entry.offset < commits_end:
                    self._commit(Step(step), own[view], view, entry.numbers[2:], where)

    def _base(self, view: View, base: _Base, where: str) -> None:
        other, said = self.bases.setdefault(view, (base, where))
        if other != base:
            raise AuditFailed(f"{where}: view {view} has another content than in {said}")

    def _commit(self, step: Step, base: _Base, view: View, said: tuple[int, ...], where: str) -> None:
        records, applied = said
        sums, idle = self.commits.setdefault(view, array("q")), self.idle.setdefault(view, set())
        index = step - base.step - 1
        if index == len(sums):
            sums.append(records)
            if not applied:
                idle.add(step)
        elif sums[index] != records:
            raise AuditFailed(
                f"{where}: the step's records sum up to {records}, another member has {sums[index]}"
            )
        elif applied == (step in idle):
            raise AuditFailed(
                f"{where}: another member has it otherwise, whether step {step} changed the model"
            )


# ------------------------------------------------------------------ which history counts


def _history(evidence: _Evidence, finished: Finished | None, first: Step) -> list[View]:
    """Return, for each step that counts, the view in which it does; up to the step where the job began, 0 if it began anew.

    Walks back from the newest state along the views' bases, and checks that every step on the way has no commit in a higher view.
    """
    if finished is not None:
        step, view = finished.step, finished.state_view
        final = evidence.bases.get(finished.view)
        if final is not None and (final[0].step, final[0].state_view) != (step, view):
            raise AuditFailed(
                f"finished: the result is step {step} of view {view}, but view {finished.view} starts from step {final[0].step} "
                f"of view {final[0].state_view} ({final[1]})"
            )
    else:
        step, view = _newest(evidence, first)
    segments: list[tuple[Step, Step, View]] = []
    while step > first or (first and step == first and view):
        known = evidence.bases.get(view)
        if known is None:
            raise AuditFailed(
                f"step {step} counts in view {view}, but no file tells of that view: files are missing or cut"
            )
        base, where = known
        if base.step >= step:
            raise AuditFailed(
                f"{where}: view {view} starts after step {base.step}, but step {step} is said to be of it"
            )
        if base.step and base.state_view >= view:
            raise AuditFailed(
                f"{where}: view {view} starts from a state of view {base.state_view}, which is not before it"
            )
        done = evidence.committed(view)
        if step not in done:
            raise AuditFailed(
                f"step {max(done.stop, 1)}: no file says that view {view} committed it; a committed line is missing"
            )
        for later in evidence.bases:
            given_up = range(
                max(base.step + 1, evidence.committed(later).start),
                min(step + 1, evidence.committed(later).stop),
            )
            if later > view and given_up:
                raise AuditFailed(
                    f"step {given_up[0]} counts in view {view}, but the later view {later} committed it too: the lineage is broken"
                )
        segments.append((base.step, step, view))
        step, view = base.step, base.state_view
    if step != first:
        raise AuditFailed(f"the history goes back to step {step}, and the job continued from step {first}")
    history = [View(0)] * (1 + first)
    for before, last, of_view in reversed(segments):
        history += [of_view] * (last - before)
    return history


def _newest(evidence: _Evidence, first: Step) -> tuple[Step, View]:
    """Return the newest state of an unfinished job: the last commit of its newest view, or that view's base."""
    if not evidence.bases:
        return first, View(0)
    view = max(evidence.bases)
    committed = evidence.committed(view)
    if committed:
        return Step(committed[-1]), view
    base = evidence.bases[view][0]
    return base.step, base.state_view


def _check_members(history: list[View], evidence: _Evidence, members: set[str], directory: Path) -> None:
    """Every member of a view that counts has left a file, and its file tells of the view."""
    for view in sorted(set(history) - {View(0)}):
        base, where = evidence.bases[view]
        for member in base.members:
            if member not in members:
                raise AuditFailed(
                    f"missing file: {directory} has none of member {member}, which took part in view {view} ({where})"
                )
            if member not in evidence.installed[view]:
                raise AuditFailed(
                    f"the file of member {member} is cut where it counts: view {view}, in which it took part, is missing"
                )


# ------------------------------------------------------------------ counting


def _count_chunks(
    directory: Path,
    manifest: Manifest,
    finished: Finished | None,
    files: list[File],
    evidence: _Evidence,
    history: list[View],
    earlier: Earlier | None,
) -> Report:
    seen: dict[int, Seen] = {} if earlier is None else {earlier.epoch: earlier.chunks.copy()}
    records_of_epoch: dict[int, int] = {}
    # one entry per step: what a job of a billion records costs here is tens of megabytes
    epoch_of_step = array("q", [-1]) * len(history)
    sums = array("q", [0]) * len(history)
    lanes = [0] * len(history)
    far_lanes: set[tuple[int, int]] = set()
    redone: set[int] = set()
    discarded_chunks = discarded_records = bad_records = idle_records = 0
    for file in files:
        for entry in file.entries():
            if entry.kind != b"contributed":
                continue
            view, step, lane, epoch, task, chunk, records, bad = entry.numbers
            if task >= manifest.num_tasks or epoch >= (manifest.num_epochs or MOST_EPOCHS):
                raise file.altered(entry.line, f"there is no task {task} in epoch {epoch + 1}")
            if earlier is not None and epoch < earlier.epoch:
                raise file.altered(
                    entry.line,
                    f"epoch {epoch + 1} was trained before, at the checkpoint {earlier.checkpoint}",
                )
            number, expected = manifest.chunk(task, chunk)
            if records != expected:
                raise file.altered(
                    entry.line, f"chunk {chunk} of task {task} has {expected} records, not {records}"
                )
            if bad > records:
                raise file.altered(entry.line, f"{bad} of {records} records are said to be corrupt")
            if step >= len(history) or history[step] != view:
                discarded_chunks += 1
                discarded_records += records
                if step < len(history):
                    redone.add(step)
                continue
            if epoch_of_step[step] not in (-1, epoch):
                mixed = f"epochs {epoch + 1} and {epoch_of_step[step] + 1}"
                raise file.altered(entry.line, f"step {step} takes records of {mixed}")
            epoch_of_step[step] = epoch
            if lane >= _MAX_LANES:
                raise file.altered(entry.line, f"there is no lane {lane}")
            if (step, lane) in far_lanes or (lane < _NEAR_LANES and lanes[step] >> lane & 1):
                raise file.altered(entry.line, f"lane {lane} of step {step} was contributed twice")
            if lane < _NEAR_LANES:
                lanes[step] |= 1 << lane
            else:
                far_lanes.add((step, lane))
            sums[step] += records
            bad_records += bad
            if step in evidence.idle.get(View(view), ()):
                idle_records += records - bad
            if not records:
                continue
            seen.setdefault(epoch, Seen())
            records_of_epoch.setdefault(epoch, 0)
            if number in seen[epoch]:
                raise file.altered(
                    entry.line, f"trained twice in epoch {epoch + 1}: {manifest.describe(number)}"
                )
            seen[epoch].add(number)
            records_of_epoch[epoch] += records
    _check_sums(evidence, history, sums)
    _check_epoch_order(epoch_of_step)
    epochs = epochs_of(manifest, finished, seen, records_of_epoch, in_order=True, earlier=earlier)
    complete = finished is not None and finished.complete
    return Report(
        directory=directory,
        finished=finished is not None,
        complete=complete,
        steps=len(history) - 1,
        members=len(files),
        views=len(evidence.bases),
        epochs=epochs,
        redone_steps=len(redone),
        discarded_chunks=discarded_chunks,
        discarded_records=discarded_records,
        bad_records=bad_records,
        idle_steps=sum(step in evidence.idle.get(view, ()) for step, view in enumerate(history)),
        idle_records=idle_records,
        slots=None,
        cut_files=tuple(file.path.name for file in files if file.cut),
        checkpoint="" if earlier is None else earlier.checkpoint,
    )


def _check_sums(evidence: _Evidence, history: list[View], sums: Sequence[int]) -> None:
    for step, view in enumerate(history):
        if not view:
            continue
        told = evidence.commits[view][step - evidence.bases[view][0].step - 1]
        if told != sums[step]:
            raise AuditFailed(
                f"step {step} of view {view}: the contributions in the files have {sums[step]} records, the step summed {told}; "
                "a contributed line is missing or too many"
            )


def _check_epoch_order(epoch_of_step: Sequence[int]) -> None:
    last = 0
    for step, epoch in enumerate(epoch_of_step):
        if 0 <= epoch < last:
            raise AuditFailed(f"step {step} goes back to epoch {epoch + 1}")
        last = max(last, epoch)
