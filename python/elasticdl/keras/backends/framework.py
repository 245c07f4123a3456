"""Keras on JAX and on PyTorch as frameworks: what model files need, and where the parts are. Importing this imports none of them.

People choose one as everywhere in Keras, by KERAS_BACKEND; the job then has the name of the framework, so that all of its processes compute
with the same library.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl.errors import BadSetting
from elasticdl.keras.framework import BACKEND, ON_OTHERS, SYMBOLS, load_keras
from elasticdl.spec.framework import Definition, OutputFormat

if TYPE_CHECKING:
    from elasticdl.catalog.catalog import Catalog
    from elasticdl.cluster.cluster import ProcessName
    from elasticdl.spec.jobspec import JobSpec
    from elasticdl.worker.contract.allreduce import Adapter
    from elasticdl.worker.contract.framework import RestoredModel
    from elasticdl.worker.contract.ps import PsAdapter
    from elasticdl.worker.contract.trained import GroupState, TrainedModel, Weights
    from elasticdl.worker.contract.usermodel import UserModel


class KerasOnBackend:
    """Implements `elasticdl.worker.contract.framework.Framework`."""

    imports: tuple[str, ...] = ()  # those of a file say that it is Keras, which has these for variants
    symbols = SYMBOLS
    formats = (OutputFormat("keras", ".keras"),)
    has_ps = False

    def __init__(self, backend: str, library: str) -> None:
        """`backend`: what Keras computes with, by its name in Keras; `library`: as people call it."""
        self.name = ON_OTHERS[backend]
        self._backend, self._library = backend, library

    def check(self, spec: JobSpec, defined: Mapping[str, Definition]) -> None:
        """Raise BadSetting for what Keras does with TensorFlow only, or if the environment says another backend than the job."""
        asked = spec.envs.get(BACKEND) or os.environ.get(BACKEND) or self._backend
        if asked != self._backend:
            raise BadSetting(
                f"{BACKEND}={asked}, and --framework={self.name} computes with {self._library}: leave one of them out"
            )
        if spec.num_ps_pods:
            raise BadSetting(self._no_servers(spec.num_ps_pods))
        if spec.output_format.lower() == "saved_model":
            raise BadSetting(
                f"--output_format: Keras writes a SavedModel with TensorFlow only, and {BACKEND} is {self._backend}; write a .keras file "
                f"(--output=NAME.keras), and where {BACKEND} is tensorflow: keras.saving.load_model('NAME.keras').export('DIRECTORY')"
            )

    def _no_servers(self, asked: int) -> str:
        return (
            f"--num_ps_pods={asked}: tables on parameter servers are looked up by TensorFlow, and {BACKEND} is {self._backend}; leave it "
            f"out, or unset {BACKEND}"
        )

    def import_library(self, log: Path | None = None) -> None:
        """Import Keras and the library. Raises BadSetting if one is not installed, or Keras computes with another one."""
        from elasticdl.keras.backends import runtime

        runtime.import_keras(self._backend)

    def start(self, threads: int) -> None:
        """Import them, and fix how this process uses processors. Raises BadSetting."""
        from elasticdl.keras.backends import runtime

        runtime.start(self._backend, threads)

    def unused_gpus(self, reserved: int) -> str:
        """Return that GPUs are of no use, if any are reserved."""
        if not reserved:
            return ""
        return f"GPUs are reserved for each worker, and Keras models on {self._library} are trained on CPUs"

    def load(self, spec: JobSpec) -> UserModel:
        """Import the model file. Raises BadModel."""
        return load_keras(spec, self.symbols)

    def adapter(self, user: UserModel, spec: JobSpec, metadata: Any, process: ProcessName) -> Adapter:
        """Return the adapter of a synchronous worker."""
        from elasticdl.keras.backends.adapter import BackendAdapter

        return BackendAdapter(user, spec, metadata, process)

    def ps_adapter(self, user: UserModel, spec: JobSpec, metadata: Any, process: ProcessName) -> PsAdapter:
        """Raise BadSetting."""
        raise BadSetting(self._no_servers(spec.num_ps_pods))

    def trained(self, user: UserModel, spec: JobSpec, metadata: Any, weights: Weights) -> TrainedModel:
        """Return the model of a .keras file or a checkpoint."""
        from elasticdl.keras.backends.trained import BackendTrained

        return BackendTrained(user, spec, metadata, weights)

    def export_state(self, user: UserModel, spec: JobSpec, state: GroupState, path: str, kind: str) -> None:
        """Write the model of a group's state. Raises BadModel or OSError."""
        from elasticdl.keras import kerasfile
        from elasticdl.keras.finished import export_state

        export_state(user, spec, state, lambda model: kerasfile.write(model, path))

    def restored(self, user: UserModel, catalog: Catalog, threshold: int) -> RestoredModel:
        """Raise BadSetting."""
        raise BadSetting(
            f"a checkpoint of parameter servers is read with TensorFlow, and {BACKEND} is {self._backend}; unset it"
        )


ON_JAX = KerasOnBackend("jax", "JAX")
ON_TORCH = KerasOnBackend("torch", "PyTorch")
