"""What callbacks that write files may be asked for in a group, and what instead of the rest; said before the first step."""

from __future__ import annotations

import importlib.util
import string
from collections.abc import Collection
from typing import Any

from elasticdl.keras.internals import profiles
from elasticdl.keras.library import callbacks_of


def unusable(callback: Any, known: Collection[str]) -> str | None:
    """Return what a callback can't do in a group, and what to do instead; None if it can do all.

    `known`: names that are known at the end of an epoch.
    """
    kinds = callbacks_of(callback)
    match callback:
        case kinds.ModelCheckpoint():
            return _checkpoint(callback, known)
        case kinds.TensorBoard():
            return _tensorboard(callback)
    return None


def needed(checkpoint: Any) -> frozenset[str]:
    """Return the metrics that a ModelCheckpoint needs for each file: those in its name, and the one that says which is the best."""
    metrics = _named(checkpoint) - {"epoch", "batch"}
    return metrics | {checkpoint.monitor} if checkpoint.save_best_only else metrics


def _named(checkpoint: Any) -> frozenset[str]:
    return frozenset(name for _, name, _, _ in string.Formatter().parse(checkpoint.filepath) if name)


def _checkpoint(callback: Any, known: Collection[str]) -> str | None:
    in_epochs = callback.save_freq == "epoch"
    if callback.save_best_only and not in_epochs:
        return "compares single batches; write save_freq='epoch', or leave save_best_only out"
    at_hand = ("epoch", *known) if in_epochs else ("epoch", "batch", "loss")
    missing = min(_named(callback) - {*at_hand}, default=None)
    if missing is None:
        return None
    when = "an epoch" if in_epochs else "a batch"
    return f"names files by {missing!r}; known at the end of {when}: {', '.join(at_hand)}"


def _tensorboard(callback: Any) -> str | None:
    if profiles(callback):
        return "profiles one worker while the others wait for it; leave profile_batch out, and profile the model in `fit`"
    if callback.embeddings_freq:
        return "writes embeddings in files that TensorBoard can't read; leave embeddings_freq out, and write them from a custom callback"
    if callback.write_steps_per_second:
        return "measures one worker; leave write_steps_per_second out: --tensorboard_log_dir has the speed of the job"
    if importlib.util.find_spec("tensorboard") is None:
        return "needs the package tensorboard where workers run; `pip install tensorboard`"
    return None
