"""How a model is called whose tables are looked up in a checkpoint of parameter servers; its other variables are in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from elasticdl.checkpoint.savedrows import SavedRows
from elasticdl.errors import BadModel
from elasticdl.keras.embedding import check_range, looking_up
from elasticdl.keras.feed import Batch
from elasticdl.keras.library import library_of
from elasticdl.keras.matching import tables_of, variables_of
from elasticdl.keras.psstep import LookupTrace
from elasticdl.worker.contract.usermodel import UserModel


@dataclass(frozen=True, slots=True)
class LookedUp:
    """A batch with what its lookups find.

    Attributes:
        examples: n; 0 if there are none.
        data: that of the batch.
        places: of each lookup the places of its ids among the table's rows.
        rows: of each table, of shape [distinct ids, width].
    """

    examples: int
    data: Any = field(repr=False)
    places: Sequence[Any] = field(repr=False, default=())
    rows: Sequence[Any] = field(repr=False, default=())


class SavedWeights:
    """Implements `elasticdl.keras.evaluation.Forward`."""

    def __init__(self, user: UserModel, model: Any, saved: SavedRows, features: Any) -> None:
        """Give the model's variables their values. Raises BadModel if the checkpoint is of another model.

        Args:
            user: the model file's symbols.
            model: built with its tables on the server's side.
            saved: the checkpoint.
            features: their signature.
        """
        self._user, self._model, self._saved = user, model, saved
        self._library = library_of(model)
        self.seeded = self._library.seed_states(model)
        # tables have their names in the order in which training looks them up
        called = LookupTrace(model, features, self.seeded, training=True).calls
        self._layers = tables_of(user, saved.catalog, called)
        for number, variable in enumerate(variables_of(user, saved.catalog, model)):
            variable.assign(saved.values[number].reshape(variable.shape))

    def trace(self, features: Any) -> None:
        """Trace the lookups. Raises BadModel for one of rows that training does not know."""
        self._lookups = LookupTrace(self._model, features, self.seeded, training=False)
        trained = {id(layer) for layer in self._layers}
        for layer in self._lookups.calls:
            if id(layer) not in trained:
                raise BadModel(
                    f"{self._user.path}: the embedding {layer.name} is not looked up in training, so the checkpoint has no rows of it"
                )

    def converted(self, batch: Batch) -> LookedUp:
        """Look up the rows of a batch; called from the prefetching thread. Raises BadData."""
        if batch.data is None:
            return LookedUp(0, None)
        lookups = self._lookups.ids(batch.data[0], self._layers)
        of_table: list[list[npt.NDArray[np.int64]]] = [[np.empty(0, np.int64)] for _ in self._layers]
        for table, ids in lookups:
            check_range(self._user.path, self._layers[table], ids)
            of_table[table].append(ids)
        distinct = [np.unique(np.concatenate(ids), return_inverse=True) for ids in of_table]
        rows = [tf.constant(self._saved.rows(table, ids)) for table, (ids, _) in enumerate(distinct)]
        starts, places = [0] * len(self._layers), []
        for table, ids in lookups:
            _, inverse = distinct[table]
            places.append(tf.constant(inverse[starts[table] : starts[table] + len(ids)].astype(np.int32)))
            starts[table] += len(ids)
        return LookedUp(batch.examples, batch.data, places, rows)

    def any_rows(self, converted: LookedUp) -> Sequence[npt.NDArray[np.float32]]:
        """Return none: a batch has its own."""
        return ()

    def arguments(self, converted: LookedUp, rows: Sequence[npt.NDArray[np.float32]]) -> tuple[Any, Any]:
        """Return the batch's data; the places of its ids and the rows are given."""
        return converted.data, (list(converted.places), list(converted.rows))

    def signature(self) -> Any:
        """Return the signature of places and rows."""
        return (
            [tf.TensorSpec([None], tf.int32) for _ in self._lookups.calls],
            [tf.TensorSpec([None, layer.output_dim], tf.float32) for layer in self._layers],
        )

    @contextmanager
    def weights(self, given: Any) -> Iterator[list[tuple[Any, Any]]]:
        """Let layers look up the rows given; variables have their own values."""
        places, rows = given
        with looking_up(self._lookups.given(self._layers, rows, places)):
            own = self._library.variables(self._model)
            yield [(variable, tf.convert_to_tensor(variable.value)) for variable in own]
