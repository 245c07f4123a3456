"""Branches and loops in graphs of TensorFlow: what runs a graph on the thread that calls knows none of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_LOWERED = "_lower_using_switch_merge"
"""Marks branches and loops of which TensorFlow makes control flow inside the function that has them."""
_CONTROL_FLOW = {"Switch", "Merge", "Enter", "Exit", "NextIteration", "LoopCond"}


def branches(graph: Any) -> bool:
    """Tell whether a graph, or a function that runs as a part of it, has control flow."""
    definition = graph.as_graph_def()
    if any(map(_is_control_flow, definition.node)):
        return True
    called = (functions(node.attr) for node in definition.node if "Dataset" not in node.op)
    return functions_branch(set().union(*called), library(definition))


def functions_branch(names: Iterable[str], library: Mapping[str, Any]) -> bool:
    """Tell whether any of these functions, or one that runs as a part of it, has control flow."""
    found, open_ = set(names), list(names)
    while open_:
        function = library.get(open_.pop())
        for node in function.node_def if function is not None else ():
            if _is_control_flow(node):
                return True
            if "Dataset" in node.op:  # it runs its functions itself
                continue
            called = functions(node.attr) - found
            found |= called
            open_ += called
    return False


def library(definition: Any) -> dict[str, Any]:
    """Return a graph's functions by name."""
    return {function.signature.name: function for function in definition.library.function}


def functions(attributes: Mapping[str, Any]) -> set[str]:
    """Return the names of the functions among an operation's attributes."""
    return {value.func.name for value in attributes.values() if value.HasField("func")} | {
        function.name for value in attributes.values() for function in value.list.func
    }


def _is_control_flow(node: Any) -> bool:
    return node.op in _CONTROL_FLOW or (_LOWERED in node.attr and node.attr[_LOWERED].b)
