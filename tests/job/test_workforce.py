"""What a master that has come back knows of the workers that there were."""

from __future__ import annotations

from typing import cast

from elasticdl.cluster.cluster import Cluster, ClusterEvent, ProcessName, Role
from elasticdl.control.status import JobEvent
from elasticdl.job.master import _workforce
from elasticdl.master import relaunch
from elasticdl.master.records import EpochRecord
from elasticdl.master.story import Told
from elasticdl.spec.edge import build, from_arguments


class Silent:
    """A cluster that has forgotten all that there was."""

    def events(self, seconds: float) -> list[ClusterEvent]:
        del seconds
        return []


def test_a_name_that_was_ever_spoken_of_is_not_used_again() -> None:
    spec = build(from_arguments({"model_def": "m.model", "training_data": "x", "num_workers": 2}))
    told = [Told(JobEvent(1.0, kind, "worker-0-1", 1, 1, kind)) for kind in ("joined", "drained")]
    force, _ = _workforce(spec, cast(Cluster, Silent()), ((EpochRecord(1),), 1), told)
    _, instructions, _ = relaunch.decide(0.0, force, relaunch.Tick())
    assert instructions == (
        relaunch.Launch(ProcessName(Role.WORKER, 0, 2)),
        relaunch.Launch(ProcessName(Role.WORKER, 1, 1)),
    )
