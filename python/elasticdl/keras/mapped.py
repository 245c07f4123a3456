"""What a feed of whole chunks makes of its one element, computed without a dataset where all that it does is to map.

To run a dataset of one element takes a quarter of the time in which a chunk is parsed: its functions are instantiated for it, and given up
again. Called as functions they compute the same. What might not, because it has a state, is left to the dataset: a function that draws
random numbers, runs Python, or writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.data.util import structure
from tensorflow.python.eager import context

_MAPS = ("_MapDataset", "_ParallelMapDataset")


def mapped(dataset: Any, source: Any, element: Any) -> Any:
    """Return the element that `dataset` makes of the one of `source`, to be traced; None if it is not known to do so by maps alone."""
    maps = []
    while dataset is not source:
        if type(dataset).__name__ not in _MAPS or _function(dataset).function_def.signature.is_stateful:
            return None
        maps.append(dataset)
        dataset = dataset._input_dataset
    spec, flat = source.element_spec, structure.to_tensor_list(source.element_spec, element)
    for one in reversed(maps):
        spec, flat = one.element_spec, tf.nest.flatten(_function(one)(*flat))
    return structure.from_compatible_tensor_list(spec, flat)


def _function(dataset: Any) -> Any:
    """Return the function of a map, which takes and returns flat lists of tensors."""
    return dataset._map_func.function


def call_inline(graph: Any) -> None:
    """Let the functions that a graph of maps calls run on the thread that runs the graph; each call was handed to a pool otherwise."""
    executor = attr_value_pb2.AttrValue(s=_ON_CALLER)
    for operation in graph.get_operations():
        if operation.type == "PartitionedCall":
            operation._set_attr("executor_type", executor)


@contextmanager
def as_traced(*, inline: bool) -> Iterator[None]:
    """Call functions as they were traced: those of datasets are not rewritten, either, and division by a constant keeps its last bit.

    `inline`: their operations run one after the other on the calling thread, and are not handed to a pool, from which the caller then has
    to be woken; a large operation takes its threads all the same. Functions with control flow can't be called so.
    """
    here = context.context()
    before = here.function_call_options
    here.function_call_options = _INLINE if inline else _POOLED  # of this thread
    try:
        yield
    finally:
        here.function_call_options = before


def _as_traced(executor: str | None) -> Any:
    config = config_pb2.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return context.FunctionCallOptions(executor_type=executor, config_proto=config)


_ON_CALLER = b"SINGLE_THREADED_EXECUTOR"
_POOLED = _as_traced(None)
_INLINE = _as_traced(_ON_CALLER.decode())
