"""Two models on parameter servers: what is different first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elasticdl.catalog.catalog import Catalog, Initial, InitialKind, Rule, Table, Variable, first_difference
from elasticdl.errors import BadModel

from .model import catalog

MODEL = catalog()
(TABLE,), (VARIABLE,) = MODEL.tables, MODEL.variables


def test_seed_and_slots_are_not_the_model_s() -> None:
    assert first_difference(MODEL, replace(MODEL, seed=99, slots=7)) == ""


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (replace(MODEL, rule=Rule("adam", {})), "the optimizer sgd and adam"),
        (replace(MODEL, rule=replace(MODEL.rule, parameters={"momentum": 0.5, "nesterov": 0.0})), "the optimizer's momentum 0.0 and 0.5"),
        (replace(MODEL, rule=replace(MODEL.rule, weight_decay=0.1)), "the weight decay 0.0 and 0.1"),
        (replace(MODEL, tables=[]), "the number of tables 1 and 0"),
        (replace(MODEL, tables=[replace(TABLE, width=4)]), "table 'rows': width 3 and 4"),
        (replace(MODEL, tables=[replace(TABLE, name="r")]), "the name of a table rows and r"),
        (replace(MODEL, tables=[Table("rows", 3, Initial(InitialKind.UNIFORM, 0.0))]), "table 'rows': initial"),
        (replace(MODEL, variables=[Variable("bias", (3, 1))]), "variable 'bias': shape (3,) and (3, 1)"),
        (replace(MODEL, variables=[VARIABLE, VARIABLE]), "the number of variables 1 and 2"),
    ],
)  # fmt: skip
def test_the_first_difference_is_named_with_both_values(other: Catalog, told: str) -> None:
    assert first_difference(MODEL, other).startswith(told)


def test_variables_that_no_message_can_carry_are_refused() -> None:
    def model(rows: int) -> Catalog:
        return Catalog(
            0,
            [],
            [Variable("dense/kernel", (rows, 1024), decays=False)],
            Rule("sgd", {"momentum": 0.0, "nesterov": 0.0}),
        )

    model(48 << 10).check_sizes()
    with pytest.raises(BadModel, match=r"'dense/kernel' in one piece, which has 196 MiB and may have 192"):
        model(49 << 10).check_sizes()
