"""The reference framework as an object: what model files need, and where the parts are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl.spec.framework import Definition, OutputFormat, Symbol

if TYPE_CHECKING:
    from elasticdl.catalog.catalog import Catalog
    from elasticdl.cluster.cluster import ProcessName
    from elasticdl.reference.restored import RestoredModel
    from elasticdl.spec.jobspec import JobSpec
    from elasticdl.worker.contract.allreduce import Adapter
    from elasticdl.worker.contract.ps import PsAdapter
    from elasticdl.worker.contract.trained import GroupState, TrainedModel, Weights
    from elasticdl.worker.contract.usermodel import UserModel


class ReferenceFramework:
    """Implements `elasticdl.worker.contract.framework.Framework`."""

    name = "reference"
    imports = ("elasticdl.reference",)
    symbols = (
        Symbol("feed", ("records", "mode", "metadata")),
        Symbol("optimizer"),
        Symbol("callbacks", required=False),
        Symbol("eval_metrics_fn", required=False),
        Symbol("prediction_outputs_processor", required=False),
    )
    formats = (OutputFormat("npz", ".npz"),)
    has_ps = True

    def check(self, spec: JobSpec, defined: Mapping[str, Definition]) -> None:
        """Find nothing wrong."""

    def import_library(self, log: Path | None = None) -> None:
        """Do nothing: NumPy is there."""

    def start(self, threads: int) -> None:
        """Do nothing: models as small as these compute on the thread that calls them."""

    def unused_gpus(self, reserved: int) -> str:
        """Return that GPUs are of no use, if any are reserved."""
        return "GPUs are reserved for each worker, and NumPy computes on CPUs" if reserved else ""

    def load(self, spec: JobSpec) -> UserModel:
        """Import the model file. Raises BadModel."""
        from elasticdl.worker.modelfile import load

        return load(spec, self.symbols)

    def adapter(self, user: UserModel, spec: JobSpec, metadata: Any, process: ProcessName) -> Adapter:
        """Return the adapter of a synchronous worker."""
        from elasticdl.reference.adapter import ReferenceAdapter

        return ReferenceAdapter(user, spec, metadata)

    def ps_adapter(self, user: UserModel, spec: JobSpec, metadata: Any, process: ProcessName) -> PsAdapter:
        """Return the adapter of a worker with parameter servers."""
        from elasticdl.reference.psadapter import ReferencePsAdapter

        return ReferencePsAdapter(user, spec, metadata)

    def trained(self, user: UserModel, spec: JobSpec, metadata: Any, weights: Weights) -> TrainedModel:
        """Return the model of an .npz file or a checkpoint."""
        from elasticdl.reference.trained import ReferenceTrained

        return ReferenceTrained(user, metadata, weights)

    def export_state(self, user: UserModel, spec: JobSpec, state: GroupState, path: str, kind: str) -> None:
        """Write the model of a group's state. Raises BadModel or OSError."""
        from elasticdl.reference.trained import export_state

        export_state(user, state, path)

    def restored(self, user: UserModel, catalog: Catalog, threshold: int) -> RestoredModel:
        """Return the model of a checkpoint's catalog; all its tables are on servers, whatever their size. Raises BadModel."""
        from elasticdl.reference.restored import RestoredModel

        return RestoredModel(user, catalog)


FRAMEWORK = ReferenceFramework()
