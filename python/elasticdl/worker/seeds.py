"""Seeds for the randomness inside a model: a pure function of (job seed, step, lane).

No generator keeps a state from chunk to chunk here: a dropout mask must depend on which chunk it is for, never on who computes it or
on what that worker computed before.
"""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import numpy.typing as npt


def chunk_seeds(seed: int, step: int, lane: int, generators: int) -> npt.NDArray[np.int64]:
    """Return the states of a model's seed generators for one chunk, of shape [generators, 2] and below 2³¹ (every framework's int)."""
    key = struct.pack("<QQQ", seed & (2**64 - 1), step, lane)
    states = np.empty((generators, 2), np.int64)
    for index in range(generators):
        digest = hashlib.blake2b(
            key + struct.pack("<Q", index), digest_size=8, person=b"elasticdl-seed"
        ).digest()
        states[index] = np.frombuffer(digest, "<u4") & 0x7FFFFFFF
    return states
