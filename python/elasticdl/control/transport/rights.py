"""What a member may say in its stream: only what belongs to its role, and only as itself.

A pure decision. Whether what is said makes sense now is the machines' affair.
"""

from __future__ import annotations

from elasticdl.control.protocol.messages import MemberMessage, ProgramFailed, Register
from elasticdl.control.protocol.psmessages import Accounts, CopyReady, Enroll, Leave, SlotsCut, Unreached
from elasticdl.control.transport.credentials import Admitted
from elasticdl.control.transport.keys import Key

_ONLY_SERVERS = (Accounts, CopyReady, SlotsCut)
_INTRODUCTIONS = (Register, Enroll)
_SERVERS = (*_ONLY_SERVERS, Enroll, Leave, ProgramFailed, Unreached)


def objection(to: Admitted, message: MemberMessage) -> str | None:
    """Return why a member may not say this; None if it may."""
    what = type(message).__name__
    allowed = isinstance(message, _SERVERS) if to.role is Key.PS else not isinstance(message, _ONLY_SERVERS)
    if not allowed:
        return f"{to.name} may not say {what}: its role is {to.role}"
    if isinstance(message, _INTRODUCTIONS) and (message.name, message.member) != (to.name, to.member):
        return f"{to.name} ({to.member}) says {what} as {message.name} ({message.member})"
    return None
