"""What the values of a master of a job with parameter servers are handed, made of records."""

from __future__ import annotations

from typing import Any

from elasticdl.control.protocol.frozen import replace
from elasticdl.master.core.entry import Entry, ServerId
from elasticdl.master.core.machine import MasterCore
from elasticdl.master.core.records import Journal, ModelRecord, PlacementRecord, Server
from elasticdl.master.ps.machine import PsMaster
from elasticdl.master.ps.settings import Settings
from tests.master.models import model_of
from tests.master.psrig import order

A, B, C = (ServerId(number) for number in range(3))


def server(number: int) -> Server:
    return Server(ServerId(number), f"ps-{number}-1", f"unix:/ps-{number}-1")


def placed(*entries: Entry, servers: int = 3, **said: Any) -> Journal:
    """Return a journal that has placed slots on the first so many servers, and says some things beside."""
    journal = Journal().with_record(ModelRecord(model_of(len(entries))))
    joined = tuple(map(server, range(servers)))
    journal = journal.with_record(PlacementRecord(joined, (), tuple(enumerate(entries))))
    return replace(journal, **said)


def core_of(journal: Journal, **known: Any) -> MasterCore:
    """Return what every master knows, with this journal."""
    settings = Settings(
        workers=2, minimum=1, relaunches=1, plan=lambda shards, _: order(shards), servers=2, replicas=2
    )
    return replace(PsMaster(settings), **{"journal": journal, "opened": True, **known})
