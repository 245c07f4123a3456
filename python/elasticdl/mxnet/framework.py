"""MXNet as a framework: what model files need, and where the parts are. Importing this does not import it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl.errors import BadSetting
from elasticdl.spec.framework import Definition, OutputFormat, Symbol
from elasticdl.worker import gpus

if TYPE_CHECKING:
    from elasticdl.catalog.catalog import Catalog
    from elasticdl.cluster.cluster import ProcessName
    from elasticdl.spec.jobspec import JobSpec
    from elasticdl.worker.contract.allreduce import Adapter
    from elasticdl.worker.contract.framework import RestoredModel
    from elasticdl.worker.contract.ps import PsAdapter
    from elasticdl.worker.contract.trained import GroupState, TrainedModel, Weights
    from elasticdl.worker.contract.usermodel import UserModel

_MISSING = (
    "--framework: MXNet is not installed where workers run; pip install 'elasticdl[mxnet]' does, in an environment of its own with Python "
    "3.11: MXNet needs a NumPy below 2, and what Python 3.12 removed"
)
_NO_SERVERS = "MXNet models are trained without parameter servers; leave --num_ps_pods out"


class MxnetFramework:
    """Implements `elasticdl.worker.contract.framework.Framework`."""

    name = "mxnet"
    imports = ("mxnet", "elasticdl.mxnet")
    symbols = (
        Symbol("feed", ("records", "mode", "metadata")),
        Symbol("loss", ("labels", "outputs"), is_function=False),
        Symbol("optimizer"),
        Symbol("callbacks", required=False),
        Symbol("eval_metrics_fn", required=False),
        Symbol("prediction_outputs_processor", required=False),
    )
    formats = (OutputFormat("gluon"),)
    has_ps = False

    def check(self, spec: JobSpec, defined: Mapping[str, Definition]) -> None:
        """Find nothing wrong."""

    def import_library(self, log: Path | None = None) -> None:
        """Import MXNet. Raises BadSetting if it is not installed, or can't be imported here."""
        from elasticdl.mxnet import runtime

        try:
            runtime.import_mxnet()
        except ModuleNotFoundError as error:
            if error.name != "mxnet":
                raise
            raise BadSetting(_MISSING) from None

    def start(self, threads: int) -> None:
        """Import MXNet, and fix how this process uses processors. Raises BadSetting if it is not installed, or can't be imported here."""
        from elasticdl.mxnet import runtime

        runtime.fix_threads(threads)
        self.import_library()

    def unused_gpus(self, reserved: int) -> str:
        """Return that GPUs are of no use, if any are reserved."""
        why = gpus.built_for_cpus("train a model of another framework on them")
        return gpus.unused_gpus("MXNet", reserved, why) if reserved else ""

    def load(self, spec: JobSpec) -> UserModel:
        """Import the model file. Raises BadModel."""
        from elasticdl.worker.modelfile import load

        return load(spec, self.symbols)

    def adapter(self, user: UserModel, spec: JobSpec, metadata: Any, process: ProcessName) -> Adapter:
        """Return the adapter of a synchronous worker."""
        from elasticdl.mxnet.adapter import MxnetAdapter

        return MxnetAdapter(user, spec, metadata)

    def ps_adapter(self, user: UserModel, spec: JobSpec, metadata: Any, process: ProcessName) -> PsAdapter:
        """Raise BadSetting."""
        raise BadSetting(_NO_SERVERS)

    def trained(self, user: UserModel, spec: JobSpec, metadata: Any, weights: Weights) -> TrainedModel:
        """Return the model of an exported directory, a file of parameters or a checkpoint."""
        from elasticdl.mxnet.trained import MxnetTrained

        return MxnetTrained(user, spec, metadata, weights)

    def export_state(self, user: UserModel, spec: JobSpec, state: GroupState, path: str, kind: str) -> None:
        """Write the model of a group's state. Raises BadModel or OSError."""
        from elasticdl.mxnet.trained import export_state

        export_state(user, spec, state, path)

    def restored(self, user: UserModel, catalog: Catalog, threshold: int) -> RestoredModel:
        """Raise BadSetting."""
        raise BadSetting(_NO_SERVERS)


FRAMEWORK = MxnetFramework()
