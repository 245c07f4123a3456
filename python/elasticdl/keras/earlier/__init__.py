"""What ElasticDL 0.2 had for models of Keras, for the Keras that this process trains with; `spec/earliernames.py` has the old names."""

from __future__ import annotations

import importlib
import os
from typing import Any


def keras_here() -> Any:
    """Return the package that `tf.keras` is in this process."""
    legacy = os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true")
    return importlib.import_module("tf_keras" if legacy else "keras")
