"""Finding the tables and variables of a checkpoint of servers in a model; the first one that is not there is named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt
import torch

from elasticdl.catalog.catalog import Catalog
from elasticdl.errors import BadModel
from elasticdl.torch.building import plain
from elasticdl.torch.tables import Tables, tables_of
from elasticdl.worker.contract.usermodel import UserModel

_REMEDY = "give the --model_def and --model_params of the job that wrote it"


def tables_like(user: UserModel, model: torch.nn.Module, catalog: Catalog) -> Tables:
    """Return the tables of a model, which are those of a catalog, in its order. Raises BadModel."""
    own = tables_of(model)
    if own.keys() != {table.name for table in catalog.tables}:
        raise BadModel(
            f"{user.path}: the checkpoint has the tables {_list(table.name for table in catalog.tables)}, and the model {_list(own)}; "
            f"{_REMEDY}"
        )
    for table in catalog.tables:
        if own[table.name].embedding_dim != table.width:
            raise BadModel(
                f"{user.path}: a row of the table {table.name} has {table.width} weights in the checkpoint, and "
                f"{own[table.name].embedding_dim} in the model; {_REMEDY}"
            )
    return {table.name: own[table.name] for table in catalog.tables}


def give_values(
    user: UserModel, model: torch.nn.Module, catalog: Catalog, values: Mapping[int, npt.NDArray[np.float32]]
) -> None:
    """Give a model's parameters and buffers the values of a catalog's variables, flat, by number; what is lazy gets their shapes.

    Raises BadModel if the model has no such variable.
    """
    inner = plain(model)
    own = dict((*inner.named_parameters(), *inner.named_buffers()))
    for number, value in values.items():
        wanted = catalog.variables[number]
        there = own.get(wanted.name)
        if there is not None and torch.nn.parameter.is_lazy(there):
            there.materialize(wanted.shape)
        if there is None or tuple(there.shape) != wanted.shape:
            raise BadModel(
                f"{user.path}: the checkpoint has the variable {wanted.name} of shape {wanted.shape}, and the model "
                f"{'has none of that name' if there is None else f'one of {tuple(there.shape)}'}; {_REMEDY}"
            )
        with torch.no_grad():
            there.copy_(torch.from_numpy(np.array(value)).view(wanted.shape))


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
