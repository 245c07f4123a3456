"""What master and launcher say to each other: one JSON object a line over a Unix socket.

Encoding and reading only. Lines are limited in length, and whatever is not understood is an error that closes the connection.
The conversation begins with a proof both ways that the other end has the launcher's key, which itself is never sent:

    client                          launcher
    hello (format, nonce)       →
                                ←   challenge (nonce, the launcher's proof over both)
    proof (over both nonces)    →
                                ←   events, those of the past first
"""

from __future__ import annotations

import json
import signal
from typing import Any

from msgspec import Struct

from elasticdl.cluster.cluster import Blame, ProcessEnded, ProcessName, ProcessStarted, process_name

FORMAT = 3
"""Format number of `hello`."""

LINE_LIMIT = 4096
"""Bytes of the longest line."""


class Malformed(Exception):
    """A peer wrote what this protocol does not know."""


class Hello(Struct, frozen=True):
    """First line of a client: its nonce."""

    nonce: str


class Challenge(Struct, frozen=True):
    """First line of the launcher: its nonce, and its proof over both."""

    nonce: str
    proof: str


class Proof(Struct, frozen=True):
    """Second line of a client: its proof over both nonces."""

    proof: str


class Launch(Struct, frozen=True):
    """Start a process; ignored if the name was launched before."""

    name: ProcessName


class KeepSpare(Struct, frozen=True):
    """Have a spare process ready; ignored if there is one, or the job has none."""


class Signal(Struct, frozen=True):
    """Signal a process; ignored if it has ended."""

    name: ProcessName
    number: int


Request = Hello | Proof | Launch | KeepSpare | Signal
Event = ProcessStarted | ProcessEnded


def write_request(request: Request) -> bytes:
    """Encode one line of a client."""
    match request:
        case Hello(nonce):
            return _line({"hello": FORMAT, "nonce": nonce})
        case Proof(proof):
            return _line({"proof": proof})
        case Launch(name):
            return _line({"launch": str(name)})
        case KeepSpare():
            return _line({"keep": "spare"})
        case Signal(name, number):
            return _line({"signal": str(name), "number": number})


def read_request(line: bytes) -> Request:
    """Decode one line of a client. Raises Malformed."""
    body = _body(line)
    try:
        if "hello" in body:
            if body["hello"] != FORMAT:
                raise Malformed(f"hello has format {body['hello']!r}, the launcher's is {FORMAT}")
            return Hello(_text(body["nonce"]))
        if "proof" in body:
            return Proof(_text(body["proof"]))
        if "launch" in body:
            return Launch(process_name(body["launch"]))
        if body.get("keep") == "spare":
            return KeepSpare()
        return Signal(process_name(body["signal"]), signal.Signals(body["number"]))
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise Malformed(f"{line[:80]!r}: {error}") from None


def write_challenge(challenge: Challenge) -> bytes:
    """Encode the launcher's first line."""
    return _line({"challenge": challenge.nonce, "proof": challenge.proof})


def read_challenge(line: bytes) -> Challenge:
    """Decode the launcher's first line. Raises Malformed."""
    body = _body(line)
    try:
        return Challenge(_text(body["challenge"]), _text(body["proof"]))
    except (KeyError, TypeError) as error:
        raise Malformed(f"{line[:80]!r}: {error}") from None


def write_event(event: Event) -> bytes:
    """Encode one line of the launcher."""
    match event:
        case ProcessStarted(name, pid, spare):
            return _line({"started": str(name), "pid": pid, "spare": spare})
        case ProcessEnded(name=name, blame=Blame.START, text=text):
            return _line({"unstarted": str(name), "why": text})
        case ProcessEnded(name=name, code=code, signal=number):
            return _line({"ended": str(name), "code": code, "signal": number})


def read_event(line: bytes) -> Event:
    """Decode one line of the launcher. Raises Malformed."""
    body = _body(line)
    try:
        if "started" in body:
            return ProcessStarted(process_name(body["started"]), int(body["pid"]), body["spare"] is True)
        if "unstarted" in body:
            return ProcessEnded(process_name(body["unstarted"]), None, None, Blame.START, str(body["why"]))
        return ProcessEnded(process_name(body["ended"]), body["code"], body["signal"])
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise Malformed(f"{line[:80]!r}: {error}") from None


def cut_lines(buffer: bytearray) -> list[bytes]:
    """Take the complete lines out of `buffer`. Raises Malformed if one is too long."""
    *lines, rest = bytes(buffer).split(b"\n")
    if max(map(len, [*lines, rest])) > LINE_LIMIT:
        raise Malformed(f"a line is longer than {LINE_LIMIT} bytes")
    buffer[:] = rest
    return lines


def _line(body: dict[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode() + b"\n"


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _body(line: bytes) -> dict[str, Any]:
    try:
        body = json.loads(line)
    except (ValueError, RecursionError) as error:  # the latter for a thousand nested lists
        raise Malformed(f"{line[:80]!r}: {error}") from None
    if not isinstance(body, dict):
        raise Malformed(f"{line[:80]!r} is not an object")
    return body
