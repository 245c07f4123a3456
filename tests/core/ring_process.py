"""One member of a ring as a process: reads orders as lines of JSON, answers in lines of JSON."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from elasticdl import _core, errors

sys.path.insert(0, str(Path(__file__).resolve().parent))
from members import DIGEST, member, open_endpoint


def say(**answer: Any) -> None:
    print(json.dumps(answer), flush=True)


def main() -> None:
    folder, rank, count, silence, transport = (
        Path(sys.argv[1]),
        *map(int, sys.argv[2:4]),
        float(sys.argv[4]),
        sys.argv[5],
    )
    endpoint = open_endpoint(folder, rank, transport)
    endpoint.enter(1, DIGEST)
    say(address=endpoint.address)
    addresses = json.loads(sys.stdin.readline())["addresses"]
    peers = [(member(other), addresses[other]) for other in range(count)]
    ring = _core.Ring(endpoint, 1, DIGEST, rank, peers, silence)
    step = 0
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "reduce":
            contribution = (
                np.random.default_rng(rank).standard_normal(order["elements"]).astype(order["dtype"])
            )
            result = np.empty_like(contribution)
            say(begins=step + 1)
            try:
                for _ in range(order.get("times", 1)):
                    step += 1
                    trailer = ring.reduce(step, contribution, result, [rank, 1.0])
            except errors.RingBroken as broken:
                say(broken=broken.how, rank=broken.rank, message=str(broken), at=time.monotonic())
            else:
                say(digest=hashlib.sha256(result.tobytes()).hexdigest(), trailer=trailer, at=time.monotonic())
        elif order["do"] == "close":
            ring.close(order["linger"])
            endpoint.seal(1)
            say(closed=True)


main()
