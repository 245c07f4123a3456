"""A script as a whole: what its words alone show to be wrong is found before its first statement runs."""

from __future__ import annotations

from elasticdl.query import attributes, grammar, training
from elasticdl.query.statements import Evaluate, Explain, Predict, Statement, Train


def read_script(text: str, dialect: str, filename: str) -> list[Statement]:
    """Return the statements of a script. Raises BadStatement for grammar, attributes of WITH and kinds of models, in any of them."""
    statements = [*grammar.parse(text, dialect, filename)]
    for statement in statements:
        if isinstance(statement, Train):
            training.is_own(statement, attributes.wanted(statement))
        elif isinstance(statement, Predict | Evaluate | Explain):
            attributes.wanted(statement)
    return statements
