"""Proof that both ends of a control connection belong to the job, before the first payload byte.

Each end shows that it knows the job's token without sending it: an HMAC over a random number that the caller chose. It encrypts
nothing; connections that leave the machine need TLS beneath.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

FORMAT = 1
"""Format number of the conversation; both ends name theirs when a connection opens."""
CALLER = "elasticdl-caller"
"""Metadata key: who calls, a process's name or `client`."""
MEMBER = "elasticdl-member"
"""Metadata key: the caller's member id, empty for clients."""
_FORMAT = "elasticdl-format"
_VERSION = "elasticdl-version"
_NONCE = "elasticdl-nonce"
_PROOF = "elasticdl-proof"


def version() -> str:
    """Return the version that both ends must share."""
    from elasticdl._core import version as core_version

    return core_version()


@dataclass(frozen=True, slots=True)
class Credentials:
    """What one connection's opening says, and what must come back.

    Attributes:
        token: the job's token.
        caller: who calls.
        member: its member id, or empty.
        nonce: the random number of this connection.
    """

    token: bytes
    caller: str
    member: str
    nonce: str

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata of the call."""
        return (
            (CALLER, self.caller),
            (MEMBER, self.member),
            (_FORMAT, str(FORMAT)),
            (_VERSION, version()),
            (_NONCE, self.nonce),
            (_PROOF, _proof(self.token, "caller", self.nonce, self.member)),
        )

    def confirmed_by(self, answer: Mapping[str, str | bytes]) -> bool:
        """Tell whether the other end's initial metadata proves that it knows the token."""
        return _same(answer.get(_PROOF, ""), _proof(self.token, "master", self.nonce, self.member))


def credentials(token: bytes, caller: str, member: str = "") -> Credentials:
    """Make the credentials of one new connection."""
    return Credentials(token, caller, member, secrets.token_hex(16))


def answer(token: bytes, opening: Mapping[str, str | bytes]) -> tuple[tuple[str, str], ...] | None:
    """Return the master's metadata for a caller who knows the token; None for one who does not."""
    nonce, member = str(opening.get(_NONCE, "")), str(opening.get(MEMBER, ""))
    if not nonce or not _same(opening.get(_PROOF, ""), _proof(token, "caller", nonce, member)):
        return None
    return ((_PROOF, _proof(token, "master", nonce, member)),)


def other_version(opening: Mapping[str, str | bytes]) -> str | None:
    """Return a sentence that names both numbers if the caller is of another version or format; None if it is of this one."""
    theirs = (str(opening.get(_VERSION, "?")), str(opening.get(_FORMAT, "?")))
    mine = (version(), str(FORMAT))
    if theirs == mine:
        return None
    return (
        f"{opening.get(CALLER, 'the caller')!s} is of version {theirs[0]} (control format {theirs[1]}), the job's master is of "
        f"version {mine[0]} (control format {mine[1]}); all processes of a job must be of one version"
    )


def _proof(token: bytes, end: str, nonce: str, member: str) -> str:
    return hmac.new(token, f"elasticdl control {end} {nonce} {member}".encode(), hashlib.sha256).hexdigest()


def _same(given: str | bytes, expected: str) -> bool:
    return hmac.compare_digest(given if isinstance(given, bytes) else given.encode(), expected.encode())
