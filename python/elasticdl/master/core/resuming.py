"""Which numbers of checkpoints a job may use, whichever way it trains, and what the settings are called that name their places."""

from __future__ import annotations

from pathlib import Path

from elasticdl.checkpoint import layout as checkpoints
from elasticdl.errors import BadSetting
from elasticdl.spec.jobspec import JobSpec

FLAG = "--checkpoint_dir_for_init"


def highest_number(spec: JobSpec, path: Path | None, number: int) -> int:
    """Return the highest number of a checkpoint where a job writes its own, or that it continues from.

    `path` and `number` are of the manifest of that one, None and 0 if it begins anew. Raises BadSetting if other jobs' checkpoints are
    there, which this one would mix up with its own, and remove one by one.
    """
    if not spec.checkpoint_dir:
        return number
    directory = Path(spec.checkpoint_dir)
    try:
        numbers = checkpoints.numbers(directory)
    except OSError as error:
        raise BadSetting(
            f"--checkpoint_dir: {spec.checkpoint_dir!r} can't be read: {error.strerror}"
        ) from None
    if not numbers:
        return number
    if path is None or path.parent.resolve().parent != directory.resolve():
        raise BadSetting(
            f"--checkpoint_dir: there are checkpoints of another job in {spec.checkpoint_dir!r}; name another directory, or go on from the "
            f"last of them with {FLAG}={spec.checkpoint_dir}"
        )
    return max(number, *numbers)
