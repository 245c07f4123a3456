"""Keras callbacks in a group: every member runs them on the same logs, and their history is part of the state.

A callback keeps what it knows in attributes of its own, which nobody can copy; so the logs are kept instead, and a member that heals
replays them from the beginning; of batches that callbacks only count (`ModelCheckpoint`) their number. The best weights of
`EarlyStopping` come with the state (`bestweights.py`).

One member writes files: `saves.py` has what callbacks save of the model, `writeronly.py` the callbacks that run there alone. The others
keep what they have not written as long as their state is the one of which it is. A member commits no step before the writer has given its
part of it, which it does after it has written; so where a writer was lost in mid-writing the others still have that state, and the next
writer writes before it commits (`make_up`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from elasticdl.cluster.cluster import ProcessName
from elasticdl.control.protocol.messages import MetricValues
from elasticdl.errors import BadModel, TransferFailed
from elasticdl.keras.bestweights import BestWeight, best_weights, keeps_weights
from elasticdl.keras.fileoptions import needed, unusable
from elasticdl.keras.library import callbacks_of, library_of
from elasticdl.keras.monitored import LOSS_ALONE
from elasticdl.keras.saves import Saves, Write
from elasticdl.keras.writeronly import Call, close, is_writer_only, run, spoken
from elasticdl.worker.contract.allreduce import GateLogs, StepLogs
from elasticdl.worker.modelfile import describe
from elasticdl.worker.usermetrics import LOSS

_BATCH_HOOKS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")


class CommitEntry(NamedTuple):
    """What one commit tells the callbacks; the names are those of `StepLogs`."""

    step: int
    epoch: int
    epoch_ended: bool
    epoch_loss: float | None
    at_gate: bool


class GateEntry(NamedTuple):
    """What an evaluation tells them; the names are those of `GateLogs`."""

    step: int
    epoch: int
    values: MetricValues | None
    epoch_ended: bool
    epoch_loss: float | None


class GroupCallbacks:
    """The callbacks of one member. Without callbacks it costs nothing and keeps no history."""

    refused: ClassVar[Mapping[str, str]] = {
        "BackupAndRestore": "the job recovers by itself, and another one continues from --checkpoint_dir",
        "OrbaxCheckpoint": "use --checkpoint_dir, with --checkpoint_best=METRIC for the best one",
        "SwapEMAWeights": "the optimizer's use_ema does the same, and the export takes the averages",
    }
    """Keras callbacks that make no sense in a group, and what to do instead."""

    def __init__(
        self,
        make: Callable[[], Any] | None,
        model: Any,
        optimizer: Any,
        epochs: int,
        path: Path,
        process: ProcessName,
        monitored: Mapping[str, str] = LOSS_ALONE,
    ) -> None:
        """Make the callbacks and begin training, in the life `process` of a worker.

        `monitored`: names that are known at the end of an epoch, each with the way that is better.
        """
        self._make = make
        self._model = model
        self._optimizer = optimizer
        self._epochs = epochs
        self._path = path
        self._monitored = monitored
        self._rate = _rate(optimizer)
        self._saves = Saves(model, optimizer, path)
        self._missed: list[Write] = []
        """What another member was to write of the present state."""
        self._callbacks: list[Any] = []
        # No view is known yet. Worker 0 writes in each view that it is in, so it is the one that may open files now.
        self._begins_files = process.index == 0
        self._writes = False
        self._begin(writing=self._begins_files and process.life == 1)

    def _begin(self, writing: bool) -> None:
        """Make the callbacks anew, with an empty history; `writing`: whether this member writes at the beginning of the first epoch."""
        for callback in self._callbacks:
            close(callback)
        self._callbacks = self._made()
        by_batch = [callback for callback in self._callbacks if _follows_batches(callback)]
        self._batches = bool(by_batch)
        # It knows no more of batches than how many there were, so no entry of each is kept.
        self._counts = self._batches and all(
            type(one) is callbacks_of(one).ModelCheckpoint for one in by_batch
        )
        self._ran: int | None = None
        """The step of the last commit whose hooks have run."""
        self._history: list[CommitEntry | GateEntry] = []
        self._latest: CommitEntry | GateEntry | None = None
        self._missed.clear()
        self._epoch = self._batch = self._epochs_ended = 0
        self._epoch_logs: dict[str, float] = {}
        # one object for all callbacks, which keep it as `self.params`
        self._params: dict[str, Any] = {"epochs": self._epochs, "verbose": 0, "steps": None, "global_step": 0}
        if self._callbacks:
            # callbacks reach the learning rate as `self.model.optimizer`
            self._model.optimizer = self._optimizer
            self._model.stop_training = False
        self._stopped_by: list[str] = []
        for callback in self._callbacks:
            # TensorBoard opens its files when it gets the model
            if not isinstance(callback, callbacks_of(callback).TensorBoard):
                callback.set_model(self._model)
            callback.set_params(self._params)
        self._call("on_train_begin", writing=self._begins_files)
        self._enter(0, 0, writing)

    def _made(self) -> list[Any]:
        if self._make is None:
            return []
        try:
            made = self._make()
        except Exception as error:
            raise BadModel(f"{self._path}: callbacks failed: {describe(error, self._path)}") from error
        callbacks = list(made) if isinstance(made, list | tuple) else [made]
        for callback in callbacks:
            self._check(callback)
        return callbacks

    def _check(self, callback: Any) -> None:
        name = type(callback).__name__
        library = library_of(self._model)
        if not isinstance(callback, library.package.callbacks.Callback):
            raise BadModel(
                f"{self._path}: callbacks returned a {name}; expected a list of {library.package.__name__} callbacks"
            )
        for refused, instead in self.refused.items():
            kind = getattr(library.package.callbacks, refused, None)  # older versions of Keras lack some
            if kind is not None and isinstance(callback, kind):
                raise BadModel(
                    f"{self._path}: the callback {name} is not possible in a group of workers; {instead}"
                )
        if (what := unusable(callback, self._monitored)) is not None:
            raise BadModel(f"{self._path}: the callback {name} {what}")
        self._check_monitored(callback, name)
        if getattr(callback, "restore_best_weights", False) and not keeps_weights(callback):
            raise BadModel(
                f"{self._path}: {name}(restore_best_weights=True) keeps weights that a joining worker never had; use "
                "keras.callbacks.EarlyStopping, or leave it out"
            )

    def _check_monitored(self, callback: Any, name: str) -> None:
        if not hasattr(callback, "monitor"):
            return
        wanted, known = callback.monitor, self._monitored
        if isinstance(callback, callbacks_of(callback).ModelCheckpoint) and not callback.save_best_only:
            # it looks for the way that is better, and compares nothing
            callback.mode = known.get(wanted) or "min"
            return
        if wanted not in known:
            more = (
                ""
                if LOSS in known
                else "; --validation_data adds val_loss and the metrics of eval_metrics_fn"
            )
            names = ", ".join(known) or "nothing"
            raise BadModel(
                f"{self._path}: the callback {name} monitors {wanted!r}; known at the end of an epoch: {names}{more}"
            )
        if getattr(callback, "mode", "") != "auto":
            return
        if not known[wanted]:
            raise BadModel(
                f"{self._path}: the callback {name} monitors {wanted!r}, of which nobody knows whether more is better; "
                "write mode='max' or mode='min'"
            )
        # as Keras finds it for a compiled model
        callback.mode = known[wanted]

    # ------------------------------------------------------------------ commits

    @property
    def writes(self) -> bool:
        """Return whether this member is the one that writes what callbacks write to files."""
        return self._writes

    @writes.setter
    def writes(self, value: bool) -> None:
        self._writes = value

    def best_weights(self) -> list[BestWeight]:
        """Return the weights that callbacks keep: part of the state, as what a callback knows is not."""
        return list(best_weights(lambda: self._callbacks, self._model))

    def logs(self, logs: StepLogs) -> str | None:
        """Run the hooks of one commit; return a reason if a callback asks for the end."""
        if not self._callbacks:
            return None
        entry = CommitEntry(logs.step, logs.epoch, logs.epoch_ended, logs.epoch_loss, logs.at_gate)
        self._note(entry)
        self._run(entry, writing=self._writes)
        return self._wish(logs.step)

    def gate(self, logs: GateLogs) -> str | None:
        """Run the hooks of an evaluation, and those of the end of an epoch; return a reason if a callback asks for the end."""
        if not self._callbacks:
            return None
        entry = GateEntry(logs.step, logs.epoch, logs.values, logs.epoch_ended, logs.epoch_loss)
        self._note(entry)
        self._run_gate(entry, writing=self._writes)
        return self._wish(logs.step)

    def make_up(self) -> None:
        """Write, if this member is the one that writes, what the one before was to write of the present state, and may not have.

        To be called before the state changes. Raises Unwritable, as hooks do.
        """
        if not (self._writes and self._missed):
            return
        missed, self._missed = self._missed, []
        with self._saves.shown(None):
            for write in missed:
                write()

    def _wish(self, step: int) -> str | None:
        if not self._model.stop_training:
            return None
        names = ", ".join(self._stopped_by) or "a callback"
        return f"{names} asked for the end of training after step {step}"

    @property
    def act_at_end(self) -> bool:
        """Tell whether a callback does anything at the end of training."""
        return any(overrides(callback, ("on_train_end",)) for callback in self._callbacks)

    def end(self) -> None:
        """Run the hooks of the end of training, with the logs of the last whole epoch as in `fit`."""
        self._call("on_train_end", logs=self._epoch_logs, writing=self._writes)

    def _run(self, entry: CommitEntry, writing: bool) -> None:
        step, epoch, ended, mean, at_gate = entry
        self._ran = step
        self._at(step)
        if epoch != self._epoch:
            self._enter(epoch, 0, writing)
        if self._batches:
            # the mean over the epoch so far, as in `fit`
            logs = {} if mean is None else {"loss": mean}
            self._call("on_train_batch_end", self._batch, logs=logs, writing=writing)
        if ended:
            self._end_epoch(epoch, mean, {}, writing)
        if not at_gate:
            self._go_on(epoch, ended, writing)

    def _run_gate(self, entry: GateEntry, writing: bool) -> None:
        step, epoch, values, ended, mean = entry
        self._at(step)
        if values is not None:
            self._call("on_test_begin", writing=writing)
            bare = {name.removeprefix("val_"): value for name, value in values}
            self._call("on_test_end", logs=bare, writing=writing)
        if ended:
            self._end_epoch(epoch, mean, dict(values or ()), writing)
        self._go_on(epoch, ended, writing)

    def _at(self, step: int) -> None:
        """Let callbacks know the step; what was to be written of another state nobody can write any more."""
        if step != self._params["global_step"]:
            self._missed.clear()
        self._params["global_step"] = step

    def _end_epoch(self, epoch: int, mean: float | None, values: Mapping[str, float], writing: bool) -> None:
        self._epochs_ended += 1
        self._epoch_logs = {**({} if mean is None else {"loss": mean}), **values}
        self._call("on_epoch_end", epoch, logs=self._epoch_logs, writing=writing)

    def _go_on(self, epoch: int, ended: bool, writing: bool) -> None:
        """Begin the next batch, or the next epoch if one has ended."""
        if self._callbacks and self._model.stop_training:
            return  # as in `fit`, nothing begins after it
        if not ended:
            self._enter(epoch, self._batch + 1, writing)
        elif not self._epochs or epoch + 1 < self._epochs:
            self._enter(epoch + 1, 0, writing)

    def _enter(self, epoch: int, batch: int, writing: bool) -> None:
        """Run the hooks that come before a step: they may set the rate that it is taken at."""
        self._epoch, self._batch = epoch, batch
        if batch == 0:
            self._call("on_epoch_begin", epoch, writing=writing)
        if self._batches:
            self._call("on_train_batch_begin", batch, writing=writing)

    def _call(self, hook: str, *place: int, logs: Mapping[str, float] | None = None, writing: bool) -> None:
        if writing:
            self.make_up()
        self._params["writes"] = writing
        # as in `fit`, callbacks see what those before them have added
        shared = dict(logs or {})
        for callback in self._callbacks:
            going_on = not self._model.stop_training
            if is_writer_only(callback):
                self._run_in_writer(callback, hook, place, shared, writing)
            elif not _lacks_metrics(callback, hook, shared):
                with self._saves.shown(self._skipping(hook, writing)), spoken(callback, writing):
                    getattr(callback, hook)(*place, shared)
            if going_on and self._model.stop_training:
                self._stopped_by.append(type(callback).__name__)

    def _skipping(self, hook: str, writing: bool) -> Callable[[Write], None] | None:
        """Return what is done with what is to be written; None: it is written."""
        if writing:
            return None
        # the end of training comes once, and who writes there is lost with the model as it is then
        return (lambda write: None) if hook == "on_train_end" else self._missed.append

    def _run_in_writer(
        self, callback: Any, hook: str, place: tuple[int, ...], logs: Mapping[str, float], writing: bool
    ) -> None:
        call = Call(hook, place, dict(logs), self._params["global_step"], self._epochs_ended)
        skip = self._skipping(hook, writing)
        if skip is not None:
            skip(functools.partial(run, callback, call, self._model, again=True))
            return
        with self._saves.shown(None):
            run(callback, call, self._model, again=False)

    # ------------------------------------------------------------------ history as state

    def state(self) -> list[list[Any]]:
        """Return the history, JSON-able; the last entry is that of the latest commit or gate, which says what state it is."""
        entries = list(self._history)
        if self._latest is not None and entries[-1:] != [self._latest]:
            entries.append(self._latest)
        return [list(entry) for entry in entries]

    def _keeps(self, entry: CommitEntry | GateEntry, *, first: bool) -> bool:
        """Tell whether an entry is history: the commits of an epoch are only if a callback follows batches.

        Where batches are counted only, the first one says from where on, and those without a loss are none.
        """
        if isinstance(entry, GateEntry) or entry.epoch_ended:
            return True
        return self._batches and (first or entry.epoch_loss is None or not self._counts)

    def _note(self, entry: CommitEntry | GateEntry) -> None:
        self._latest = entry
        if self._keeps(entry, first=not self._history):
            self._history.append(entry)

    def restore(self, state: Any) -> None:
        """Bring the callbacks to where `state` was taken: replay what is missing, from the beginning if this history is another.

        The variables of the model are replaced after it: hooks may change the learning rate on the way.
        """
        try:
            history = [_read_entry(entry) for entry in state]
        except (TypeError, ValueError):
            raise TransferFailed("the state's callback history can't be read") from None
        if self._make is None:
            return
        kept = [entry for place, entry in enumerate(history) if self._keeps(entry, first=not place)]
        if kept[: len(self._history)] != self._history or self._has_counted_others(history, kept):
            if self._rate is not None:
                self._optimizer.learning_rate = self._rate
            self._begin(writing=False)
        for entry in kept[len(self._history) :]:
            self._history.append(entry)
            self._replay(entry)
        if not history:
            return
        if self._counts and history[-1] not in (self._latest, *kept[-1:]):
            self._replay(history[-1])
        self._latest = history[-1]
        self._at(self._latest.step)

    def _has_counted_others(
        self, history: Sequence[CommitEntry | GateEntry], kept: Sequence[CommitEntry | GateEntry]
    ) -> bool:
        """Tell whether hooks have run for commits that this history, of which `kept` is to be kept, does not have, or has otherwise."""
        ran = self._ran
        if not self._counts or ran is None or history[-1:] == [self._latest]:
            return False
        following = [*kept[len(self._history) :], *(one for one in history[-1:] if one not in kept[-1:])]
        return not following or any(
            one.step < ran if isinstance(one, GateEntry) else one.step <= ran for one in following
        )

    def _replay(self, entry: CommitEntry | GateEntry) -> None:
        """Run the hooks of an entry, and before it those of the commits that are counted only, of which no entry is kept."""
        is_gate = isinstance(entry, GateEntry)
        if self._counts and self._ran is not None:
            for step in range(self._ran + 1, entry.step + is_gate):
                # Whatever they have saved was of a state before, but for that of the gate, whose loss is the same.
                at_gate = step == entry.step
                loss = entry.epoch_loss if at_gate else 0.0
                self._run(CommitEntry(step, entry.epoch, False, loss, at_gate), writing=False)
        if isinstance(entry, GateEntry):
            self._run_gate(entry, writing=False)
        else:
            self._run(entry, writing=False)


def _read_entry(body: Any) -> CommitEntry | GateEntry:
    """Read an entry of a history. Raises TypeError or ValueError for what is none."""
    step, epoch, *rest = body
    if rest and isinstance(rest[0], bool):
        ended, mean, at_gate = rest
        return CommitEntry(int(step), int(epoch), ended, mean, bool(at_gate))
    values, ended, mean = rest
    read = None if values is None else tuple((str(name), float(value)) for name, value in values)
    return GateEntry(int(step), int(epoch), read, bool(ended), mean)


def _rate(optimizer: Any) -> float | None:
    """Return the learning rate if it is a number that callbacks may change, None if it is a schedule."""
    try:
        return (
            float(optimizer.learning_rate)
            if not callable(getattr(optimizer, "_learning_rate", None))
            else None
        )
    except (TypeError, ValueError):
        return None


def overrides(callback: Any, hooks: Iterable[str], beyond: Any = None) -> bool:
    """Tell whether a callback does anything in one of these hooks that the class `beyond`, else that of all callbacks, does not."""
    kinds = callbacks_of(callback)
    beyond = beyond or kinds.Callback
    if isinstance(callback, kinds.LambdaCallback):
        # it puts functions of its own in place of all hooks that were given
        return any(hook in vars(callback) for hook in hooks)
    return any(getattr(type(callback), hook) is not getattr(beyond, hook) for hook in hooks)


def _follows_batches(callback: Any) -> bool:
    """Tell whether a callback has something to do at each batch, as it was made."""
    kinds = callbacks_of(callback)
    beyond = kinds.Callback
    match callback:
        case kinds.ModelCheckpoint(save_freq="epoch"):
            beyond = kinds.ModelCheckpoint
        case kinds.TensorBoard(update_freq="epoch"):
            beyond = kinds.TensorBoard
    return overrides(callback, _BATCH_HOOKS, beyond)


def _lacks_metrics(callback: Any, hook: str, logs: Mapping[str, float]) -> bool:
    """Tell whether there is nothing to save: a job that stops at a gate has a state of which no metrics are known."""
    return (
        isinstance(callback, callbacks_of(callback).ModelCheckpoint)
        and hook in ("on_train_batch_end", "on_epoch_end")
        and not needed(callback) <= logs.keys()
    )
