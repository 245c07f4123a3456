"""The program of a job with a custom training loop: which settings it says itself, and whether it is there.

Such a job has no model file. What would be settings of model, data and batches is written in the program, so that `python train.py` alone
means the same; here they are refused, with the place where they belong.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.errors import BadSetting

if TYPE_CHECKING:
    from elasticdl.spec.jobspec import JobSpec


def _all(names: str, sentence: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), sentence)


_SAID = "the program of a custom training loop says it"
PLANNED: dict[str, str] = {
    "minibatch_size": f"{_SAID}: DataLoader(batch_size=...), or job.chunks(batch_size=...)",
    "num_minibatches_per_task": "a batch is a task in a custom training loop",
    **{
        name: f"{_SAID}: DataLoader({name}=...), or job.chunks({name}=...)"
        for name in ("num_epochs", "max_step", "shuffle", "global_batch_size")
    },
    "seed": f"{_SAID}: init(seed=...)",
}
"""Setting of which the job hears from the program while it runs → where it says that."""
_OWN = "pass what it needs after its name, as in `elasticdl run -- python train.py --width=64`"
OWN: dict[str, str] = {
    **PLANNED,
    **_all(
        "model_def framework model_params feed loss optimizer lr_scheduler callbacks eval_metrics_fn custom_data_reader jit_compile",
        f"a custom training loop makes its model itself; {_OWN}",
    ),
    **_all(
        "training_data validation_data data_reader_params data_cache storage_seconds max_bad_records",
        f"a custom training loop reads its data itself; {_OWN}",
    ),
    **_all(
        "evaluation_steps evaluate_at_epoch_end checkpoint_best",
        "a custom training loop evaluates itself, between two of its steps",
    ),
    "output_format": "a custom training loop writes its result itself, with job.result(write)",
    "spare_process": "what a custom training loop imports, and when, is its own business",
    "distribution_strategy": "the workers of a custom training loop train in step, by AllReduce",
}
"""Setting that a custom training loop does not have → why, and where it belongs."""
OWN_GROUPS = {"parameter servers": "a custom training loop has no parameter servers"}
"""Groups of settings that it does not have."""


def check_program(spec: JobSpec) -> None:
    """Check that the program is there, where it will be started on this machine. Raises BadSetting."""
    word = spec.job_command[0]
    folder = directory(spec)
    found = _is_program(folder / word) if "/" in word else shutil.which(word) is not None
    if not found and word.endswith(".py"):
        raise BadSetting(
            f"the command can't be run: {word!r} is no program; `elasticdl run -- python {word}` runs a file of Python"
        )
    if not found:
        where = f"looked from {folder}" if "/" in word else "looked for in PATH"
        raise BadSetting(f"the command can't be run: there is no program {word!r} ({where})")
    check_script(spec, folder)


def check_script(spec: JobSpec, folder: Path) -> None:
    """Check that a file of Python which the command names is there. Raises BadSetting."""
    script = _script(spec.job_command)
    if script and not (folder / script).is_file():
        raise BadSetting(f"the command can't be run: there is no file {script!r} (looked from {folder})")


def directory(spec: JobSpec) -> Path:
    """Return where the program runs on this machine: in the model zoo if one is given, else where its job was started."""
    return Path.cwd() / spec.model_zoo


def name_of(command: tuple[str, ...]) -> str:
    """Return what a program is called: its file, else its first word."""
    return Path(_script(command) or command[0]).name


def _script(command: tuple[str, ...]) -> str:
    """Return the file that Python is to run, empty if it is none."""
    if not Path(command[0]).name.startswith(("python", "pypy")):
        return ""
    for word in command[1:]:
        if not word.startswith("-"):
            return word if word.endswith(".py") else ""
        if word in ("-m", "-c", "-"):
            return ""
    return ""


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
