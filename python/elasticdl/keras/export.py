"""Writing the trained model for plain users of Keras.

Only the model: no optimizer, nothing of this package, so that it loads where elasticdl is not installed. A `.keras` file of
a subclassed model names its class, which the loading side must know (`custom_objects`, or `keras.saving.register_keras_serializable`);
a SavedModel carries the computation itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from elasticdl.errors import BadSetting
from elasticdl.files.output import made_beside
from elasticdl.keras.kerasfile import os_errors
from elasticdl.keras.streaming import Matrix, write_keras, write_saved_model


def export(model: Any, path: str, kind: str, features: Any, matrices: Sequence[Matrix] = ()) -> None:
    """Write `model`, which takes `features`, to exactly `path`: one file for `keras`, a directory for `saved_model`.

    `features` is a structure of tensors' specifications. With `matrices` the model is of no use afterwards.
    Folders that are missing are made; what was there is replaced at the end.
    Raises OSError (no space, no permission) with what was at `path` intact.
    """
    match kind:
        case "keras":
            with os_errors(), made_beside(path, "model.keras") as written:
                write_keras(model, written, matrices)
        case "saved_model":
            with os_errors(), made_beside(path, "model") as written:
                write_saved_model(model, written, matrices, features)
        case _:
            raise BadSetting(f"--output_format: expected keras or saved_model, received {kind!r}")
