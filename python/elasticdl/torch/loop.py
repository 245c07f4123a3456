"""`edl.init`: a program becomes one of a job's workers, or trains alone; and `job`, by which it asks and says what is not in the loop."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from elasticdl.errors import BadSetting
from elasticdl.torch.loopstate import Clip
from elasticdl.torch.namedvalues import NamedValues
from elasticdl.torch.passes import Passes
from elasticdl.torch.runtime import seed_chunk
from elasticdl.worker.contract.loop import Session
from elasticdl.worker.loop.result import writing
from elasticdl.worker.loop.starting import start


class Job:
    """The job that a program is a worker of."""

    def __init__(self, passes: Passes) -> None:
        """Made by `edl.init`."""
        self.passes = passes
        self._finished = False

    # ------------------------------------------------------------------ where training is

    @property
    def committed(self) -> bool:
        """Tell whether the last `optimizer.step()` committed: with several batches in a step only the last one does."""
        return self.passes.committed

    @property
    def step(self) -> int:
        """Return the committed steps."""
        return self.passes.session.steps

    @property
    def epoch(self) -> int:
        """Return the epoch of the next batch; the number of epochs at the end."""
        return self.passes.session.epoch

    @property
    def is_writer(self) -> bool:
        """Tell whether this worker writes files: one of them does at any time."""
        return self.passes.session.is_writer

    @property
    def state(self) -> NamedValues:
        """Return what is kept with the model, by name: trees of tensors, arrays and numbers, or objects with a `state_dict`.

        Workers that join get it, and checkpoints have it. Names are given before the first batch.
        """
        return self.passes.values

    # ------------------------------------------------------------------ in the loop's body

    def clip_grad_norm_(
        self,
        parameters: torch.Tensor | Iterable[torch.Tensor],
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> None:
        """Clip the gradient of the step, as `torch.nn.utils.clip_grad_norm_` does, at the commit and at each one after it."""
        given = (parameters,) if isinstance(parameters, torch.Tensor) else tuple(parameters)
        options = {"norm_type": norm_type, "error_if_nonfinite": error_if_nonfinite, "foreach": foreach}
        self.passes.clips[tuple(map(id, given))] = Clip(given, float(max_norm), options)

    def set_weight(self, weight: float) -> None:
        """Let the batch under way count as so many examples in the mean of its step, not as many as it has records."""
        self.passes.weigh(weight)

    def skip(self) -> None:
        """Leave the batch under way out: its records count as trained, and it gives nothing to the step. It is in place of the step."""
        self.passes.skip()

    def report(self, loss: Any) -> None:
        """Report the mean loss of the batch under way, for people: `elasticdl status` and the log show the step's."""
        self.passes.report(loss)

    # ------------------------------------------------------------------ beside it

    def print(self, *values: Any, sep: str = " ") -> None:
        """Tell people, once: only the worker that writes does."""
        if self.is_writer:
            self.passes.session.note(sep.join(map(str, values)))

    def result(self, write: Callable[[str], object], path: str = "") -> None:
        """Let `write(path)` write the result when training has ended, in one worker, as a file or a folder.

        `path`: where it is published if the program runs alone; in a job that is `--output`. A reader never finds a part of it.
        """
        self.passes.set_write(writing(write))
        self.passes.session.put_result_at(path)

    def long_operation(self, seconds: float) -> AbstractContextManager[None]:
        """Return a context in which the program may work so long without a step; a worker that makes none is taken for one that hangs."""
        return self.passes.session.long_operation(seconds)

    def stop(self, reason: str = "the program ended training") -> None:
        """End training after the step under way, in all workers."""
        self.passes.stopped = True
        self.passes.session.stop(reason)

    def finish(self) -> None:
        """Carry out what follows the last step, such as the result; it is done by itself when the program ends.

        Raises BadModel if the program has left the loop while there were batches.
        """
        self._finished = True
        self.passes.session.finish()


_current: Job | None = None


def init(seed: int = 0) -> Job:
    """Make this program a worker of its job, or let it train alone if none has started it; call it once, before the model is made.

    All generators are seeded, so that every worker makes the same model. `seed`: of that, of the order of the data and of each batch.

    Raises BadSetting.
    """
    if type(seed) is not int:
        raise BadSetting(f"edl.init: seed is a whole number; got {seed!r:.100}")
    return begin(start(), seed)


def begin(session: Session, seed: int) -> Job:
    """Make this program a worker of a session. Raises BadSetting while it is one of another."""
    global _current
    if _current is not None and not _current._finished:
        raise BadSetting("edl.init: it was called before; call it once")
    program = Path(sys.argv[0]).name or "the program"
    _current = job = Job(Passes(session, seed, program))
    seed_chunk(seed, 0, 0)
    return job


def current(asker: str) -> Job:
    """Return the job of this program. Raises BadSetting before `edl.init`."""
    if _current is None or _current._finished:
        raise BadSetting(f"{asker}: call job = edl.init() before it")
    return _current
