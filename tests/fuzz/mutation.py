"""Damage to bytes and to what they mean, from a seed: the same seed gives the same damage."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

_NASTY: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1 << 31,
    1 << 63,
    1 << 70,
    10**400,
    0.5,
    float("inf"),
    float("nan"),
    "",
    "1",
    "worker-0",
    "\ud800",
    "\x00",
    "../..",
    "9" * 5000,
    [],
    {},
    [[]],
    ["a", 1],
    {"a": 1},
)
_DEEP = b"[" * 20_000
_LONG = 1 << 16


def damage(draw: random.Random, seed: bytes) -> bytes:
    """Return bytes that differ from the seed's in a few places."""
    found = bytearray(seed)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(found) + 1)
        match draw.randrange(8):
            case 0:
                del found[at:]
            case 1:
                del found[at : at + draw.randint(1, 9)]
            case 2 | 3 if at < len(found):
                found[at] ^= 1 << draw.randrange(8)
            case 4:
                found[at:at] = draw.randbytes(draw.randint(1, 9))
            case 5:
                found[at:at] = found[at : at + draw.randint(1, 40)]
            case 6:
                found[at:at] = b"9" * draw.choice((1, 20, 5000))
            case _:
                if draw.random() < 0.05:
                    found[at:at] = draw.choice((_DEEP, b"{" * 9, b"x" * _LONG, b"\n" * 99, b'{"a":' * 9000))
    return bytes(found)


def lie(draw: random.Random, body: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON object of which a few values are others, or gone, or there twice."""
    changed = copy.deepcopy(body)
    for _ in range(draw.randint(1, 3)):
        node: Any = changed
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not keys:
                break
            key = draw.choice(keys)
            if isinstance(node[key], dict | list) and node[key] and draw.random() < 0.8:
                node = node[key]
                continue
            match draw.randrange(6):
                case 0:
                    del node[key]
                case 1 if isinstance(node, list):
                    node.append(copy.deepcopy(node[key]))
                case _:
                    node[key] = copy.deepcopy(draw.choice(_NASTY))
            break
    return changed


def text(body: dict[str, Any]) -> bytes:
    """Return a JSON object as bytes, with numbers that JSON does not have where there are such."""
    return json.dumps(body).encode()
