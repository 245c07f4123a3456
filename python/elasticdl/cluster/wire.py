"""What master and launcher say to each other: one JSON object a line over a Unix socket.

Encoding and reading only. Lines are limited in length, and whatever is not understood is an error that closes the connection;
the first line of a client is `hello` with the job's token.
"""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass
from typing import Any

from elasticdl.cluster.cluster import Blame, ProcessEnded, ProcessName, ProcessStarted, process_name

FORMAT = 1
"""Format number of `hello`."""

LINE_LIMIT = 4096
"""Bytes of the longest line."""


class Malformed(Exception):
    """A peer wrote what this protocol does not know."""


@dataclass(frozen=True, slots=True)
class Hello:
    """First line of a client."""

    token: bytes


@dataclass(frozen=True, slots=True)
class Launch:
    """Start a process; ignored if the name was launched before."""

    name: ProcessName


@dataclass(frozen=True, slots=True)
class Signal:
    """Signal a process; ignored if it has ended."""

    name: ProcessName
    number: int


Request = Hello | Launch | Signal
Event = ProcessStarted | ProcessEnded


def write_request(request: Request) -> bytes:
    """Encode one line of a client."""
    match request:
        case Hello(token):
            return _line({"hello": FORMAT, "token": token.hex()})
        case Launch(name):
            return _line({"launch": str(name)})
        case Signal(name, number):
            return _line({"signal": str(name), "number": number})


def read_request(line: bytes) -> Request:
    """Decode one line of a client. Raises Malformed."""
    body = _body(line)
    try:
        if "hello" in body:
            if body["hello"] != FORMAT:
                raise Malformed(f"hello has format {body['hello']!r}, the launcher's is {FORMAT}")
            return Hello(bytes.fromhex(body["token"]))
        if "launch" in body:
            return Launch(process_name(body["launch"]))
        return Signal(process_name(body["signal"]), signal.Signals(body["number"]))
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise Malformed(f"{line[:80]!r}: {error}") from None


def write_event(event: Event) -> bytes:
    """Encode one line of the launcher."""
    match event:
        case ProcessStarted(name, pid):
            return _line({"started": str(name), "pid": pid})
        case ProcessEnded(name=name, blame=Blame.START, text=text):
            return _line({"unstarted": str(name), "why": text})
        case ProcessEnded(name=name, code=code, signal=number):
            return _line({"ended": str(name), "code": code, "signal": number})


def read_event(line: bytes) -> Event:
    """Decode one line of the launcher. Raises Malformed."""
    body = _body(line)
    try:
        if "started" in body:
            return ProcessStarted(process_name(body["started"]), int(body["pid"]))
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


def _body(line: bytes) -> dict[str, Any]:
    try:
        body = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"{line[:80]!r}: {error}") from None
    if not isinstance(body, dict):
        raise Malformed(f"{line[:80]!r} is not an object")
    return body
