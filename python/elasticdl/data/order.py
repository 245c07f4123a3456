"""The order of a job's data, as its settings say: the one place where a ledger is made of them.

Master and workers compute it each for themselves, so they have to read the settings alike.
"""

from __future__ import annotations

from elasticdl.data.ledger import Ledger
from elasticdl.data.shard import Shard
from elasticdl.spec.jobspec import JobSpec


def ledger_of(spec: JobSpec, shards: tuple[Shard, ...]) -> Ledger:
    """Return the order of a job's data. Raises BadInput for data that can't be trained on."""
    per_task = spec.minibatch_size * spec.num_minibatches_per_task
    return Ledger(shards, per_task, spec.minibatch_size, spec.seed, spec.shuffle)
