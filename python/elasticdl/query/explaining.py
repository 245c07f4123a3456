"""`TO EXPLAIN`: which columns a model's predictions depend on."""

from __future__ import annotations

from elasticdl.query.answer import Answer
from elasticdl.query.session import Session
from elasticdl.query.statements import Explain


def explain(statement: Explain, session: Session) -> Answer:
    """Explain a model by the rows of a SELECT."""
    raise NotImplementedError
