"""The model of the tests that count: whole-numbered gradients under plain SGD, so that what must be there in the end is known exactly."""

from __future__ import annotations

from elasticdl.catalog.catalog import Catalog, Initial, InitialKind, Rule, Table, Variable

TOKEN = b"0123456789abcdef0123456789abcdef"
TASKS = 1 << 20
"""More than any test has."""
SLOTS, WIDTH, ROWS = 64, 3, 500


def catalog() -> Catalog:
    """Return one table whose rows begin at zero, and one dense variable."""
    return Catalog(
        seed=1,
        tables=[Table("rows", WIDTH, Initial(InitialKind.CONSTANT, 0.0))],
        variables=[Variable("bias", (WIDTH,))],
        rule=Rule("sgd", {"momentum": 0.0, "nesterov": 0.0}),
        slots=SLOTS,
    )
