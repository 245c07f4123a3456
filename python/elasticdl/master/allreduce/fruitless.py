"""D11: whether views follow each other without end: the same members, the same step, and nothing computed.

An abort that accuses nobody, or one of two in turn, leaves nobody out (D9). Members that abort each view at once then change views for
ever, several times a second, while everybody seems to be well. The count is part of each view's record, so that it survives the master.
"""

from __future__ import annotations

from collections.abc import Sequence

from elasticdl.control.protocol.view import View
from elasticdl.master.allreduce.views import Stander
from elasticdl.master.core.records import Fruitless

MOST = 100
"""Views in a row; a disturbed network leaves somebody out, lets a chunk be computed, or loses a member, within a few."""


def counted(before: View | None, so_far: Fruitless, view: View, standers: Sequence[Stander]) -> Fruitless:
    """Return the count of a view that follows; `standers`: with what they hold.

    A draining member that nobody can replace leaves and returns to its view by design, and counts for nothing.
    """
    held = sum(len(one.report.holds) for one in standers if one.state == view.base)
    members = {peer.id for peer in view.members}
    is_same = (
        before is not None
        and view.base.step == before.base.step
        and members == {peer.id for peer in before.members}
    )
    if not is_same or held > so_far.held or any(one.report.draining for one in standers):
        return Fruitless(0, held)
    return Fruitless(so_far.views + 1, so_far.held)


def why_failed(view: View, count: Fruitless, said: Sequence[str]) -> str | None:
    """Return why a job fails instead of a view that follows, None while it does not; `said`: why members have left the last one."""
    if count.views < MOST:
        return None
    causes = "; ".join(said) or "nobody said why"
    return (
        f"no progress after step {view.base.step}: the group was formed {count.views} times in a row with the same workers, and nothing "
        f"was computed. The last time they left it because: {causes}. If their logs show no cause, please report this with the job's logs"
    )
