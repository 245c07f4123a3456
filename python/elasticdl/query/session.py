"""What all statements of a script share: the database, the models, and what a person gave beside the text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from elasticdl.errors import BadInput
from elasticdl.query import check
from elasticdl.query.registry import Store, Version
from elasticdl.query.source import DatabaseRefused, Params, Source
from elasticdl.query.statements import Evaluate, Explain, ModelReference, Predict, Train
from elasticdl.spec.edge import Given


@dataclass(frozen=True, slots=True)
class Session:
    """What statements are run with.

    Attributes:
        source: the database.
        store: the models.
        params: values for the placeholders of the SELECT.
        flags: settings of jobs, which win over WITH.
        dry_run: nothing is trained, written or changed; `tell` receives what would be done.
        tell: takes a line for the person.
        in_pod: who asks is elsewhere, and looks at what is there, such as files of models.
    """

    source: Source
    store: Store
    params: Params = ()
    flags: Mapping[str, Given] = field(default_factory=dict)
    dry_run: bool = False
    tell: Callable[[str], object] = lambda line: None
    in_pod: bool = False

    def find(self, model: ModelReference) -> Version:
        """Return a trained model. Raises BadStatement at its place if there is none."""
        try:
            return self.store.find(str(model))
        except BadInput as error:
            raise model.place.error(str(error)) from None


@contextmanager
def placed(statement: Train | Predict | Evaluate | Explain) -> Iterator[None]:
    """Give what is refused within it a place in the statement: the database's error that which the database names."""
    try:
        yield
    except DatabaseRefused as error:
        raise check.refused(error.reason, error.place, statement.select) from None
    except BadInput as error:
        raise check.located(error, statement) from None
