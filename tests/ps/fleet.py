"""Servers in processes of their own, and the least of a master: placements are decided by the real decisions, and told at once."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elasticdl._core import ParameterClient
from elasticdl.control.transport.keys import data_key
from elasticdl.master.core.entry import Entry, ServerId
from elasticdl.master.ps.placement import Copy, after_loss, at_once, first, is_empty, next_copies, outcome

from .model import SLOTS, TOKEN, catalog

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60.0


class Fleet:
    """A few servers, of which some may be killed."""

    def __init__(self, count: int, replicas: int) -> None:
        """Start `count` servers with empty slots."""
        self.replicas = replicas
        self.processes: dict[ServerId, subprocess.Popen[str]] = {}
        self.addresses: dict[int, str] = {}
        self.leaving: set[ServerId] = set()
        self.copies: dict[int, Copy] = {}
        self.clients: list[ParameterClient] = []
        self.workers: list[str] = []
        self._ready: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        self._next = 0
        self.entries: list[Entry] = []
        for _ in range(count):
            self.add()
        self.entries = list(first(sorted(self.processes), SLOTS, replicas))
        self.tell()

    def add(self) -> ServerId:
        """Start a server more."""
        number = ServerId(self._next)
        self._next += 1
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.ps.server_process", str(number)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        self.addresses[number] = json.loads(process.stdout.readline())["address"]
        self.processes[number] = process
        threading.Thread(target=self._listen, args=(process,), daemon=True).start()
        self.tell()
        return number

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            slot, term, to, hands_over = json.loads(line)["ready"]
            self._ready.put(Copy(slot, term, ServerId(to), hands_over))

    def client(self, name: str) -> ParameterClient:
        """Return a client that is told whatever the servers are told."""
        client = ParameterClient(name, data_key(TOKEN), catalog().core())
        self.clients.append(client)
        self.workers.append(name)
        self.tell()
        return client

    def tell(self) -> None:
        """Tell all where servers are, and the newest entries."""
        rows = [
            (slot, entry.term, entry.primary_epoch, entry.primary, entry.backup, entry.restored)
            for slot, entry in enumerate(self.entries)
        ]
        for server in self.processes:
            self._order(server, learn=rows, addresses=self.addresses, workers=self.workers)
        for client in self.clients:
            client.learn(self.addresses, rows, 0)

    def _order(self, server: ServerId, **order: Any) -> None:
        pipe = self.processes[server].stdin
        assert pipe is not None
        with contextlib.suppress(BrokenPipeError):  # it is just being killed
            print(json.dumps(order), file=pipe, flush=True)

    def kill(self, server: ServerId) -> None:
        """Kill a server, and let everybody know."""
        process = self.processes.pop(server)
        process.kill()
        process.wait()
        lost = [
            copy
            for copy in self.copies.values()
            if copy.to == server or self.entries[copy.slot].primary == server
        ]
        changed, gone = after_loss(self.entries, {server}, set(self.processes), 1)
        assert not gone
        for copy in lost:
            del self.copies[copy.slot]
            # Its `ready` may be on its way.
            changed.setdefault(copy.slot, self.entries[copy.slot].with_backup(self.entries[copy.slot].backup))
        for slot, entry in changed.items():
            self.copies.pop(slot, None)
            self.entries[slot] = entry
        self.tell()

    def see_to_copies(self) -> bool:
        """Order copies, and take note of those that are ready; tell whether there is nothing left to be done."""
        changed = False
        while not self._ready.empty():
            copy = self._ready.get()
            after = outcome(self.entries, copy)
            if after is not None and copy.to in self.processes:
                self.entries[copy.slot] = after
                del self.copies[copy.slot]
                changed = True
        for slot, entry in at_once(self.entries, set(self.processes), self.leaving, self.replicas).items():
            self.entries[slot], changed = entry, True
        if changed:
            self.tell()
        copies = next_copies(self.entries, set(self.processes), self.leaving, self.copies, self.replicas, 16)
        for copy in copies:
            self.copies[copy.slot] = copy
            order = [copy.slot, copy.to, copy.term, copy.hands_over]
            self._order(self.entries[copy.slot].primary, copy=order)
        for server in [server for server in self.leaving if is_empty(self.entries, server)]:
            self.leaving.remove(server)
            process = self.processes.pop(server)
            process.kill()
            process.wait()
        return not self.copies

    def settle(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Wait until nothing is left to be copied."""
        until = time.monotonic() + SECONDS
        while not self.see_to_copies():
            meanwhile()
            assert time.monotonic() < until, f"{len(self.copies)} copies do not end"
            time.sleep(0.002)

    def close(self) -> None:
        """End everything."""
        for client in self.clients:
            client.close()
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()
