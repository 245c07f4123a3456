"""Finding the tables and variables of a checkpoint of servers in a model; the first one that is not there is named."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from elasticdl.catalog.catalog import Catalog
from elasticdl.errors import BadModel
from elasticdl.keras.embedding import PsLayer, names_of
from elasticdl.keras.library import library_of
from elasticdl.worker.contract.usermodel import UserModel

_REMEDY = "give the --model_def, --model_params and --embedding_threshold of the job that wrote it"


def tables_of(user: UserModel, catalog: Catalog, layers: Iterable[PsLayer]) -> list[PsLayer]:
    """Return the layers of a catalog's tables, in its order; `layers`: in the order in which training calls them. Raises BadModel."""
    own = list({id(layer): layer for layer in layers}.values())
    named = dict(zip(names_of(own), own, strict=True))
    wanted = {table.name: table for table in catalog.tables}
    if named.keys() != wanted.keys():
        raise BadModel(
            f"{user.path}: the checkpoint has the tables {_list(wanted)}, and the model {_list(named)}; {_REMEDY}"
        )
    for name, table in wanted.items():
        if named[name].output_dim != table.width:
            raise BadModel(
                f"{user.path}: a row of the table {name} has {table.width} weights in the checkpoint, and {named[name].output_dim} in the "
                "model; give the --model_def and --model_params of the job that wrote it"
            )
    return [named[table.name] for table in catalog.tables]


def variables_of(user: UserModel, catalog: Catalog, model: Any) -> list[Any]:
    """Return a model's variables that are those of a catalog, in its order. Raises BadModel."""
    there: dict[str, list[Any]] = {}
    library = library_of(model)
    for variable in (*library.trainable(model), *library.fixed(model)):
        there.setdefault(variable.path, []).append(variable)
    found = []
    for wanted in catalog.variables:
        alike = there.get(wanted.name)
        variable = alike.pop(0) if alike else None
        shape = None if variable is None else tuple(variable.shape)
        if variable is None or shape != wanted.shape:
            raise BadModel(
                f"{user.path}: the checkpoint has the variable {wanted.name} of shape {wanted.shape}, and the model "
                f"{'has none of that name' if variable is None else f'one of {shape}'}; {_REMEDY}"
            )
        found.append(variable)
    return found


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
