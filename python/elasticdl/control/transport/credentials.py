"""Proof that both ends of a control connection belong to the job, and who the caller is, before the first payload byte.

Challenge and response with HMAC-SHA256 (RFC 2104): the master gives a challenge that counts once, the caller proves its role, name
and member id over it with the key of that role, and the master proves that it has the same key. It encrypts nothing;
connections that leave the machine need TLS beneath.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from elasticdl.control.transport.keys import Key, derive

FORMAT = 5
"""Format number of the conversation; both ends name theirs when a connection opens."""

_CALLER = "elasticdl-caller"
_MEMBER = "elasticdl-member"
_ROLE = "elasticdl-role"
_FORMAT = "elasticdl-format"
_VERSION = "elasticdl-version"
_NONCE = "elasticdl-nonce"
_CHALLENGE = "elasticdl-challenge"
_PROOF = "elasticdl-proof"

CHALLENGE_SECONDS = 60.0
"""How long a challenge counts."""

_MAY_CALL: Mapping[str, frozenset[Key]] = {
    "Member": frozenset({Key.WORKER, Key.PS}),
    "Status": frozenset({Key.CLIENT}),
    "Watch": frozenset({Key.CLIENT}),
    "Stop": frozenset({Key.CLIENT}),
    "Scale": frozenset({Key.CLIENT}),
    "Profile": frozenset({Key.CLIENT}),
}
"""Which roles may make a call; what a member may say in its stream is in `rights.py`."""
_ROLES = frozenset().union(*_MAY_CALL.values())

Metadata = Mapping[str, str | bytes]


class Refusal(Enum):
    """Why a caller is refused."""

    UNKNOWN = auto()
    """It does not have the key of the role that it names."""
    OTHER_VERSION = auto()
    STALE = auto()
    """Its challenge was used before, is too old, or is another master's: it may ask for a new one."""
    NOT_ALLOWED = auto()
    """Its role may not make this call."""


class Refused(Exception):
    """A caller is refused; the text says why."""

    def __init__(self, kind: Refusal, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


def version() -> str:
    """Return the version that both ends must share."""
    from elasticdl._core import version as core_version

    return core_version()


def proof(key: bytes, *fields: str) -> str:
    """Return the proof of `key` over `fields`; each goes in with its length, so that no boundary between two can be moved."""
    mac = hmac.new(key, digestmod=hashlib.sha256)
    for field in fields:
        content = field.encode(errors="surrogatepass")
        mac.update(len(content).to_bytes(8, "little") + content)
    return mac.hexdigest()


def is_proof(given: str | bytes, key: bytes, *fields: str) -> bool:
    """Tell whether `given` is the proof of `key` over `fields`, in a time that tells nothing about it."""
    said = given if isinstance(given, bytes) else given.encode(errors="surrogatepass")
    return hmac.compare_digest(said, proof(key, *fields).encode())


# ------------------------------------------------------------------ the caller's end


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls.

    Attributes:
        key: of its role.
        role: client, worker or parameter server.
        name: of its process, or `client`.
        member: its member id, or empty.
    """

    key: bytes
    role: Key
    name: str
    member: str = ""

    def announcement(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata of the call for a challenge."""
        return (
            (_CALLER, self.name),
            (_MEMBER, self.member),
            (_ROLE, self.role),
            (_FORMAT, str(FORMAT)),
            (_VERSION, version()),
        )

    def answer(self, challenge: str, method: str) -> Credentials:
        """Answer the master's challenge for one call."""
        return Credentials(self, method, challenge, secrets.token_hex(16))


@dataclass(frozen=True, slots=True)
class Credentials:
    """What one call's opening says, and what must come back.

    Attributes:
        caller: who calls.
        method: what is called.
        challenge: the master's.
        nonce: the caller's random number.
    """

    caller: Caller
    method: str
    challenge: str
    nonce: str

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata of the call."""
        return (
            *self.caller.announcement(),
            (_CHALLENGE, self.challenge),
            (_NONCE, self.nonce),
            (_PROOF, proof(self.caller.key, "caller", *self._fields())),
        )

    def confirmed_by(self, answer: Metadata) -> bool:
        """Tell whether the other end's initial metadata proves that it is the job's master."""
        return is_proof(answer.get(_PROOF, ""), self.caller.key, "master", *self._fields())

    def _fields(self) -> tuple[str, ...]:
        caller = self.caller
        return (self.method, caller.role, caller.name, caller.member, self.challenge, self.nonce)


# ------------------------------------------------------------------ the master's end


@dataclass(frozen=True, slots=True)
class Admitted:
    """A caller who has proven who it is.

    Attributes:
        role: its role.
        name: of its process, or `client`.
        member: its member id, or empty.
        answer: the master's metadata, which proves the master.
    """

    role: Key
    name: str
    member: str
    answer: tuple[tuple[str, str], ...]


class Challenges:
    """The challenges of one life of a master, and who has answered them; calls may come from several threads.

    A challenge is kept nowhere until somebody with a key has answered it, so that strangers who ask for many take no memory.
    """

    def __init__(self, token: bytes, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with none.

        Args:
            token: the job's.
            clock: seconds that only grow.
        """
        self._keys = {role: derive(token, role) for role in _ROLES}
        self._clock = clock
        self._own = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._used: dict[str, float] = {}

    def make(self) -> str:
        """Return a new challenge."""
        until, nonce = f"{self._clock() + CHALLENGE_SECONDS:.3f}", secrets.token_hex(16)
        return f"{until}-{nonce}-{proof(self._own, until, nonce)}"

    def admit(self, opening: Metadata, method: str) -> Admitted:
        """Examine the metadata of a call. Raises Refused.

        What is known of the version is said to strangers too: without it, no process of another version could learn why.
        """
        if _VERSION in opening and (other := other_version(opening)):
            raise Refused(Refusal.OTHER_VERSION, other)
        said = {name: str(opening.get(name, "")) for name in (_ROLE, _CALLER, _MEMBER, _CHALLENGE, _NONCE)}
        fields = (method, *said.values())
        key = next((key for role, key in self._keys.items() if role == said[_ROLE]), None)
        if (
            _VERSION not in opening
            or key is None
            or not is_proof(opening.get(_PROOF, ""), key, "caller", *fields)
        ):
            raise Refused(Refusal.UNKNOWN, "the caller does not know the job's token")
        role = Key(said[_ROLE])
        if not self._counts(said[_CHALLENGE]):
            raise Refused(
                Refusal.STALE,
                "the caller's proof was used before, is too old, or was made for another life of the master; ask for a new challenge",
            )
        if role not in _MAY_CALL[method]:
            raise Refused(Refusal.NOT_ALLOWED, f"the role {role} may not call {method}")
        if role is not Key.CLIENT and role_of(said[_CALLER]) is not role:
            raise Refused(Refusal.NOT_ALLOWED, f"the role {role} may not speak as {said[_CALLER]!r}")
        answer = ((_PROOF, proof(key, "master", *fields)),)
        return Admitted(role, said[_CALLER], said[_MEMBER], answer)

    def _counts(self, challenge: str) -> bool:
        """Use a challenge up; tell whether it was this master's, in time, and not used before."""
        until, _, rest = challenge.partition("-")
        nonce, _, mark = rest.partition("-")
        if not is_proof(mark, self._own, until, nonce):
            return False
        now = self._clock()
        with self._lock:
            # In the order of use, which is nearly that of their ends.
            while self._used and self._used[oldest := next(iter(self._used))] < now:
                del self._used[oldest]
            if float(until) < now or nonce in self._used:
                return False
            self._used[nonce] = float(until)
            return True


def role_of(name: str) -> Key | None:
    """Return the role of a process by its name, `worker-3-2` or `ps-0-1`; None for any other."""
    kind = name.partition("-")[0]
    return next((role for role in (Key.WORKER, Key.PS) if role == kind), None)


def other_version(opening: Metadata) -> str | None:
    """Return a sentence that names both numbers if the caller is of another version or format; None if it is of this one."""
    theirs = (str(opening.get(_VERSION, "?")), str(opening.get(_FORMAT, "?")))
    mine = (version(), str(FORMAT))
    if theirs == mine:
        return None
    return (
        f"{opening.get(_CALLER, 'the caller')!s} is of version {theirs[0]} (control format {theirs[1]}), the job's master is of "
        f"version {mine[0]} (control format {mine[1]}); all processes of a job must be of one version"
    )
