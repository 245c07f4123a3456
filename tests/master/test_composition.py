"""How masters are made: a core that holds values, each a machine of its own."""

from __future__ import annotations

import dataclasses

import pytest

from elasticdl.master.allreduce.machine import AllReduceMaster
from elasticdl.master.core.machine import MasterCore
from elasticdl.master.ps.machine import PsMaster


@pytest.mark.parametrize("master", [AllReduceMaster, PsMaster])
def test_a_master_inherits_from_the_core_alone_and_its_values_from_nothing(master: type[MasterCore]) -> None:
    assert master.__mro__ == (master, MasterCore, object)
    made = (one.default_factory for one in dataclasses.fields(master))
    values = [kind for kind in made if isinstance(kind, type) and dataclasses.is_dataclass(kind)]
    assert len(values) > 5
    assert {kind: kind.__mro__ for kind in values} == {kind: (kind, object) for kind in values}
