"""The Protocol that a framework implements: how its library is started, and who adapts its models.

A framework is one object, named in the entry point group `elasticdl.frameworks`. Looking it up must not import its library: the methods do
that. The guide "Add a framework" leads through one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from elasticdl.catalog.catalog import Catalog
from elasticdl.catalog.tablereader import TableReader
from elasticdl.cluster.cluster import ProcessName
from elasticdl.spec.framework import ModelFileRules, framework_of
from elasticdl.spec.jobspec import JobSpec
from elasticdl.worker.contract.allreduce import Adapter
from elasticdl.worker.contract.ps import PsAdapter
from elasticdl.worker.contract.trained import GroupState, TrainedModel, Weights
from elasticdl.worker.contract.usermodel import UserModel


class RestoredModel(Protocol):
    """A model that gets its weights from a checkpoint of parameter servers, without data, only to be written."""

    def rows(self) -> Mapping[int, int]:
        """Return how many rows each table's matrix has."""

    def export(
        self, path: str, kind: str, values: Mapping[int, npt.NDArray[np.float32]], tables: TableReader
    ) -> None:
        """Write the model as one of the framework's formats; `values`: of the catalog's variables, flat. Raises OSError."""


class Framework(ModelFileRules, Protocol):
    """One framework. `start` is called before anything else of it, in the process's main thread."""

    def import_library(self, log: Path | None = None) -> None:
        """Import the library. `log`: where it may write what it says about itself, in a process whose terminal is a person's."""

    def start(self, threads: int) -> None:
        """Import the library and let it compute with so many threads in this process, the same for all workers of a job."""

    def unused_gpus(self, reserved: int) -> str:
        """Return what is wrong, and what to do, if GPUs are reserved for this process and the library uses none; empty if all is well."""

    def load(self, spec: JobSpec) -> UserModel:
        """Import the model file; `worker/modelfile.py` does what is common. Raises BadModel for what only running shows."""

    def adapter(self, user: UserModel, spec: JobSpec, metadata: Any, process: ProcessName) -> Adapter:
        """Return the adapter of a synchronous worker, with nothing built yet.

        Args:
            user: the model file's symbols.
            spec: the job.
            metadata: what the reader knows of its records (`column_names`, `column_dtypes`), the third argument of `feed`.
            process: the life of a worker that this is.
        """

    def ps_adapter(self, user: UserModel, spec: JobSpec, metadata: Any, process: ProcessName) -> PsAdapter:
        """Return the adapter of a worker with parameter servers, with nothing built yet; called only if `has_ps`."""

    def trained(self, user: UserModel, spec: JobSpec, metadata: Any, weights: Weights) -> TrainedModel:
        """Return a model that was trained, with nothing built or read yet.

        `metadata`: what the reader knows of its records, the third argument of `feed`. `weights`: where they are.
        """

    def export_state(self, user: UserModel, spec: JobSpec, state: GroupState, path: str, kind: str) -> None:
        """Write the model of a group's state, without data, as a job that ends in that state does with `Adapter.export`.

        Raises BadModel for another model, or one that can't be built without data; OSError with what was at `path` intact.
        """

    def restored(self, user: UserModel, catalog: Catalog, threshold: int) -> RestoredModel:
        """Return the model of a catalog; called only if `has_ps`.

        `threshold`: bytes of an embedding above which it is a table on the servers. Raises BadModel if the model is another one.
        """


def find_framework(spec: JobSpec) -> Framework:
    """Return a job's framework. Raises BadSetting or BadModel."""
    return cast(Framework, framework_of(spec))
