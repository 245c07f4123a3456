"""What people hear when a view begins: who is in it, who has left the one before and how, and who has joined."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from elasticdl.control.protocol.status import EventKind
from elasticdl.control.protocol.view import Peer, View
from elasticdl.master.allreduce.liveness import Liveness
from elasticdl.master.core.events import Announce


def announced(
    before: View | None, view: View, left_out: Collection[str], liveness: Liveness, gone: Mapping[str, str]
) -> list[Announce]:
    """Return what is said of a view.

    Args:
        before: the view before it, None if it is the first.
        view: the view.
        left_out: names of those who have neither ended nor left as they wished.
        liveness: members.
        gone: names of processes proven dead → cause.
    """
    names = ", ".join(peer.name for peer in view.members)
    said = [_of(view, EventKind.VIEW, "", f"view {view.id}: {names} ({view.reason})")]
    if before is None:
        return said
    kept = {peer.id for peer in view.members}
    parts = view.reason.split("; ") if left_out else []
    reasons = {part.partition(" ")[0]: part for part in reversed(parts)}
    for peer in before.members:
        if peer.id in kept:
            continue
        if peer.name in left_out:
            # The view's reason names everybody who leaves; this event is about one of them.
            why = reasons.get(peer.name, f"{peer.name} is left out")
            said.append(_of(view, EventKind.EVICTED, peer.name, why))
        elif liveness.has_drained(peer.id, before):
            said.append(_of(view, EventKind.DRAINED, peer.name, f"{peer.name} has left at a step boundary"))
        else:
            said.append(_lost(view, peer, gone.get(peer.name, "a program error")))
    stood = {peer.id for peer in before.members}
    joined = (peer.name for peer in view.members if peer.id not in stood)
    return said + [_of(view, EventKind.JOINED, name, f"{name} has joined") for name in joined]


def _of(view: View, kind: EventKind, name: str, text: str) -> Announce:
    return Announce(kind, name, view.id, view.base.step, text)


def _lost(view: View, peer: Peer, cause: str) -> Announce:
    text = f"{peer.name} is lost: {cause}"
    return Announce(EventKind.LOST, peer.name, view.id, view.base.step, text, None, cause)
