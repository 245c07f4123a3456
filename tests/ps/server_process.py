"""A parameter server as a process: reads orders as lines of JSON, and tells of copies that are ready."""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from elasticdl._core import Listener, ParameterServer

from .model import TASKS, TOKEN, catalog


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def main() -> None:
    server = ParameterServer(Listener("tcp:127.0.0.1:0"), int(sys.argv[1]), TOKEN, catalog().core())
    say(address=server.address)

    def tell() -> None:
        while True:
            for slot, term, to, hands_over in server.take_ready(3600.0):
                say(ready=[slot, term, to, hands_over])

    threading.Thread(target=tell, daemon=True).start()
    for line in sys.stdin:
        order = json.loads(line)
        if "learn" in order:
            addresses = {int(number): address for number, address in order["addresses"].items()}
            server.learn(addresses, [tuple(entry) for entry in order["learn"]], 0, TASKS)
            server.know(set(order["workers"]))
        elif "copy" in order:
            server.copy(*order["copy"])
        elif "dead" in order:
            server.give_up_copies(order["dead"])


if __name__ == "__main__":
    main()
