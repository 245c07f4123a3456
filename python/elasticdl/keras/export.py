"""Writing the trained model for plain users of Keras.

Only the model: no optimizer, nothing of this package, so that it loads where elasticdl is not installed. A `.keras` file of
a subclassed model names its class, which the loading side must know (`custom_objects`, or `keras.saving.register_keras_serializable`);
a SavedModel carries the computation itself.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from elasticdl.errors import BadSetting


def export(model: Any, path: str, kind: str) -> None:
    """Write `model` to exactly `path`: one file for `keras`, a directory for `saved_model`.

    Folders that are missing are made; what was there is replaced at the end.
    Raises OSError (no space, no permission) with what was at `path` intact.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    # beside the target, for a rename within one file system
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as room:
        match kind:
            case "keras":
                written = Path(room) / "model.keras"
                model.save(written)
            case "saved_model":
                written = Path(room) / "model"
                model.export(str(written), format="tf_saved_model", verbose=False)
            case _:
                raise BadSetting(f"--output_format: expected keras or saved_model, received {kind!r}")
        if target.is_dir():
            shutil.rmtree(target)
        written.replace(target)
