"""JAX as a framework: what model files need, and where the parts are. Importing this does not import it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl.errors import BadSetting
from elasticdl.spec.framework import Definition, OutputFormat, Symbol

if TYPE_CHECKING:
    from elasticdl.catalog.catalog import Catalog
    from elasticdl.cluster.cluster import ProcessName
    from elasticdl.spec.jobspec import JobSpec
    from elasticdl.worker.contract.allreduce import Adapter
    from elasticdl.worker.contract.framework import RestoredModel
    from elasticdl.worker.contract.ps import PsAdapter
    from elasticdl.worker.contract.trained import GroupState, TrainedModel, Weights
    from elasticdl.worker.contract.usermodel import UserModel

_PARTS = {"jax": "JAX", "jaxlib": "JAX", "flax": "Flax", "optax": "optax"}
_NO_SERVERS = "JAX models are trained without parameter servers; leave --num_ps_pods out"


class JaxFramework:
    """Implements `elasticdl.worker.contract.framework.Framework`."""

    name = "jax"
    imports = ("jax", "flax", "optax", "elasticdl.jax")
    symbols = (
        Symbol("feed", ("records", "mode", "metadata")),
        Symbol("loss", ("labels", "outputs")),
        Symbol("optimizer"),
        Symbol("callbacks", required=False),
        Symbol("eval_metrics_fn", required=False),
        Symbol("prediction_outputs_processor", required=False),
    )
    model_arguments = ("rngs",)
    formats = (OutputFormat("npz", ".npz"),)
    has_ps = False

    def check(self, spec: JobSpec, defined: Mapping[str, Definition]) -> None:
        """Find nothing wrong."""

    def import_library(self, log: Path | None = None) -> None:
        """Import JAX, Flax and optax. Raises BadSetting if one is not installed."""
        from elasticdl.jax import runtime

        try:
            runtime.import_jax()
        except ModuleNotFoundError as error:
            missing = _PARTS.get((error.name or "").partition(".")[0])
            if missing is None:
                raise
            raise BadSetting(
                f"--framework: {missing} is not installed where workers run; pip install 'elasticdl[jax]' does"
            ) from None

    def start(self, threads: int) -> None:
        """Import JAX, and fix how this process uses processors. Raises BadSetting if it is not installed."""
        self.import_library()
        from elasticdl.jax import runtime

        runtime.start(threads)

    def unused_gpus(self, reserved: int) -> str:
        """Return that GPUs are of no use, if any are reserved."""
        return "GPUs are reserved for each worker, and JAX models are trained on CPUs" if reserved else ""

    def load(self, spec: JobSpec) -> UserModel:
        """Import the model file. Raises BadModel."""
        from elasticdl.worker.modelfile import load

        return load(spec, self.symbols, self.model_arguments)

    def adapter(self, user: UserModel, spec: JobSpec, metadata: Any, process: ProcessName) -> Adapter:
        """Return the adapter of a synchronous worker."""
        from elasticdl.jax.adapter import JaxAdapter

        return JaxAdapter(user, spec, metadata)

    def ps_adapter(self, user: UserModel, spec: JobSpec, metadata: Any, process: ProcessName) -> PsAdapter:
        """Raise BadSetting."""
        raise BadSetting(_NO_SERVERS)

    def trained(self, user: UserModel, spec: JobSpec, metadata: Any, weights: Weights) -> TrainedModel:
        """Return the model of an .npz file or a checkpoint."""
        from elasticdl.jax.trained import JaxTrained

        return JaxTrained(user, spec, metadata, weights)

    def export_state(self, user: UserModel, spec: JobSpec, state: GroupState, path: str, kind: str) -> None:
        """Write the model of a group's state. Raises BadModel or OSError."""
        from elasticdl.jax.trained import export_state

        export_state(user, spec, state, path)

    def restored(self, user: UserModel, catalog: Catalog, threshold: int) -> RestoredModel:
        """Raise BadSetting."""
        raise BadSetting(_NO_SERVERS)


FRAMEWORK = JaxFramework()
