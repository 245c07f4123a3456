"""The order of a job's data, as its settings say: the one place where a ledger is made of them.

Master and workers compute it each for themselves, so they have to read the settings alike; a checkpoint keeps them, because numbers of
tasks mean nothing without.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from elasticdl.data.plan.evaluation import MOST_TASKS, EvaluationPlan
from elasticdl.data.plan.ledger import Ledger
from elasticdl.data.plan.loopplan import LoopPlan
from elasticdl.data.plan.onepass import OnePass
from elasticdl.data.plan.programtasks import tasks_of_program
from elasticdl.data.plan.schedule import Schedule, policy_lanes
from elasticdl.data.plan.shard import Shard
from elasticdl.data.plan.tasks import TaskOrder
from elasticdl.data.plan.waves import WHOLE
from elasticdl.errors import BadSetting
from elasticdl.spec.jobspec import JobKind, JobSpec


@dataclass(frozen=True, slots=True)
class Dealing:
    """How data is dealt out in tasks: what the numbers of tasks and minibatches mean.

    Attributes:
        shards: the data.
        seed: of its order.
        shuffle: whether there is one but the shards'.
        records_per_task: records of a full task.
        minibatch_size: records of a full minibatch.
        grads_to_wait: tasks whose minibatches make steps together; 0: servers apply each by itself.
        by_record: a custom training loop shuffles records one by one, and its tasks are in the order of the data.
    """

    shards: tuple[Shard, ...]
    seed: int
    shuffle: bool
    records_per_task: int
    minibatch_size: int
    grads_to_wait: int = 0
    by_record: bool = False

    def ledger(self) -> Ledger:
        """Return the order of tasks. Raises BadData if there is no record."""
        shuffle = self.shuffle and not self.by_record
        return Ledger(self.shards, self.records_per_task, self.minibatch_size, self.seed, shuffle)

    def differences(self, other: Dealing) -> Iterator[str]:
        """Yield what is different there, in words, with both values."""
        names = {
            "seed": "seed",
            "shuffle": "shuffle",
            "minibatch_size": "minibatch size",
            "records_per_task": "records of a task",
            "by_record": "custom training loop",
        }
        for name, words in names.items():
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                yield f"{words} ({mine} and {theirs})"
        if self.grads_to_wait != other.grads_to_wait:
            yield f"how many gradients make a step ({self._step_flags()} and {other._step_flags()})"
        if len(self.shards) != len(other.shards):
            yield f"number of shards ({len(self.shards):,} and {len(other.shards):,})"
        for mine, theirs in zip(self.shards, other.shards, strict=False):
            if mine != theirs:
                yield f"shards ({mine} and {theirs})"
                return

    def _step_flags(self) -> str:
        """Return the flags that say how many gradients make a step."""
        return (
            f"--use_async=false --grads_to_wait={self.grads_to_wait}" if self.grads_to_wait else "--use_async"
        )


def with_plan(spec: JobSpec, plan: LoopPlan | None) -> JobSpec:
    """Return the settings of a job of which the program has said how its data is dealt out, as if they had been given.

    Without a plan nothing changes.
    """
    if plan is None:
        return spec
    return replace(
        spec,
        minibatch_size=plan.batch_size,
        num_minibatches_per_task=1,
        num_epochs=plan.num_epochs,
        max_step=plan.max_step,
        shuffle=plan.shuffle,
        seed=plan.seed,
        global_batch_size=plan.global_batch_size,
    )


def records_per_task(spec: JobSpec, block: int = 1) -> int:
    """Return the records of a full task; `block`: the most that are decoded together, which no task splits."""
    return max(spec.minibatch_size * spec.num_minibatches_per_task, block)


def dealing_of(spec: JobSpec, shards: tuple[Shard, ...]) -> Dealing:
    """Return how a job deals out these shards."""
    per_task = records_per_task(spec, max((shard.block for shard in shards), default=1))
    gradients = spec.grads_to_wait if spec.accumulates else 0
    by_record = bool(spec.job_command)
    return Dealing(shards, spec.seed, spec.shuffle, per_task, spec.minibatch_size, gradients, by_record)


def ledger_of(spec: JobSpec, shards: tuple[Shard, ...]) -> Ledger:
    """Return the order of a job's data. Raises BadInput for data that can't be trained on."""
    return dealing_of(spec, shards).ledger()


def schedule_of(spec: JobSpec, shards: tuple[Shard, ...], validation: tuple[Shard, ...]) -> Schedule:
    """Return the order of a synchronous job, and when it is evaluated. Raises BadInput for data that can't be used."""
    schedule = Schedule(
        ledger_of(spec, shards), spec.num_epochs, spec.max_step, evaluation_of(spec, validation)
    )
    lanes = policy_lanes(spec.global_batch_size or None, spec.minibatch_size, 1)
    most = schedule.most_steps(lanes)
    if most is not None and spec.evaluation_steps > most:
        raise BadSetting(
            f"--evaluation_steps: the data makes {most:,} steps at most, so there would be no evaluation after {spec.evaluation_steps:,}; "
            "leave it out for one after each epoch"
        )
    return schedule


def pass_of(spec: JobSpec, shards: tuple[Shard, ...]) -> OnePass:
    """Return the tasks of a job that trains nothing. Raises BadInput for data that can't be used."""
    if spec.kind is JobKind.EVALUATE:
        return EvaluationPlan(shards, spec.minibatch_size)
    if spec.kind is JobKind.PROCESS:
        return tasks_of_program(shards, spec.minibatch_size)
    return OnePass(shards, spec.minibatch_size, spec.num_minibatches_per_task, MOST_TASKS)


def evaluation_of(spec: JobSpec, validation: tuple[Shard, ...]) -> EvaluationPlan | None:
    """Return what is evaluated while a job trains, and when; None if nothing is. Raises BadInput for data that can't be used."""
    if not spec.validation_data:
        return None
    at_epoch_end = spec.evaluate_at_epoch_end
    return EvaluationPlan(validation, spec.minibatch_size, spec.evaluation_steps, at_epoch_end)


def tasks_of(spec: JobSpec, shards: tuple[Shard, ...], validation: tuple[Shard, ...] = ()) -> TaskOrder:
    """Return the tasks of a job with parameter servers, and what is evaluated between them. Raises BadInput for data that can't be used.

    Without `validation` nothing is evaluated.
    """
    dealing = dealing_of(spec, shards)
    plan = evaluation_of(spec, validation) if validation else None
    wave = max(1, dealing.grads_to_wait)
    order = TaskOrder(dealing.ledger(), spec.num_epochs, spec.max_step, wave, plan)
    if order.chunks_per_task >= WHOLE:
        raise BadSetting(
            f"--minibatch_size: a task of {dealing.records_per_task:,} records has {order.chunks_per_task:,} minibatches, and with "
            f"parameter servers can have {WHOLE - 1:,}; use larger minibatches, or {_smaller_tasks(spec)}"
        )
    return order


def _smaller_tasks(spec: JobSpec) -> str:
    return "a lower --num_minibatches_per_task" if spec.num_minibatches_per_task >= WHOLE else SMALLER_BLOCKS


SMALLER_BLOCKS = "files with smaller row groups or batches, for example of 10,000 records"
"""What to do about tasks that are too long because they split no block."""


def idle_for_blocks(spec: JobSpec, shards: tuple[Shard, ...]) -> str:
    """Return what to say if an epoch has fewer tasks than workers because no task splits a block; empty if it has enough."""
    dealing = dealing_of(spec, shards)
    if dealing.records_per_task == records_per_task(spec):
        return ""
    tasks = dealing.ledger().num_tasks
    workers = spec.num_workers.maximum
    if tasks >= workers:
        return ""
    return (
        f"the data comes in blocks of up to {dealing.records_per_task:,} records, which no task splits: an epoch has "
        f"{'1 task' if tasks == 1 else f'{tasks:,} tasks'}, so {workers - tasks} of {workers} workers have nothing to do; use "
        f"{SMALLER_BLOCKS}"
    )
