"""The validation data in the order of its evaluation, and the states of the model that are evaluated."""

from __future__ import annotations

from collections.abc import Sequence

from elasticdl.data.plan.onepass import OnePass
from elasticdl.data.plan.shard import Shard
from elasticdl.errors import BadData

MOST_TASKS = 1024
"""Of one evaluation: enough for as many workers, and what a master keeps is bounded."""
_PER_TASK, _LEAST_TASKS = 8, 32
"""Minibatches of a task where there are many, and tasks where there are few: each costs a round trip to the master, and at the end workers
wait for the last one."""
MOST_BYTES = 64 << 20
"""Of what all tasks of an evaluation add up: a master keeps it until the evaluation is over."""


class EvaluationPlan(OnePass):
    """Tasks of one evaluation, and when there is one.

    Attributes:
        every: steps between two evaluations; 0: none within an epoch.
        at_epoch_end: an evaluation follows the last step of each epoch.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        minibatch_size: int,
        every: int = 0,
        at_epoch_end: bool = True,
        most_tasks: int = MOST_TASKS,
    ) -> None:
        """Number the minibatches. Raises BadSetting for a minibatch of nothing, BadData if there is no record."""
        try:
            super().__init__(shards, minibatch_size, _PER_TASK, most_tasks, _LEAST_TASKS)
        except BadData as error:
            raise BadData(f"the validation data: {error}") from None
        self.every = every
        self.at_epoch_end = at_epoch_end
