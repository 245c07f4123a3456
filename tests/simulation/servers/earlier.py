"""The checkpoint of an earlier job from which a simulated one continues.

A server has taken chunks, and each slot was cut at a moment of its own. The server and the client that pushes are the core's, and the place
in the data is found as masters find it; nothing is late or lost here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from elasticdl._core import _simulation
from elasticdl.checkpoint.manifest import Barrier, Manifest
from elasticdl.control.protocol.psmessages import SlotEntry
from elasticdl.data.plan.order import Dealing
from elasticdl.data.plan.tasks import TaskOrder
from elasticdl.master.core.records import ResumedRecord
from elasticdl.master.ps import resuming
from tests.simulation.servers.model import CHUNKS, MINIBATCH, SEED, SLOTS, TEXT, Adapter, Model

PATH = "earlier job/manifest"
NUMBER = 3
ROLL_BACK = 1
"""The earlier job was rolled back once."""

Stamp = tuple[int, int]


@dataclass(frozen=True)
class Earlier:
    """What is left of an earlier job.

    Attributes:
        low: the tasks before it are done.
        above: those beyond that are done, too.
        more: of each slot, how many chunks of later tasks it holds.
        barriers: that were passed.
        in_waves: servers have summed up gradients, and all slots were cut between two waves.
    """

    low: int
    above: tuple[int, ...] = ()
    more: tuple[int, ...] = (0,) * SLOTS
    barriers: tuple[Barrier, ...] = ()
    in_waves: bool = False

    @property
    def done(self) -> tuple[int, ...]:
        return (*range(self.low), *self.above)

    @property
    def lines(self) -> set[Stamp]:
        """Return what its audit says of the tasks that are done."""
        return {(task, chunk) for task in self.done for chunk in range(CHUNKS)}

    def record(self, order: TaskOrder) -> ResumedRecord:
        """Return where a job of these tasks continues."""
        grads_to_wait = order.wave if self.in_waves else 0
        dealing = Dealing(
            order.ledger.shards, SEED, True, order.ledger.records_per_task, MINIBATCH, grads_to_wait
        )
        step = order.steps_before(self.low) if self.in_waves else 0
        place = (self.low, self.above, ROLL_BACK, dealing, json.loads(TEXT), (), step)
        manifest = Manifest(NUMBER, "earlier", 0.0, *place, barriers=self.barriers)
        return resuming.resume(resuming.Checkpoint(Path(PATH), manifest), order, dealing, NUMBER)

    def slots(self, model: Model) -> dict[int, bytes]:
        """Return what was cut of each slot."""
        later = [
            (task, chunk)
            for task in range(self.low, model.tasks)
            for chunk in range(CHUNKS)
            if task not in self.above
        ]
        done = tuple(sorted(self.lines))
        return {
            slot: _cut(model, done, tuple(later[:more]), self.low, slot, int(self.in_waves))
            for slot, more in enumerate(self.more)
        }


@lru_cache(maxsize=256)
def _cut(
    model: Model, done: tuple[Stamp, ...], more: tuple[Stamp, ...], low: int, slot: int, steps: int
) -> bytes:
    """Return a slot that has taken these chunks, `more` of them when the tasks before `low` were known to be done.

    `steps`: in how many steps it has applied them, if it has summed them up.
    """
    server: Any = _simulation.Server(0, model.core)
    client: Any = _simulation.Client(model.core)
    entries = [SlotEntry(one, 1, 1, 0, None, 0) for one in range(SLOTS)]
    server.learn(entries, 0, model.tasks)
    for one in range(SLOTS):
        server.restore(one, None)
    client.learn(entries, 0)
    adapter = Adapter(model)
    first = [(0, adapter.first_values()[0].tolist())]
    client.begin(0.0, 1, None, (None, 0, 0, 0.0, 0), [], first, True)
    _answer(client, server)
    for ticket, (task, chunk) in enumerate((*done, *more), 2):
        batch = adapter.batch(model.column(task, chunk))
        slopes = adapter.compute(batch, (), task, chunk)
        rows = [(one, slope.ravel().tolist()) for one, slope in zip(batch.batches, slopes.rows, strict=True)]
        head = ((task, chunk), 0 if (task, chunk) in done else low, 0, 1.0, 0)
        client.begin(0.0, ticket, None, head, rows, [(0, slopes.dense[0].tolist())])
        _answer(client, server)
    cut = server.cut(slot, 1, steps)
    assert cut is not None, "the slot is whole"
    words, _ = cut
    assert isinstance(words, bytes)
    return words


def _answer(client: Any, server: Any) -> None:
    """Let a push be answered."""
    client.due(0.0)
    for number, words in client.ask(0.0, 0):
        packets, _ = server.ask(0, number, words)
        for _, *packet in packets:
            assert client.take(0.0, 0, *packet), "a server is understood"
    ((_, how),) = client.news()[1]
    assert how == "settled", how
