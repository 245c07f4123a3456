"""The tables of a model: its layers whose rows live on servers, how rows begin, and which ids a batch has for each."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from elasticdl.catalog.catalog import Initial, InitialKind
from elasticdl.errors import BadData, BadModel
from elasticdl.torch import building
from elasticdl.torch.embedding import Embedding, as_int64

Ids = npt.NDArray[np.int64]
Tables = Mapping[str, Embedding]
"""Layers by the names of their tables, in the order of the tables' numbers."""
_DEVIATIONS = 2.0
"""Within so many of them servers draw truncated normal weights."""


def tables_of(model: nn.Module) -> Tables:
    """Return the layers whose rows are on servers; a table has the name of its layer in the model."""
    return {
        name: one
        for name, one in building.plain(model).named_modules()
        if isinstance(one, Embedding) and one.is_on_servers
    }


def ids_of(name: str, layer: Embedding, features: Any, path: Path) -> dict[str, Ids]:
    """Return the ids of a table in a batch's features, those of each feature in its shape.

    Raises BadData for a feature that is not there, for what are no integers, and for ids that the table does not have.
    """
    found = {}
    for feature in layer.feature:
        tensor = features.get(feature) if isinstance(features, Mapping) else None
        if not isinstance(tensor, torch.Tensor):
            raise BadData(
                f"{path}: the embedding {name} has its ids in the feature {feature!r}, and feed gave {building.shown(features)}; let feed "
                "return a dictionary that has it, or name another one (feature=)"
            )
        if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool:
            raise BadData(
                f"{path}: the embedding {name} takes integers as ids, and feed gave {building.shown(tensor)} as {feature!r}"
            )
        ids = as_int64(tensor).numpy()
        _check_range(path, name, layer, ids)
        found[feature] = ids
    return found


def _check_range(path: Path, name: str, layer: Embedding, ids: Ids) -> None:
    if layer.num_embeddings is None:
        return
    kept = ids if layer.padding_idx is None else ids[ids != layer.padding_idx]
    if not kept.size:
        return
    low, high = int(kept.min()), int(kept.max())
    if low < 0 or high >= layer.num_embeddings:
        raise BadData(
            f"{path}: the embedding {name} has the ids 0 to {layer.num_embeddings - 1}, received {low if low < 0 else high}"
        )


def initial_of(name: str, layer: Embedding, path: Path) -> Initial:
    """Return how the rows of a table begin. Raises BadModel for weights that are not drawn each by itself, in a way that servers know."""
    given, function = layer.initializer, layer.initializer
    positional: tuple[Any, ...] = ()
    named: dict[str, Any] = {}
    if isinstance(given, functools.partial):
        function, positional, named = given.func, given.args, given.keywords
    known = {
        getattr(nn.init, one)
        for one in (
            "zeros_", "ones_", "constant_", "uniform_", "normal_", "trunc_normal_", "xavier_uniform_", "xavier_normal_",
        )
    }  # fmt: skip
    if function in known:
        bound = inspect.signature(function).bind(None, *positional, **named)
        bound.apply_defaults()
        found = _initial(function, bound.arguments, layer)
        if found is not None:
            return found
    raise BadModel(
        f"{path}: the embedding {name} is initialized by {given!r:.100}, which parameter servers can't do; they know "
        f"{', '.join(sorted(one.__name__ for one in known))} of torch.nn.init, with their arguments in a functools.partial: trunc_normal_ "
        "within two deviations of its mean, xavier_… for a table with num_embeddings"
    )


def _initial(function: Any, numbers: Mapping[str, Any], layer: Embedding) -> Initial | None:
    init = nn.init
    if function is init.zeros_:
        return Initial(InitialKind.CONSTANT, 0.0)
    if function is init.ones_:
        return Initial(InitialKind.CONSTANT, 1.0)
    if function is init.constant_:
        return Initial(InitialKind.CONSTANT, float(numbers["val"]))
    if function is init.uniform_:
        return Initial(InitialKind.UNIFORM, float(numbers["a"]), float(numbers["b"]))
    if function is init.normal_:
        return Initial(InitialKind.NORMAL, float(numbers["mean"]), float(numbers["std"]))
    if function is init.trunc_normal_:
        mean, std = float(numbers["mean"]), float(numbers["std"])
        edges = (mean - _DEVIATIONS * std, mean + _DEVIATIONS * std)
        as_there = all(map(math.isclose, edges, (numbers["a"], numbers["b"])))
        return Initial(InitialKind.TRUNCATED_NORMAL, mean, std) if as_there else None
    if layer.num_embeddings is None:
        return None
    deviation = float(numbers["gain"]) * math.sqrt(2.0 / (layer.num_embeddings + layer.embedding_dim))
    if function is init.xavier_normal_:
        return Initial(InitialKind.NORMAL, 0.0, deviation)
    limit = math.sqrt(3.0) * deviation
    return Initial(InitialKind.UNIFORM, -limit, limit)
