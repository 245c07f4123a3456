"""The files that a master writes: the audit's marks, manifests of snapshots, the result in its place; and what it removes at the end."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from elasticdl.checkpoint import group
from elasticdl.checkpoint import layout as checkpoints
from elasticdl.checkpoint.manifest import Barrier, Manifest, write_manifest
from elasticdl.cluster.local.place import Place
from elasticdl.data.plan.order import dealing_of, with_plan
from elasticdl.errors import BadInput
from elasticdl.master.core import auditmark
from elasticdl.master.core.events import (
    GiveUp,
    ManifestWritten,
    WriteGroupManifest,
    WriteManifest,
)
from elasticdl.master.core.publishing import publish, remove_unpublished
from elasticdl.master.core.records import FinishedRecord, Journal, ShardsRecord
from elasticdl.spec.jobspec import JobKind, JobSpec


class Outputs:
    """The files of one job, for one life of its master."""

    def __init__(self, place: Place, spec: JobSpec) -> None:
        """Write where the settings say."""
        self.published: list[str] = []
        names = {JobKind.PREDICT: "the predictions are", JobKind.PROCESS: "the files are"}
        self.what = names.get(spec.kind, "the model is")
        """What the result is, and a verb, for people."""
        self._place = place
        self._spec = spec
        self.is_unpublished = False
        """The result is whole, and can't be put in its place: it stays where it is."""
        self._owns_audit = False

    def begin_audit(self, data: ShardsRecord, again: bool) -> list[GiveUp]:
        """Write what the auditor has to know of the data; `again`: a master before this one may have."""
        spec, shards = with_plan(self._spec, data.plan), data.shards
        if not spec.audit:
            return []
        try:
            auditmark.write_manifest(
                Path(spec.audit),
                shards,
                seed=spec.seed,
                records_per_task=dealing_of(spec, shards).records_per_task,
                minibatch_size=spec.minibatch_size,
                num_epochs=spec.num_epochs,
                has_servers=spec.num_ps_pods > 0,
                again=again,
            )
        except BadInput as error:
            return [GiveUp(str(error), "bad-input")]
        except OSError as error:
            return [GiveUp(f"--audit: {spec.audit} can't be written: {error.strerror}", "bad-input")]
        self._owns_audit = True
        return []

    def complete_snapshot(self, cut: WriteManifest, journal: Journal) -> ManifestWritten:
        """Complete a snapshot of slots; for a thread of its own."""
        assert journal.shards is not None, "slots are cut when something is trained"
        assert journal.model is not None, "slots are placed when the model is known"
        directory = Path(cut.directory)
        manifest = Manifest(
            number=cut.number,
            job=self._place.name,
            written_at=time.time(),
            low=cut.position.low,
            above=cut.position.above,
            roll_back=cut.roll_back,
            dealing=dealing_of(self._spec, journal.shards),
            model=json.loads(journal.model),
            sections=tuple((Path(file), section) for file, section in cut.sections),
            step=cut.step,
            begun=cut.begun,
            barriers=tuple(
                Barrier(one.state.step, one.state.view, one.task, one.epoch, one.epoch_ended, one.values)
                for one in cut.barriers
            ),
            is_best=cut.best,
        )
        try:
            write_manifest(checkpoints.draft_of(directory, cut.number), manifest)
            path = checkpoints.publish(directory, cut.number)
        except OSError as error:
            return ManifestWritten(cut.number, "", error.strerror or str(error))
        return ManifestWritten(cut.number, str(path))

    def complete_group(self, told: WriteGroupManifest, journal: Journal) -> ManifestWritten:
        """Complete a snapshot of a group's state; for a thread of its own."""
        assert journal.shards is not None, "states are saved when something is trained"
        cut, spec = told.cut, with_plan(self._spec, journal.plan)
        draft = checkpoints.group_draft_of(told.directory, cut.view, cut.state.step, passed=cut.passed)
        try:
            path = group.complete(
                draft,
                number=told.number,
                job=self._place.name,
                written_at=time.time(),
                state=cut.state,
                position=told.position,
                dealing=dealing_of(spec, journal.shards),
                head=told.head,
                parts=tuple(group.Part(Path(path), size, crc) for path, size, crc in told.parts),
            )
        except OSError as error:
            return ManifestWritten(told.number, "", error.strerror or str(error), cut)
        except BadInput as error:
            return ManifestWritten(told.number, "", str(error), cut)
        return ManifestWritten(told.number, str(path), cut=cut)

    def publish(self, path: str) -> str | None:
        """Put the result in its place; return what failed, or None. Predictions that go to a table are in it already."""
        if self._spec.output_table is not None:
            self.published = [self._spec.output]
            return None
        output = Path(self._spec.output)
        try:
            publish(Path(path), output)
        except OSError as error:
            self.is_unpublished = True
            return (
                f"{self.what} at {path}, and can't be put in its place ({error.strerror}: {error.filename})"
            )
        self.published = [str(output)]
        return None

    def complete_audit(
        self, complete: Callable[[FinishedRecord], None], record: FinishedRecord
    ) -> str | None:
        """Write the end of the audit, if there is one; return what failed, or None."""
        if not self._spec.audit:
            return None
        try:
            complete(record)
        except OSError as error:
            gone = not Path(self._spec.audit).is_dir()
            why = (
                f"the directory {self._spec.audit} was removed while the job ran; what it trained can't be proven"
                if gone
                else f"{error.strerror}: {error.filename}"
            )
            return f"the job is done, and its audit can't be completed ({why})"
        return None

    def clean(self, *, has_begun: bool) -> None:
        """Remove what only a running job needs; `has_begun`: there is something to audit."""
        shutil.rmtree(self._place.path / "data", ignore_errors=True)
        if self._spec.output and self._spec.output_table is None and not self.is_unpublished:
            remove_unpublished(Path(self._spec.output))
        if self._owns_audit and not has_begun:
            auditmark.remove(Path(self._spec.audit))
