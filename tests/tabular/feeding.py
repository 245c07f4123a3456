"""The symbols of a plan's model file, and what its `feed` makes of a table, in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import tensorflow as tf

from elasticdl.tabular import template
from elasticdl.tabular.features import Plan
from elasticdl.tabular.modelfile import TableModel


def columns_of(table: pa.Table) -> dict[str, Any]:
    """Return a table as a chunk of columns: null texts are empty, lists are ragged."""
    found = {}
    for field in table.schema:
        column = table.column(field.name)
        if pa.types.is_list(field.type):
            found[field.name] = tf.ragged.constant(
                column.to_pylist(),
                dtype=tf.string if pa.types.is_string(field.type.value_type) else tf.float64,
            )
        elif pa.types.is_string(field.type):
            found[field.name] = tf.constant(column.fill_null("").to_pylist())
        else:
            found[field.name] = tf.constant(column.to_numpy())
    return found


def loaded(folder: Path, plan: Plan) -> TableModel:
    """Return the symbols of the model file of a plan."""
    template.write(folder, plan)
    return TableModel(folder / template.PLAN)


def fed(model: TableModel, table: pa.Table, mode: str = "training") -> Any:
    """Return what `feed` makes of a table as one chunk."""
    return model.feed(tf.data.Dataset.from_tensors(columns_of(table)), mode, None).get_single_element()
