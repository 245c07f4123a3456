"""Reading the weights of a `.keras` file that a job has written into a model, whatever Keras computes with.

It is not loaded as a model, which could run code that is in it: only weights are read, into the model that the model file makes.
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from elasticdl.errors import BadModel
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.modelfile import describe

_WEIGHTS = "model.weights.h5"
"""The weights in a .keras file, as Keras writes it."""
_NO_WEIGHTS = re.compile(r"optimizer|seed_generator(_\d+)?")
"""Names of groups in it that have no weights of the model; layers of a user may be called alike, such as `optimizer_gate`."""
REMEDY = "give the --model_def and --model_params of the job that wrote it"


def load_weights(user: UserModel, model: Any, path: Path) -> None:
    """Give a model that is built the weights of a file. Raises BadModel if it is damaged, or of another model."""
    try:
        written = _num_weights(path)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise BadModel(
            f"--trained_model: {path} is no .keras file, or is damaged ({error}); name the file that `elasticdl train "
            "--output=NAME.keras` wrote"
        ) from None
    mine = sum(int(np.prod(weight.shape)) for weight in model.weights)
    if written != mine:
        raise BadModel(
            f"--trained_model: {path} is of another model: it has {written:,} weights, and the model of {user.path} has "
            f"{mine:,}; {REMEDY}"
        )
    try:
        model.load_weights(path)
    except Exception as error:  # Keras raises what it finds first: ValueError, KeyError, OSError
        raise BadModel(
            f"--trained_model: the weights of {path} do not fit the model of {user.path} "
            f"({describe(error, user.path)}); {REMEDY}"
        ) from error


def _num_weights(path: Path) -> int:
    """Return how many numbers the layers of a .keras file have. Raises OSError, KeyError or BadZipFile."""
    count = 0

    def add(name: str, found: Any) -> None:
        nonlocal count
        if isinstance(found, h5py.Dataset) and not any(map(_NO_WEIGHTS.fullmatch, name.split("/"))):
            count += int(np.prod(found.shape))

    with zipfile.ZipFile(path) as archive, archive.open(_WEIGHTS) as weights, h5py.File(weights, "r") as file:
        file.visititems(add)
    return count
