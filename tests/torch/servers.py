"""One parameter server, and a worker of one adapter that trains with it as a worker of a job does, in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticdl._core import Batch, Listener, ParameterClient, ParameterServer
from elasticdl.control.transport.keys import data_key
from elasticdl.spec import framework
from elasticdl.worker.contract.ps import PsAdapter
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.ps.tablereader import ServerTableReader

from . import LIFE, job

TOKEN = b"0123456789abcdef0123456789abcdef"


def ps_adapter_of(user: UserModel, sample: Sequence[Any], metadata: Any = None, **settings: Any) -> PsAdapter:
    """Return an adapter that has tried the first records."""
    found = framework.find("torch")
    found.start(1)
    made: PsAdapter = found.ps_adapter(user, job(num_ps_pods=1, **settings), metadata, LIFE)
    made.prepare(sample)
    return made


class Worker:
    """Trains one chunk after the other: its rows are those after all that it has pushed."""

    def __init__(self, adapter: PsAdapter) -> None:
        self.adapter, self._catalog = adapter, adapter.catalog
        self._core = adapter.catalog.core()
        self._server = ParameterServer(Listener("tcp:127.0.0.1:0"), 0, TOKEN, self._core)
        self._client = ParameterClient("worker", data_key(TOKEN), self._core)
        entries = [(slot, 1, 1, 0, None, 0) for slot in range(self._catalog.slots)]
        self._server.learn({}, entries, 0, 1000)
        self._server.know({"worker"})
        self._client.learn({0: self._server.address}, entries, 0)
        first = [(number, value.data) for number, value in enumerate(adapter.first_values())]
        self._settle(self._client.push((None, 0, 0, 0.0, 0), [], first, True))
        self.steps = 0

    def close(self) -> None:
        self._client.close()
        self._server.close()

    def _settle(self, ticket: int) -> None:
        assert self._client.settled(ticket, 10.0) == "settled"

    def rows(self, batches: Sequence[Batch]) -> list[npt.NDArray[np.float32]]:
        """Return the rows of distinct ids, flat, and let the adapter take all variables that have changed."""
        found = self._client.rows(
            self._client.pull(None, batches, list(range(len(self._catalog.variables)))), 10.0
        )
        assert found is not None
        for number, value in found[1]:
            if value is not None:
                self.adapter.take(number, np.frombuffer(value, np.float32))
        return [np.frombuffer(one, np.float32) for one in found[0]]

    def train(self, records: Sequence[Any]) -> float:
        """Train a chunk; return its loss."""
        batch = self.adapter.convert(records)
        found = self.adapter.compute(batch, self.rows(batch.batches), self.steps, 0)
        head = ((self.steps, 0), 0, 0, self.adapter.rate(self.steps), self.steps)
        rows = [(of, slope.data, True) for of, slope in zip(batch.batches, found.rows, strict=True)]
        dense = [(number, slope.data) for number, slope in enumerate(found.dense)]
        self._settle(self._client.push(head, rows, dense))
        self.steps += 1
        return found.loss

    def reader(self) -> ServerTableReader:
        """Return the tables as a worker that writes the result reads them; what has been trained is not listed."""

        def read(table: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
            batch = Batch(self._core, table, ids.data)
            rows = self.rows([batch])[0].reshape(len(batch), -1)
            return rows[np.frombuffer(batch.inverse(), np.uint32)]

        listed: Callable[..., Any] = lambda *_: iter(())  # noqa: E731
        return ServerTableReader(self._catalog, read, listed)
