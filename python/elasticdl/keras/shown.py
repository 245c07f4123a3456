"""Names of what a model gives, and structures of tensors, or of what describes them, as messages show them; of any backend of Keras."""

from __future__ import annotations

from typing import Any

from elasticdl.worker.contract.trained import PREDICTION


def show(structure: Any) -> str:
    """Write a structure of tensor specs as a person would: (float32 [28, 28], int64 [])."""
    match structure:
        case dict():
            return "{" + ", ".join(f"{key!r}: {show(part)}" for key, part in structure.items()) + "}"
        case tuple() | list():
            return "(" + ", ".join(show(part) for part in structure) + ")"
    shape, dtype = getattr(structure, "shape", None), getattr(structure, "dtype", None)
    if dtype is None:
        return type(structure).__name__
    dimensions = "[?]" if shape is None or getattr(shape, "rank", 0) is None else str(list(shape))
    return f"{getattr(dtype, 'name', dtype)} {dimensions}"


def inputs_of(model: Any) -> Any:
    """Return the inputs that a model was made with, nested as the user has nested them; None if only its calls say what it takes."""
    inputs = getattr(model, "inputs", None)
    # a Sequential of Keras 3 that nobody has called has its only input in the list alone
    return getattr(model, "input", inputs[0]) if inputs else None


def by_name(model: Any, outputs: Any) -> dict[str, Any]:
    """Return a model's outputs by name: that of the only one is `prediction`."""
    if isinstance(outputs, dict):
        return {str(name): one for name, one in outputs.items()}
    if not isinstance(outputs, list | tuple):
        return {PREDICTION: outputs}
    names = list(getattr(model, "output_names", None) or ())
    if len(names) != len(outputs) or len(set(names)) < len(names):
        names = [f"output_{place}" for place in range(len(outputs))]
    return dict(zip(names, outputs, strict=True))
