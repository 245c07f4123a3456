"""What an audit says when it has proven something, and how that reads."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from pathlib import Path


@dataclass(frozen=True, slots=True)
class EpochReport:
    """What was found of one epoch.

    Attributes:
        epoch: 0, 1, …
        expected: records of the epoch.
        counted: records that were trained, each exactly once.
        chunks: chunks that hold them.
        before: tasks of it that were done before the job, at the checkpoint from which it continued; where all that is left was
            trained, `expected` is without them.
    """

    epoch: int
    expected: int
    counted: int
    chunks: int
    before: int = 0

    @property
    def complete(self) -> bool:
        """Tell whether the whole epoch was trained."""
        return self.counted == self.expected


@dataclass(frozen=True, slots=True)
class Report:
    """What the audit proved.

    Attributes:
        directory: where the records lie.
        finished: the job has ended with a result; otherwise the report says how far it came.
        complete: every record of every epoch was trained exactly once; false for a job that has not finished or was ended early.
        steps: committed steps that count; of a job with parameter servers minibatches, of which a step may have several.
        members: members that left a file.
        views: views that somebody installed.
        epochs: per epoch that was begun.
        redone_steps: counted steps that were tried in more than one view.
        discarded_chunks: contributions that do not count because their step was redone or given up.
        discarded_records: the records in them.
        bad_records: records that were skipped as corrupt, once an epoch each.
        idle_steps: counted steps, or minibatches, that changed nothing because loss or gradient was not finite.
        idle_records: the records in them, corrupt ones left out.
        slots: of a job with parameter servers, the slots whose sums were compared; None for others.
        cut_files: names of the files that end in a cut line that does not count.
        checkpoint: from which the job continued; empty if it began anew.
        held_records: of the records, those that slots held at that checkpoint, in minibatches of tasks that were not done.
    """

    directory: Path
    finished: bool
    complete: bool
    steps: int
    members: int
    views: int
    epochs: tuple[EpochReport, ...]
    redone_steps: int
    discarded_chunks: int
    discarded_records: int
    bad_records: int
    idle_steps: int
    idle_records: int
    slots: int | None
    cut_files: tuple[str, ...]
    checkpoint: str = ""
    held_records: int = 0

    @property
    def records(self) -> int:
        """Return the records of all epochs that were dealt with, each exactly once: trained, or skipped for a reason that is counted."""
        return sum(epoch.counted for epoch in self.epochs)

    @property
    def trained(self) -> int:
        """Return the records that changed the model."""
        return self.records - self.bad_records - self.idle_records

    @property
    def statement(self) -> str:
        """Return the result in one sentence."""
        if self.complete:
            all_of_them = f"the {self.records:,} records of {count_of(len(self.epochs), 'epoch')}"
            if self.checkpoint:
                all_of_them += f" that were left at {self.checkpoint}"
            if self.trained == self.records:
                return f"Proven: each of {all_of_them} was trained exactly once."
            return f"Proven: of {all_of_them}, {self.trained:,} were trained, each exactly once, and {self._left_out}."
        how = "the job was ended early" if self.finished else "the job has not finished, or failed"
        left_out = "" if self.trained == self.records else f", and {self._left_out}"
        so_far = f"up to step {self.steps}"
        if self.slots is not None:  # these are in no order, and a step may be made of several
            so_far = f"for the {count_of(self.steps, *self._unit)} so far"
        return f"Proven {so_far}: {self.trained:,} records were trained, each once in its epoch{left_out} ({how})."

    @property
    def _unit(self) -> tuple[str, str]:
        return ("step", "steps") if self.slots is None else ("minibatch", "minibatches")

    @property
    def _left_out(self) -> str:
        parts = []
        if self.bad_records:
            parts.append(f"{self.bad_records:,} were skipped as corrupt")
        if self.idle_records:
            parts.append(
                f"{self.idle_records:,} were in {count_of(self.idle_steps, *self._unit)} that changed nothing"
            )
        return " and ".join(parts)

    def __str__(self) -> str:
        lines = []
        for (expected, counted, chunks, before), group in groupby(
            self.epochs, lambda epoch: (epoch.expected, epoch.counted, epoch.chunks, epoch.before)
        ):
            first, *others = group
            which = (
                f"epochs {first.epoch + 1} to {others[-1].epoch + 1}, each"
                if others
                else f"epoch {first.epoch + 1}"
            )
            done = f", and {count_of(before, 'task')} done before" if before else ""
            lines.append(f"{which}: {counted:,} of {expected:,} records in {count_of(chunks, 'chunk')}{done}")
        lines += self._history if self.slots is None else self._sums
        if self.cut_files:
            lines.append(f"last line cut, which does not count: {', '.join(self.cut_files)}")
        if self.held_records:
            lines.append(
                f"{self.held_records:,} of these records were in the checkpoint already, in minibatches of tasks that were not done: "
                "slots have not applied them once more, and the audit of the earlier job counts them too"
            )
        lines.append(self.statement)
        return "\n".join(lines)

    @property
    def _sums(self) -> list[str]:
        held = "the job has not ended, so nothing was compared with servers"
        if self.slots:
            held = f"{self.slots:,} slots of the model have applied each of them once"
        who = f"{count_of(self.steps, 'chunk')} by {count_of(self.members, 'worker')}"
        return [f"{who}, {count_of(self.redone_steps, 'line')} of attempts beside the first; {held}"]

    @property
    def _history(self) -> list[str]:
        lines = []
        lines.append(
            f"{count_of(self.steps, 'step')} in {count_of(self.views, 'view')} by {count_of(self.members, 'member')}, "
            f"{self.redone_steps:,} of them in more than one attempt"
        )
        lines.append(
            f"discarded: {count_of(self.discarded_chunks, 'contribution')} with {self.discarded_records:,} records, "
            "of attempts that were given up"
        )
        return lines


def count_of(number: int, noun: str, several: str = "") -> str:
    """Return a number and its noun: `1 step`, `2,000 steps`; `several`: the noun's plural, if it is another one."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {several or noun + 's'}"
