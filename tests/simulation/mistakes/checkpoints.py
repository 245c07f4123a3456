"""Mistakes of saved states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from elasticdl.checkpoint.layout import folder_of
from elasticdl.checkpoint.manifest import NAME
from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import (
    Cut,
    Saved,
)
from elasticdl.control.protocol.view import MemberId, View
from elasticdl.master.allreduce.machine import AllReduceMaster
from elasticdl.master.allreduce.snapshots import Snapshots
from elasticdl.master.core import events as to_master
from elasticdl.master.core.records import (
    Journal,
    Record,
    SnapshotRecord,
)
from tests.simulation.mistakes.mistaken import Mistaken
from tests.simulation.plan import SNAPSHOTS


class ManifestEarly(Mistaken):
    """The manifest is written when the first part is there."""

    class Early(Snapshots):
        __slots__ = ()

        def completed(self, journal: Journal) -> Any:
            view = journal.view
            for cut, parts in self.parts.items():
                if view is not None and cut.view == view.id and self.writing is None and self.written is None:
                    first = next(iter(parts.values()))
                    files = tuple((part.path, part.length, part.crc) for part in parts.values())
                    where = (self.number(journal), SNAPSHOTS, cut, first.position, first.head)
                    return replace(self, writing=cut), [to_master.WriteGroupManifest(*where, files)]
            return self, ()

    def new_master(self) -> AllReduceMaster:
        return self.master_class(self.settings, snapshots=self.Early())


class PartsOfAnotherView(Mistaken):
    """Parts that were written under an earlier view count for the present one."""

    class Mixed(Snapshots):
        __slots__ = ()

        def accepts(self, *arguments: Any) -> bool:
            del arguments
            return True

        def reported(self, view: View | None, member: MemberId, saved: Saved) -> Any:
            if view is None or saved.error:
                return self, ()
            cut = replace(saved.cut, view=view.id)
            parts = {**self.parts.get(cut, {}), member: replace(saved, cut=cut)}
            return replace(self, parts={**self.parts, cut: parts}), ()

        def in_view(self) -> Any:
            return replace(self, writing=None, written=None), ()

        def completed(self, journal: Journal) -> Any:
            view = journal.view
            if view is None or self.writing is not None or self.written is not None:
                return self, ()
            for cut, parts in self.parts.items():
                now = replace(cut, view=view.id)
                if len(parts) >= len(view.members):
                    in_order = sorted(parts.values(), key=lambda part: part.first)
                    first = in_order[0]
                    files = tuple((part.path, part.length, part.crc) for part in in_order)
                    where = (self.number(journal), SNAPSHOTS, now, first.position, first.head)
                    rest = {one: said for one, said in self.parts.items() if one != cut}
                    after = replace(self, parts={**rest, now: parts}, writing=now)
                    return after, [to_master.WriteGroupManifest(*where, files)]
            return self, ()

    def new_master(self) -> AllReduceMaster:
        return self.master_class(self.settings, snapshots=self.Mixed())


class UnfencedSnapshot(Mistaken):
    """A state whose parts were complete under an earlier view is journalled under the present one."""

    class Unfenced(Snapshots):
        __slots__ = ()

        def in_view(self) -> Any:
            return self, ()

        def answer(self, journal: Journal, saved: Saved) -> str | None:
            del journal, saved
            return None

        def record(self, journal: Journal, path: Path) -> SnapshotRecord | None:
            cut = self.written
            if cut is None:
                return None
            position = next(iter(self.parts[cut].values())).position
            return SnapshotRecord(cut.view, cut.state, position, str(path), self.number(journal), cut.passed)

    def new_master(self) -> AllReduceMaster:
        return self.master_class(self.settings, snapshots=self.Unfenced())


class GivenUpPublished(Mistaken):
    """A checkpoint gets its name when the manifest is written, before the record."""

    def complete(self, cut: Cut, told: to_master.WriteGroupManifest) -> None:
        super().complete(cut, told)
        self.named[str(folder_of(SNAPSHOTS, told.number) / NAME)] = cut


class CheckpointNamedOnce(Mistaken):
    """Only the master that has journalled a checkpoint gives it its name."""

    def name_last(self) -> None:
        pass


class FinishBeforeCheckpoint(Mistaken):
    """A job does not wait for its last checkpoint."""

    class Hasty(Snapshots):
        __slots__ = ()

        def is_kept(self, journal: Journal) -> bool:
            del journal
            return True

    def new_master(self) -> AllReduceMaster:
        return self.master_class(self.settings, snapshots=self.Hasty())


class BeginsAnew(Mistaken):
    """The first view is made before it is journalled where the job continues."""

    class master_class(AllReduceMaster):
        __slots__ = ()

        def _wanted_resumption(self) -> Record | None:
            return None
