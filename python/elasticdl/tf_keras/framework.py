"""Keras 2 as a framework: the model files are those of Keras, and `tf.keras` is the package tf_keras. Importing this imports neither."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.errors import BadSetting
from elasticdl.keras.framework import KerasFramework
from elasticdl.spec.jobspec import JobSpec
from elasticdl.worker.imports import uncollected

if TYPE_CHECKING:
    from elasticdl.keras.library import Library

_ENVIRONMENT = {"TF_USE_LEGACY_KERAS": "1", "KERAS_BACKEND": "tensorflow"}
"""Makes `tf.keras` Keras 2, and the parts that are of Keras 3 compute with TensorFlow; read when they are imported."""


class TfKerasFramework(KerasFramework):
    """Implements `elasticdl.worker.contract.framework.Framework`."""

    name = "tf_keras"
    imports = (
        "tf_keras",
        "tensorflow.keras.layers.DenseFeatures",
        "tensorflow.keras.optimizers.legacy",
        "elasticdl.python.elasticdl.feature_column",
        "elasticdl_preprocessing.feature_column",
    )
    """Besides the package what Keras 3 does not have: a file with one of these can't train with it."""
    also = ("tensorflow", "elasticdl.keras")

    def variant(self, spec: JobSpec) -> str:
        """Return this framework: Keras 2 computes with TensorFlow alone."""
        return self.name

    def import_library(self, log: Path | None = None) -> None:
        """Import TensorFlow and tf_keras. Raises BadSetting if tf_keras is not installed."""
        os.environ.update(_ENVIRONMENT)
        super().import_library(log)
        self._library()

    def start(self, threads: int) -> None:
        """Import them, and fix how this process uses processors and GPUs. Raises BadSetting if tf_keras is not installed."""
        os.environ.update(_ENVIRONMENT)
        super().start(threads)
        self._library()

    def _library(self) -> Library:
        from elasticdl.keras.library import tf_keras

        try:
            with uncollected():
                return tf_keras()
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "tf_keras":
                raise
            raise BadSetting(
                "--framework: tf_keras is not installed where workers run; `pip install --no-deps 'tf_keras>=2.21,<2.22'` adds it to "
                "the TensorFlow that is there, `pip install 'elasticdl[tf_keras]'` installs both"
            ) from None


FRAMEWORK = TfKerasFramework()
