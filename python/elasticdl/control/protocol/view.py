"""Views: numbered agreements on who is in the group.

Values only; the master decides them (`elasticdl.master`), members install them (`elasticdl.worker`). Numbers are those of the
synchronous protocol: member id, view id, state id.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import KeysView
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Any, NewType

from elasticdl.control.protocol.frozen import replace
from elasticdl.data.plan.shard import Position
from elasticdl.files.reading import field, flag, integer, items, text

MemberId = NewType("MemberId", str)
"""128 random bits in lower-case hexadecimal, made by the process at its start; identifies one life, never reused."""

ViewId = NewType("ViewId", int)
"""1, 2, 3 …; one content for ever; continues after a restart of the master and after a resume. 0 = none."""


@dataclass(frozen=True, slots=True, order=True)
class StateId:
    """Name of a state of the model: equal names mean bit-identical states.

    Attributes:
        step: number of committed steps.
        view: id of the view that committed the last of them; for the initial state, of the first view.
    """

    step: int
    view: int


@dataclass(frozen=True, slots=True)
class Peer:
    """A member as the others of a view need it.

    Attributes:
        id: its member id.
        name: what people call it, `worker-3-2` (role, index, life).
        address: where its data plane listens, `unix:PATH`, `tcp:HOST:PORT`, or both: `tcp:HOST:PORT+unix:PATH`.
    """

    id: MemberId
    name: str
    address: str


INITIAL = "initial"
"""In `View.sources`: this member makes the initial weights (only where nobody holds a state and no snapshot exists)."""
SNAPSHOT = "snapshot"
"""In `View.sources`: this member loads the last snapshot record (only where nobody holds a state)."""


@dataclass(frozen=True, slots=True)
class _Index:
    """Members of a view by id and by name."""

    members: tuple[Peer, ...]
    ranks: dict[MemberId, int]
    names: dict[str, Peer]


_last_index = _Index((), {}, {})
"""Of the members that `_index` was asked for last; replaced in one piece, as threads share it."""


def _index(members: tuple[Peer, ...]) -> _Index:
    """Return members by id and name; a master asks for those of the same view again and again, of each of a thousand."""
    global _last_index
    index = _last_index
    if index.members is not members:
        ranks = {peer.id: rank for rank, peer in enumerate(members)}
        index = _last_index = _Index(members, ranks, {peer.name: peer for peer in members})
    return index


@lru_cache(maxsize=4)
def _lanes_of(owners: tuple[int, ...], rank: int) -> frozenset[int]:
    """Return the lanes that have this owner; a member asks for its own several times in each step."""
    return frozenset(lane for lane, owner in enumerate(owners) if owner == rank)


@dataclass(frozen=True, slots=True)
class View:
    """One record of the journal: a numbered agreement on the group.

    Attributes:
        id: its number.
        members: in ring order; a member's rank is its index here.
        base: the state from which the view starts.
        position: the position of the base; its `lanes` is K of the view's first step.
        first: owner (rank) of each lane in the view's first step; length `position.lanes`; empty in a final view.
        later: owner (rank) of each lane in all later steps, balanced, `lane % len(members)`; long enough for every K of the view
            (max of `position.lanes` and the policy's K); a wave with fewer lanes uses a prefix.
        wave_lanes: K of the waves that begin later in this view, before they are cut at the epoch's end.
        sources: per rank, how a member that lacks the base gets it: a donor's member id, `initial`, `snapshot`, or None if it holds it.
        final: the base is the last step, or the view was decided after `stopping`: no ring, `exporter` writes the result.
        exporter: rank of the member that writes the result; None unless final.
        snapshot: path of the snapshot that `sources` refers to, or None.
        reason: one sentence for people: why this view was decided.
    """

    id: ViewId
    members: tuple[Peer, ...]
    base: StateId
    position: Position
    first: tuple[int, ...]
    later: tuple[int, ...]
    wave_lanes: int
    sources: tuple[str | None, ...]
    final: bool = False
    exporter: int | None = None
    snapshot: str | None = None
    reason: str = ""

    def rank(self, member: MemberId) -> int | None:
        """Return the rank of a member, or None if it is not in the view."""
        return _index(self.members).ranks.get(member)

    def named(self, name: str) -> Peer | None:
        """Return the member of this name, or None if it is not in the view."""
        return _index(self.members).names.get(name)

    @property
    def names(self) -> KeysView[str]:
        """Return the names of all members."""
        return _index(self.members).names.keys()

    @property
    def ids(self) -> KeysView[MemberId]:
        """Return the ids of all members."""
        return _index(self.members).ranks.keys()

    @property
    def writer(self) -> int:
        """Return the rank of the member that writes what callbacks write to files: the exporter, before it the first by name.

        So it is worker 0 wherever that is a member, and callbacks can know at the beginning of training who it will be.
        """
        if self.exporter is not None:
            return self.exporter
        return min(range(len(self.members)), key=lambda rank: self.members[rank].name)

    def owned(self, rank: int, step: int, lanes: int) -> frozenset[int]:
        """Return the lanes of a member in a step of this view.

        Args:
            rank: the member.
            step: number of the step that is to be committed (the view's first is `base.step + 1`).
            lanes: K of that step.
        """
        return _lanes_of(self.first if step == self.base.step + 1 else self.later[:lanes], rank)

    @property
    def canonical(self) -> bytes:
        """Return the one JSON text of the whole content, over which the digest is computed."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":")).encode()

    @property
    def digest(self) -> int:
        """Return a 64-bit digest of the whole content, for `hello` between members."""
        return digest_of(self.canonical)

    def to_json(self) -> dict[str, Any]:
        """Return the view as plain JSON values; `view_from_json` is the inverse."""
        # `asdict` copies each number and name of a thousand members one by one, which takes as long as all else of a change of view.
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        members = tuple(map(_peer_to_json, self.members))
        return {**plain, "members": members, "base": asdict(self.base), "position": asdict(self.position)}

    def changes(self, before: View) -> dict[str, Any]:
        """Return the view as plain JSON values for one who has an earlier one; `view_from_json` with that one is the inverse.

        Members that stood in it follow as `[first rank, number]` of those that stand one after the other in both.
        """
        ranks = {peer.id: rank for rank, peer in enumerate(before.members)}
        members: list[Any] = []
        for peer in self.members:
            rank = ranks.get(peer.id)
            if rank is None or before.members[rank] != peer:
                members.append(_peer_to_json(peer))
            elif members and isinstance(members[-1], list) and sum(members[-1]) == rank:
                members[-1][1] += 1
            else:
                members.append([rank, 1])
        return {**replace(self, members=()).to_json(), "members": members}


def digest_of(canonical: bytes) -> int:
    """Return the digest of a view by its one JSON text."""
    return int.from_bytes(hashlib.blake2b(canonical, digest_size=8).digest(), "big")


def view_from_json(body: object, before: View | None = None) -> View:
    """Read a view from what `View.to_json` wrote (JSON arrays or tuples alike), or `View.changes` with this view before it.

    Raises ValueError for anything else.
    """

    def whole(name: str) -> int:
        return integer(field(body, name))

    def numbers(name: str) -> tuple[int, ...]:
        return tuple(map(integer, _several(field(body, name))))

    exporter, snapshot = field(body, "exporter"), field(body, "snapshot")
    base, position = field(body, "base"), field(body, "position")
    return View(
        id=ViewId(whole("id")),
        members=_members(_several(field(body, "members")), () if before is None else before.members),
        base=StateId(integer(field(base, "step")), integer(field(base, "view"))),
        position=Position(
            *(integer(field(position, name)) for name in ("epoch", "first_task", "lanes", "chunk"))
        ),
        first=numbers("first"),
        later=numbers("later"),
        wave_lanes=whole("wave_lanes"),
        sources=tuple(None if one is None else text(one) for one in _several(field(body, "sources"))),
        final=flag(field(body, "final")),
        exporter=None if exporter is None else integer(exporter),
        snapshot=None if snapshot is None else text(snapshot),
        reason=text(field(body, "reason")),
    )


def _peer_to_json(peer: Peer) -> dict[str, str]:
    return {"id": peer.id, "name": peer.name, "address": peer.address}


def _members(bodies: list[Any], before: tuple[Peer, ...]) -> tuple[Peer, ...]:
    members: list[Peer] = []
    left = len(before)
    for body in bodies:
        if not isinstance(body, list):
            members.append(_peer(body))
            continue
        first, number = map(integer, body)
        left -= number
        if first < 0 or number < 1 or first + number > len(before) or left < 0:
            raise ValueError(f"members {first} to {first + number} of {len(before)} before")
        members += before[first : first + number]
    return tuple(members)


def _peer(body: object) -> Peer:
    return Peer(MemberId(text(field(body, "id"))), text(field(body, "name")), text(field(body, "address")))


def _several(value: object) -> list[Any]:
    return list(value) if isinstance(value, tuple) else items(value)
