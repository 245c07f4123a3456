"""The user's `feed`, traced once and applied chunk by chunk: a chunk's raw records in, one batch out.

It reads no files and knows no steps. The function is traced over a dataset of one chunk's records and gives that chunk's single
batch, so no queue stands between caller and pipeline, an error of the user's code belongs to the chunk that caused it, and every
thread may call it. A feed that asks for whole chunks (`feed.whole_chunks = True`) gets the chunk as one element, and returns one; where it
only maps, no dataset is run at all (`mapped.py`).
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.autograph.core import ag_ctx

from elasticdl.errors import BadData, BadModel
from elasticdl.keras.compiled import Compiled
from elasticdl.keras.mapped import as_traced, call_inline, mapped
from elasticdl.keras.shown import show
from elasticdl.spec.jobspec import Mode
from elasticdl.worker.contract.records import Columns, Records
from elasticdl.worker.modelfile import describe
from elasticdl.worker.raised import raised_by_python
from elasticdl.worker.usercode import feed_failure

_EXAMPLES = "a tf.data.Dataset of (features, labels), one element per example"
_CHUNK = "with feed.whole_chunks a tf.data.Dataset of one element, (features, labels), with as many rows as the chunk has records"


@dataclass(frozen=True, slots=True)
class Batch:
    """One chunk as the model takes it.

    Attributes:
        examples: n; 0 if `feed` dropped every record.
        data: (features, labels) or (features, labels, sample weights) with the examples along the first dimension, only (features,) of
            predictions; None if there are none.
    """

    examples: int
    data: tuple[Any, ...] | None = field(repr=False)


class FeedPipeline:
    """The compiled `feed`. `__call__` may be used from several threads once the first call has returned."""

    def __init__(self, feed: Callable[..., Any], mode: str, metadata: Any, path: Path) -> None:
        """`path`: the user's file, for messages. Raises BadModel if `feed.whole_chunks` is neither True nor False."""
        self._feed = feed
        self._whole = getattr(feed, "whole_chunks", False)
        if not isinstance(self._whole, bool):
            raise BadModel(f"{path}: feed.whole_chunks is {self._whole!r}; expected True or False")
        self._mode = mode
        self._metadata = metadata
        self._path = path
        self._traced: Any = None
        self._inline = False
        """The function that was traced runs on the thread that calls it."""
        self.spec: tuple[Any, ...] | None = None
        """What `feed` gives, with an unknown number of examples: the signature of everything that takes a batch."""
        self.expected = _CHUNK if self._whole else _EXAMPLES
        """What `feed` has to return, for messages."""

    def __call__(self, records: Records) -> Batch:
        """Return the batch that `feed` makes of `records`.

        Raises BadData for a result of another structure and for errors inside the traced function, those of Python
        functions that it calls (`tf.py_function`) included; the exception that says it all stands behind it as its cause.
        """
        if not len(records):
            return Batch(0, None)
        tensors = _tensors(records)
        if self._traced is None:
            self._traced = Compiled(self._trace, (tf.nest.map_structure(_any_number_of, tensors),))
            try:
                self._traced.trace()
            except BadData:
                self._traced = None
                raise
            except Exception as error:
                self._traced = None
                then = f"; {_IN_A_GRAPH}" if _of_the_body(error) else ""
                raise feed_failure(self._path, error, records, self._metadata, then) from error
        try:
            with as_traced(inline=self._inline):
                data = self._traced(tensors)
        except tf.errors.OpError as error:
            # What a Python function raises has the type of another error of TensorFlow, and may say anything.
            if not raised_by_python(error):
                if not isinstance(error, tf.errors.InvalidArgumentError):
                    raise
                empty, several = (
                    what in error.message for what in ("Dataset was empty", "more than one element")
                )
                if self._whole and (empty or several):
                    raise BadData(
                        f"{self._path}: feed returned {'no' if empty else 'more than one'} element for a chunk of {len(records)} "
                        f"records; expected {self.expected}"
                    ) from None
                if empty:
                    return Batch(0, None)
                if several:
                    raise BadData(
                        f"{self._path}: feed made more examples than the {len(records)} records it was given; "
                        "it may shuffle, filter and map, but not repeat"
                    ) from None
            raise BadData(
                f"{self._path}: feed failed on a chunk of {len(records)} records: {describe(error, self._path)}"
            ) from error
        if self._whole and not all(_is_of(len(records), part) for part in tf.nest.flatten(data)):
            raise BadData(
                f"{self._path}: feed returned {show(data)} for a chunk of {len(records)} records; expected {self.expected}"
            )
        return Batch(int(tf.nest.flatten(data)[0].shape[0]), data)

    def _trace(self, records: Any) -> Any:
        # Datasets convert their functions as they do outside of a traced function; `feed` itself is run as it is.
        dataset_of = tf.data.Dataset.from_tensors if self._whole else tf.data.Dataset.from_tensor_slices
        with ag_ctx.ControlStatusCtx(ag_ctx.Status.UNSPECIFIED), self._without_endless_loops():
            source = dataset_of(records)
            dataset = self._feed(source, self._mode, self._metadata)
        if not isinstance(dataset, tf.data.Dataset):
            raise BadData(f"{self._path}: feed returned {type(dataset).__name__}; expected {self.expected}")
        element, predicts = dataset.element_spec, self._mode == Mode.PREDICTION
        has_labels = isinstance(element, tuple) and len(element) in (2, 3)
        if not has_labels and not predicts:
            raise BadData(
                f"{self._path}: feed returned elements of the structure {show(element)}; expected {self.expected}"
            )
        if self._whole:
            spec = self._of_any_number(dataset)
            batch = mapped(dataset, source, records)
            if batch is None:
                batch = dataset.get_single_element()
            else:
                self._inline = not _has_control_flow(tf.compat.v1.get_default_graph())
                if self._inline:
                    call_inline(tf.compat.v1.get_default_graph())
        else:
            if type(dataset).__name__ in ("_BatchDataset", "_ParallelBatchDataset", "_PaddedBatchDataset"):
                raise BadData(
                    f"{self._path}: feed batched its examples: it returned {show(element)}; expected {self.expected}"
                )
            batches = dataset.batch(_count(records))
            batch, spec = batches.get_single_element(), batches.element_spec
        graph = tf.compat.v1.get_default_graph()
        if predicts:
            self._check_order(graph)
        _run_inline(graph)
        if not predicts:
            self.spec = spec
            return batch
        # Labels that it has all the same are left out.
        self.spec = spec[:1] if has_labels else (spec,)
        return batch[:1] if has_labels else (batch,)

    def _of_any_number(self, chunks: Any) -> Any:
        """Return the spec of a dataset of whole chunks as it is with any number of examples. Raises BadData for scalars."""
        try:
            return chunks.unbatch().batch(1).element_spec
        except ValueError as error:  # scalars, or tensors whose numbers of rows are known and differ
            raise BadData(
                f"{self._path}: feed returned {show(chunks.element_spec)}; expected {self.expected}"
            ) from error

    def _check_order(self, graph: Any) -> None:
        """Raise BadData if `feed` shuffles, so that nobody would know which record a prediction is of."""
        if any("Shuffle" in operation.type for operation in graph.get_operations()):
            raise BadData(
                f"{self._path}: feed shuffles in the mode {self._mode!r}; predictions are in the order of the records: shuffle only if "
                "mode == Mode.TRAINING"
            )

    @contextmanager
    def _without_endless_loops(self) -> Iterator[None]:
        """Raise BadData from a Python loop over a dataset: in a graph its iterator has no end, and each turn makes an operation."""
        graph = tf.compat.v1.get_default_graph()
        create, taken = graph._create_op_internal, 0

        def counting(kind: str, *arguments: Any, **keywords: Any) -> Any:
            nonlocal taken
            taken += kind == "IteratorGetNext"
            if taken > _MOST_TAKEN:
                raise BadData(
                    f"{self._path}: feed loops over a dataset in Python, which never ends; {_IN_A_GRAPH}"
                )
            return create(kind, *arguments, **keywords)

        graph._create_op_internal = counting
        try:
            yield
        finally:
            del graph._create_op_internal  # that of its class counts again


def _tensors(records: Records) -> Any:
    """Return records as a tensor, columns as one of each; vectors of different lengths are a ragged one."""
    if isinstance(records, Columns):
        return {name: _column(array) for name, array in records.arrays.items()}
    return tf.constant(np.asarray(records, dtype=object) if isinstance(records[0], bytes) else records)


def _column(array: npt.NDArray[Any]) -> Any:
    if array.dtype != object:
        return tf.constant(array)
    if not isinstance(array[0], np.ndarray):
        return tf.constant(array, tf.string)
    values = np.concatenate(array)
    of_values = tf.constant(values, tf.string if values.dtype == object else None)
    return tf.RaggedTensor.from_row_lengths(of_values, [len(vector) for vector in array])


def _any_number_of(tensor: Any) -> Any:
    """Return the spec of a tensor with any number of records."""
    if isinstance(tensor, tf.RaggedTensor):
        return tf.RaggedTensorSpec([None, *tensor.shape[1:]], tensor.dtype, ragged_rank=1)
    return tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)


def _is_of(records: int, part: Any) -> bool:
    """Tell whether a part of what `feed` returned has so many rows; sample weights may be None."""
    return part is None or (part.shape.rank != 0 and part.shape[0] == records)


def _count(tensors: Any) -> Any:
    """Return the number of records."""
    first = tf.nest.flatten(tensors)[0]
    return first.nrows() if isinstance(first, tf.RaggedTensor) else tf.shape(first, tf.int64)[0]


_MOST_TAKEN = 1000
"""Elements that the body of `feed` may take out of datasets itself."""
_IN_A_GRAPH = (
    "the body of feed is run once, in a graph, where Python can't see the value of a tensor: "
    "move the condition or loop into a function that map is given"
)
_SYMBOLIC = re.compile(r"SymbolicTensor|symbolic `?tf\.Tensor")


def _of_the_body(error: Exception) -> bool:
    """Tell whether the body of `feed` itself, not a function that it gives to a dataset, has asked a tensor of a graph for its value."""
    if not isinstance(error, tf.errors.OperatorNotAllowedInGraphError) and not _SYMBOLIC.search(str(error)):
        return False
    files = (frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__))
    return not any("tensorflow/python/data/" in file for file in files)


def _run_inline(graph: Any) -> None:
    """Let the pipeline's functions run on the thread that pulls, not as tasks of a pool, where that is possible.

    A function of a few small operations per record otherwise costs eight times its work in handing over between threads. What runs it
    inline knows no branches and loops, so functions with these are left to the pool, as they are in a pipeline of their own.
    """
    inline = attr_value_pb2.AttrValue(b=False)
    library = _library(graph.as_graph_def())
    for operation in graph.get_operations():
        attributes = operation.node_def.attr
        if "use_inter_op_parallelism" in attributes and not _branches(_functions(attributes), library):
            operation._set_attr("use_inter_op_parallelism", inline)


_LOWERED = "_lower_using_switch_merge"
"""Marks branches and loops of which TensorFlow makes control flow inside the function that has them."""
_CONTROL_FLOW = {"Switch", "Merge", "Enter", "Exit", "NextIteration", "LoopCond"}


def _has_control_flow(graph: Any) -> bool:
    """Tell whether a graph, or a function that runs as a part of it, has control flow."""
    definition = graph.as_graph_def()
    called = set[str]().union(*(_functions(node.attr) for node in definition.node))
    return any(map(_is_control_flow, definition.node)) or _branches(called, _library(definition))


def _library(definition: Any) -> dict[str, Any]:
    """Return the functions of a graph by their names."""
    return {function.signature.name: function for function in definition.library.function}


def _is_control_flow(node: Any) -> bool:
    return node.op in _CONTROL_FLOW or (_LOWERED in node.attr and node.attr[_LOWERED].b)


def _branches(names: Iterable[str], library: Mapping[str, Any]) -> bool:
    """Tell whether any of these functions, or one that runs as a part of it, has control flow."""
    found, open_ = set(names), list(names)
    while open_:
        function = library.get(open_.pop())
        for node in function.node_def if function is not None else ():
            if _is_control_flow(node):
                return True
            if "Dataset" in node.op:  # it runs its functions itself
                continue
            called = _functions(node.attr) - found
            found |= called
            open_ += called
    return False


def _functions(attributes: Mapping[str, Any]) -> set[str]:
    """Return the names of the functions among an operation's attributes."""
    return {value.func.name for value in attributes.values() if value.HasField("func")} | {
        function.name for value in attributes.values() for function in value.list.func
    }
