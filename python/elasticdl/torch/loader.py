"""`edl.DataLoader`: the batches of a job, in the order of its plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from elasticdl.data.plan.loopplan import LoopPlan
from elasticdl.errors import BadData, BadSetting
from elasticdl.torch.loop import current
from elasticdl.torch.passes import Phase
from elasticdl.torch.source import BatchSource, TensorSource, rows_of


class DataLoader:
    """The batches of a map-style data set: iterate over it once for all epochs, or over `epochs()` and in each over it."""

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        *,
        num_epochs: int = 1,
        shuffle: bool = False,
        global_batch_size: int = 0,
        max_step: int = 0,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = False,
        pin_memory: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        prefetch_factor: int | None = None,
        multiprocessing_context: Any = None,
        persistent_workers: bool = True,
        sampler: Any = None,
        batch_sampler: Any = None,
        generator: Any = None,
    ) -> None:
        """Start the processes that read.

        Args:
            dataset: with a length, and an example for each number below it, the same in all workers.
            batch_size: records of a batch, of each worker.
            num_epochs: passes over the data; 0: until `job.stop`.
            shuffle: give each epoch an order of its own, of the seed of `edl.init`.
            global_batch_size: records of a step, a multiple of `batch_size`, however many workers there are; 0: a batch of each worker.
            max_step: steps after which training ends; 0: no limit.
            drop_last: leave out the last records of the data that make no full batch, in all epochs the same.
            num_workers: processes of this worker that read; 0: the program's own thread reads.
            collate_fn: as in `torch.utils.data.DataLoader`, like `pin_memory`, `timeout`, `worker_init_fn`, `prefetch_factor` and
                `multiprocessing_context`.
            persistent_workers: the processes that read stay until the end, whatever is said here.
            sampler: refused, since the job deals out the records; so are `batch_sampler` and `generator`.

        Raises BadSetting or BadData.
        """
        self._passes = passes = current("edl.DataLoader").passes
        if sampler is not None or batch_sampler is not None:
            raise BadSetting(
                "edl.DataLoader: sampler and batch_sampler can't be used, since the job deals out the records; use shuffle=True, or a data "
                "set with the order that you need (torch.utils.data.Subset)"
            )
        if generator is not None:
            raise BadSetting(
                "edl.DataLoader: generator can't be used, since all workers have one order; edl.init(seed=…) chooses it"
            )
        records = _length(dataset)
        for name, value, least in (
            ("batch_size", batch_size, 1),
            ("num_epochs", num_epochs, 0),
            ("global_batch_size", global_batch_size, 0),
            ("max_step", max_step, 0),
            ("num_workers", num_workers, 0),
        ):
            if type(value) is not int or value < least:
                raise BadSetting(
                    f"edl.DataLoader: {name} is a whole number from {least} on; got {value!r:.100}"
                )
        if drop_last and records % batch_size:
            passes.session.note(
                f"drop_last: the last {records % batch_size:,} of {records:,} records are not trained"
            )
            records -= records % batch_size
        if not records:
            raise BadData(
                "edl.DataLoader: the data set has no record"
                + (f" in a full batch of {batch_size}; leave drop_last out" if drop_last else "")
            )
        self.dataset, self.batch_size = dataset, batch_size
        self._plan = LoopPlan(
            records, batch_size, num_epochs, bool(shuffle), global_batch_size, max_step, passes.seed
        )
        self._plan.lanes(1)  # raises
        self._epoch: int | None = None
        self._finished = False
        settings: dict[str, Any] = {
            "collate_fn": collate_fn,
            "pin_memory": pin_memory,
            "timeout": timeout,
            "worker_init_fn": worker_init_fn,
            "prefetch_factor": prefetch_factor,
            "multiprocessing_context": multiprocessing_context,
        }
        tensors = rows_of(dataset, num_workers, **settings)
        passes.use(
            self._plan,
            BatchSource(dataset, self._plan, num_workers, **settings)
            if tensors is None
            else TensorSource(tensors, self._plan),
        )

    def __len__(self) -> int:
        """Return the batches of an epoch, of all workers together."""
        return -(-self._plan.records // self.batch_size)

    def epochs(self) -> Iterator[int]:
        """Yield the epochs from 0 on; a worker that joins begins with that of the others."""
        passes = self._passes
        try:
            while (batch := passes.fetch()) is not None:
                self._epoch = batch.epoch
                yield batch.epoch
                # another batch is one that is of a later epoch: the state was received
                if passes.phase is Phase.FETCHED and passes.fetch() is batch:
                    raise passes.wrong(
                        f"the body of epoch {batch.epoch} did not loop over the loader: for batch in loader"
                    )
                self._check_left()
        finally:
            self._epoch = None
        self._finished = True

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of the epoch that `epochs` has given, or of all epochs."""
        passes, epoch = self._passes, self._epoch
        self._check_left()
        if epoch is None and self._finished:
            raise passes.wrong(
                "the loader is iterated over again, and it has come to the end of all epochs: loop over the epochs with "
                "`for epoch in loader.epochs()`"
            )
        # After the last step of an epoch nothing is asked of the session: what the program does now belongs to that step.
        while epoch is None or passes.phase is Phase.FETCHED or passes.session.epoch <= epoch:
            batch = passes.fetch()
            if batch is None or (epoch is not None and batch.epoch != epoch):
                break
            passes.looping = True
            yield passes.begin()
        passes.looping = False
        self._finished = epoch is None

    def _check_left(self) -> None:
        if self._passes.looping and not self._passes.stopped:
            raise self._passes.wrong(
                "the loop over the loader was left before its end (break), while other workers continue; job.stop(reason) ends training in "
                "all of them, and the loop with it"
            )


def _length(dataset: Any) -> int:
    if isinstance(dataset, torch.utils.data.IterableDataset):
        raise BadData(
            "edl.DataLoader: an IterableDataset can't be dealt out by numbers; use a map-style data set, with __len__ and __getitem__"
        )
    try:
        return len(dataset)
    except TypeError:
        raise BadData(
            f"edl.DataLoader: a {type(dataset).__name__} has no length; use a map-style data set, with __len__ and __getitem__"
        ) from None
