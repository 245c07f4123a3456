"""What a master that has come back knows of the workers that there were."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from elasticdl.cluster.cluster import Cluster, ClusterEvent, ProcessGone, ProcessName, Role
from elasticdl.control.protocol.view import MemberId, Peer, StateId, View, ViewId
from elasticdl.data.plan.shard import Position
from elasticdl.job.master import _replica_sets
from elasticdl.master.core.records import EpochRecord, LaunchedRecord, ViewRecord
from elasticdl.master.processes import replicas as replicas
from elasticdl.spec.edge import build, from_arguments


class Silent:
    """A cluster that has forgotten all that there was, and says of what it is told of that it is gone."""

    def __init__(self) -> None:
        self.gone: list[ClusterEvent] = []
        self.launched: list[str] = []

    def launch(self, name: ProcessName, memory: int = 0) -> None:
        del memory
        self.launched.append(str(name))

    def expect(self, names: Iterable[ProcessName]) -> None:
        self.gone += [ProcessGone(name) for name in names]

    def events(self, seconds: float) -> list[ClusterEvent]:
        del seconds
        events, self.gone = self.gone, []
        return events


def test_a_name_that_was_ever_given_is_not_used_again() -> None:
    spec = build(from_arguments({"model_def": "m.model", "training_data": "x", "num_workers": 2}))
    records = (EpochRecord(1), LaunchedRecord((ProcessName(Role.WORKER, 0, 1), ProcessName(Role.PS, 1, 9))))
    (force,), _ = _replica_sets(spec, cast(Cluster, Silent()), (records, 2))
    _, instructions, _ = replicas.decide(0.0, force, replicas.Tick())
    assert instructions == (
        replicas.Launch(ProcessName(Role.WORKER, 0, 2)),
        replicas.Launch(ProcessName(Role.WORKER, 1, 1)),
    )


def test_the_members_of_the_last_group_have_to_be_somewhere() -> None:
    spec = build(from_arguments({"model_def": "m.model", "training_data": "x", "num_workers": 2}))
    view = View(
        id=ViewId(1),
        members=(Peer(MemberId("0"), "worker-0-1", "unix:/x"), Peer(MemberId("1"), "worker-1-3", "unix:/y")),
        base=StateId(0, ViewId(0)),
        position=Position(0, 0, 2, 0),
        first=(0, 1),
        later=(0, 1),
        wave_lanes=2,
        sources=("initial", "initial"),
    )
    records = (EpochRecord(1), ViewRecord(view))
    (force,), history = _replica_sets(spec, cast(Cluster, Silent()), (records, 2))
    names = [ProcessName(Role.WORKER, 0, 1), ProcessName(Role.WORKER, 1, 3)]
    assert history == [ProcessGone(name) for name in names]
    _, instructions, _ = replicas.decide(0.0, force, replicas.Tick())
    assert instructions == (
        replicas.Launch(ProcessName(Role.WORKER, 0, 2)),
        replicas.Launch(ProcessName(Role.WORKER, 1, 4)),
    )


def test_servers_come_before_workers_for_which_there_may_be_no_room() -> None:
    settings = {"model_def": "m.model", "training_data": "x", "num_workers": 2, "num_ps_pods": 2}
    cluster = Silent()
    forces, _ = _replica_sets(build(from_arguments(settings)), cast(Cluster, cluster), ((), 0))
    assert [force.role for force in forces] == [Role.WORKER, Role.PS]
    assert cluster.launched == ["ps-0-1", "ps-1-1", "worker-0-1", "worker-1-1"]
