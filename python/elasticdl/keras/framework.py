"""Keras on TensorFlow as a framework: what model files need, and where the parts are. Importing this imports neither of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl.errors import BadModel, BadSetting
from elasticdl.keras.stepcallbacks import ZooFile, refused_callback
from elasticdl.spec.framework import Definition, OutputFormat, Symbol
from elasticdl.spec.nearest import nearest

if TYPE_CHECKING:
    from elasticdl.catalog.catalog import Catalog
    from elasticdl.cluster.cluster import ProcessName
    from elasticdl.keras.library import Library
    from elasticdl.keras.restored import RestoredModel
    from elasticdl.spec.jobspec import JobSpec
    from elasticdl.worker.contract.allreduce import Adapter
    from elasticdl.worker.contract.ps import PsAdapter
    from elasticdl.worker.contract.trained import GroupState, TrainedModel, Weights
    from elasticdl.worker.contract.usermodel import UserModel


SYMBOLS = (
    Symbol("feed", ("dataset", "mode", "metadata")),
    Symbol("loss", ("labels", "predictions"), is_function=False),
    Symbol("optimizer"),
    Symbol("callbacks", required=False),
    Symbol("eval_metrics_fn", required=False),
    Symbol("prediction_outputs_processor", required=False),
)
BACKEND = "KERAS_BACKEND"
"""The environment variable by which people choose what Keras computes with."""
_TENSORFLOW = "tensorflow"
ON_OTHERS = {"jax": "keras_jax", "torch": "keras_torch"}
"""What else Keras computes with, and the frameworks that do."""


class KerasFramework:
    """Implements `elasticdl.worker.contract.framework.Framework`."""

    name = "keras"
    imports: tuple[str, ...] = ("keras", "tensorflow", "elasticdl.keras")
    symbols = SYMBOLS
    formats = (OutputFormat("keras", ".keras"), OutputFormat("saved_model"))
    has_ps = True

    def variant(self, spec: JobSpec) -> str:
        """Return the name of the framework that a job's environment asks for, or this process's. Raises BadSetting if there is none."""
        backend = str(spec.envs.get(BACKEND) or os.environ.get(BACKEND) or _TENSORFLOW)
        if backend not in (_TENSORFLOW, *ON_OTHERS):
            known = ", ".join(sorted((_TENSORFLOW, *ON_OTHERS)))
            raise BadSetting(
                f"{BACKEND}: expected {known}, received {backend!r}{nearest(backend, ON_OTHERS)}"
            )
        return self.name if backend == _TENSORFLOW else ON_OTHERS[backend]

    def check(self, spec: JobSpec, defined: Mapping[str, Definition]) -> None:
        """Raise BadModel for callbacks that a job with parameter servers can't have, as far as the tree tells."""
        callbacks = defined.get("callbacks")
        if callbacks is None or not spec.num_ps_pods:
            return
        file = ZooFile(callbacks.path, callbacks.tree, Path(spec.model_zoo))
        refused = refused_callback(file, callbacks.node)
        if refused is not None:
            line, why = refused
            raise BadModel(f"{file.path}:{line}: {why}")

    def import_library(self, log: Path | None = None) -> None:
        """Import TensorFlow and Keras; TensorFlow's lines of information go to `log`."""
        from elasticdl.keras import runtime

        runtime.import_keras(log)

    def start(self, threads: int) -> None:
        """Import TensorFlow and Keras, and fix how this process uses processors and GPUs."""
        from elasticdl.keras import runtime

        runtime.start(threads)

    def unused_gpus(self, reserved: int) -> str:
        """Return what is wrong, and what to do, if GPUs are reserved for this process and TensorFlow sees none."""
        from elasticdl.keras import runtime

        return runtime.unused_gpus(reserved)

    def load(self, spec: JobSpec) -> UserModel:
        """Import the model file. Raises BadModel."""
        return load_keras(spec, self.symbols)

    def adapter(self, user: UserModel, spec: JobSpec, metadata: Any, process: ProcessName) -> Adapter:
        """Return the adapter of a synchronous worker."""
        from elasticdl.keras.adapter import KerasAdapter

        return KerasAdapter(user, spec, metadata, process, self._library())

    def ps_adapter(self, user: UserModel, spec: JobSpec, metadata: Any, process: ProcessName) -> PsAdapter:
        """Return the adapter of a worker with parameter servers."""
        from elasticdl.keras.psadapter import KerasPsAdapter

        return KerasPsAdapter(user, spec, metadata, process, self._library())

    def trained(self, user: UserModel, spec: JobSpec, metadata: Any, weights: Weights) -> TrainedModel:
        """Return the model of a .keras file or a checkpoint."""
        from elasticdl.keras.trained import KerasTrained

        return KerasTrained(user, spec, metadata, weights, self._library())

    def export_state(self, user: UserModel, spec: JobSpec, state: GroupState, path: str, kind: str) -> None:
        """Write the model of a group's state. Raises BadModel or OSError."""
        from elasticdl.keras.export import export
        from elasticdl.keras.finished import export_state

        export_state(user, spec, state, lambda model: export(model, path, kind, ()), self._library())

    def restored(self, user: UserModel, catalog: Catalog, threshold: int) -> RestoredModel:
        """Return the model of a checkpoint's catalog. Raises BadModel if it is another one."""
        from elasticdl.keras.restored import RestoredModel

        return RestoredModel(user, catalog, threshold, self._library())

    def _library(self) -> Library:
        """Return the library that models are of."""
        from elasticdl.keras.library import KERAS

        return KERAS


def load_keras(spec: JobSpec, symbols: Sequence[Symbol]) -> UserModel:
    """Import a model file of Keras. Raises BadModel, also for a loss that is none."""
    from elasticdl.worker.modelfile import load

    user = load(spec, symbols)
    if not callable(user.loss) and not isinstance(user.loss, Mapping):
        raise BadModel(
            f"{user.path}: {spec.loss} is a {type(user.loss).__name__}; "
            "expected a function loss(labels, predictions), a Keras loss, or a dict of them by output"
        )
    return user


FRAMEWORK = KerasFramework()
