"""Seeds for the randomness inside a model: a pure function of (job seed, step, lane).

No generator keeps a state from chunk to chunk here: a dropout mask must depend on which chunk it is for, never on who computes it or
on what that worker computed before.
"""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import numpy.typing as npt

_PLACES, _HALVES = struct.Struct("<QQQQ"), struct.Struct("<II")
_LIMIT = 2**31 - 1


def chunk_seeds(seed: int, step: int, lane: int, generators: int) -> npt.NDArray[np.int64]:
    """Return the states of a model's seed generators for one chunk, of shape [generators, 2] and below 2³¹ (every framework's int)."""
    states = np.empty((generators, 2), np.int64)
    for index in range(generators):
        states[index] = chunk_seed(seed, step, lane, index)
    return states


def chunk_seed(seed: int, step: int, lane: int, generator: int) -> tuple[int, int]:
    """Return the state of one seed generator for one chunk, by its place among them: a row of `chunk_seeds`."""
    key = _PLACES.pack(seed & (2**64 - 1), step, lane, generator)
    first, second = _HALVES.unpack(hashlib.blake2b(key, digest_size=8, person=b"elasticdl-seed").digest())
    return first & _LIMIT, second & _LIMIT
