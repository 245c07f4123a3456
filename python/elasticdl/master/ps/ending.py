"""The end of a job with parameter servers: what servers have applied in all, and which worker writes the result.

That nothing is trained any more is decided in `work.py`, and when the result counts in `master/core/machine.py`; here is what has to
be known before, and who is asked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.messages import Exported
from elasticdl.control.protocol.psmessages import Accounts, SlotAccount
from elasticdl.control.protocol.view import MemberId
from elasticdl.master.core.entry import ServerId
from elasticdl.master.core.machine import MasterCore
from elasticdl.master.core.records import Journal
from elasticdl.master.ps.liveness import Liveness
from elasticdl.master.ps.work import Work


@dataclass(frozen=True, slots=True)
class Ending:
    """What is known for the end.

    Attributes:
        accounts: what the slots' primaries have applied, once all is.
        applied: steps that servers know to be complete; they were asked at the end.
        exporter: who writes the result.
        attempt: how often that was decided.
    """

    accounts: Mapping[int, SlotAccount] = field(default_factory=dict)
    applied: int = 0
    exporter: MemberId | None = None
    attempt: int = 0

    def counts(self, exported: Exported) -> bool:
        """Tell whether a result is asked for (D7): what a worker wrote before a roll-back, or whom nobody asks any more, is none."""
        return self.exporter is not None and exported.state.view == self.attempt

    def has_all(self, journal: Journal) -> bool:
        """Tell whether the accounts of all slots are known."""
        return len(self.accounts) == len(journal.entries)

    def with_accounts(self, journal: Journal, server: ServerId | None, said: Accounts) -> Ending:
        """Return what holds when a server says what it has applied; of slots of which it is the primary now."""
        entries = journal.entries
        mine = {
            account.slot: account
            for account in said.slots
            if account.slot < len(entries)
            and (entries[account.slot].primary, entries[account.slot].primary_epoch)
            == (server, account.primary_epoch)
        }
        is_of_now = said.roll_back == journal.roll_back
        applied = max(self.applied, said.steps) if is_of_now else self.applied
        return replace(self, accounts={**self.accounts, **mine}, applied=applied)

    def without(self, slots: Collection[int]) -> Ending:
        """Return what holds when these slots have another entry, on which they may be changed again."""
        kept = {slot: account for slot, account in self.accounts.items() if slot not in slots}
        return replace(self, accounts=kept)

    def rolled_back(self) -> Ending:
        """Return what holds when tasks are trained once more."""
        return replace(self, exporter=None, applied=0)

    def chosen(self, core: MasterCore, work: Work, liveness: Liveness) -> Ending:
        """Return what holds when somebody who can is to write the result, once nothing is trained any more.

        Who was asked before is asked as long as it can.
        """
        journal = core.journal
        if not work.ends(journal) or journal.terminal is not None:
            return self
        if work.leases.waves is not None and not self.has_all(journal):
            # A worker that is lost may have let servers know of a step that this master has not heard of: the result has it.
            return self
        seen = None if self.exporter is None else liveness.seen.get(self.exporter)
        if seen is not None and liveness.may_write(core, seen):
            return self
        able = sorted(one.name for one in liveness.seen.values() if liveness.may_write(core, one))
        if not able:
            return self if self.exporter is None else replace(self, exporter=None)
        return replace(self, exporter=liveness.members[able[0]], attempt=self.attempt + 1)
