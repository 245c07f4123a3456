"""PyTorch as a framework: what model files need, and where the parts are. Importing this does not import it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl.errors import BadModel, BadSetting
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

_MISSING = "--framework: PyTorch is not installed where workers run; pip install 'elasticdl[torch]' does"


class TorchFramework:
    """Implements `elasticdl.worker.contract.framework.Framework`."""

    name = "torch"
    imports = ("torch", "elasticdl.torch")
    symbols = (
        Symbol("feed", ("records", "mode", "metadata")),
        Symbol("loss", ("labels", "outputs")),
        Symbol("optimizer", ("parameters",)),
        Symbol("lr_scheduler", ("optimizer",), required=False),
        Symbol("callbacks", required=False),
        Symbol("eval_metrics_fn", required=False),
        Symbol("prediction_outputs_processor", required=False),
    )
    formats = (OutputFormat("state_dict", ".pt"), OutputFormat("exported", ".pt2"))
    has_ps = True

    def check(self, spec: JobSpec, defined: Mapping[str, Definition]) -> None:
        """Find nothing wrong."""

    def import_library(self, log: Path | None = None) -> None:
        """Import PyTorch. Raises BadSetting if it is not installed."""
        from elasticdl.torch import runtime

        try:
            runtime.import_torch()
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise BadSetting(_MISSING) from None

    def start(self, threads: int) -> None:
        """Import PyTorch, and fix how this process uses processors. Raises BadSetting if it is not installed."""
        self.import_library()
        from elasticdl.torch import runtime

        runtime.start(threads)

    def unused_gpus(self, reserved: int) -> str:
        """Return what is wrong if GPUs are reserved and PyTorch sees none."""
        from elasticdl.torch import runtime

        return runtime.unused_gpus(reserved)

    def load(self, spec: JobSpec) -> UserModel:
        """Import the model file. Raises BadModel."""
        from elasticdl.worker.modelfile import load

        try:
            return load(spec, self.symbols)
        except BadModel as error:
            from elasticdl.torch.processgroups import refused_group
            from elasticdl.worker.raised import own_frames

            cause = error.__cause__
            own = own_frames(cause) if cause is not None else []
            raise (refused_group(cause, Path(own[0].filename)) if cause and own else None) or error from cause

    def adapter(self, user: UserModel, spec: JobSpec, metadata: Any, process: ProcessName) -> Adapter:
        """Return the adapter of a synchronous worker."""
        from elasticdl.torch.adapter import TorchAdapter

        return TorchAdapter(user, spec, metadata)

    def ps_adapter(self, user: UserModel, spec: JobSpec, metadata: Any, process: ProcessName) -> PsAdapter:
        """Return the adapter of a worker with parameter servers."""
        from elasticdl.torch.psadapter import TorchPsAdapter

        return TorchPsAdapter(user, spec, metadata)

    def trained(self, user: UserModel, spec: JobSpec, metadata: Any, weights: Weights) -> TrainedModel:
        """Return the model of a state_dict file or a checkpoint."""
        from elasticdl.torch.trained import TorchTrained

        return TorchTrained(user, spec, metadata, weights)

    def export_state(self, user: UserModel, spec: JobSpec, state: GroupState, path: str, kind: str) -> None:
        """Write the model of a group's state. Raises BadModel or OSError."""
        from elasticdl.torch.trained import export_state

        export_state(user, spec, state, path, kind)

    def restored(self, user: UserModel, catalog: Catalog, threshold: int) -> RestoredModel:
        """Return the model of a checkpoint's catalog; its tables are on servers whatever their size. Raises BadModel."""
        from elasticdl.torch.restored import RestoredModel as Restored

        return Restored(user, catalog)


FRAMEWORK = TorchFramework()
