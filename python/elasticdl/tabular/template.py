"""A plan as a model zoo: a model file of ten lines, and the plan beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.errors import BadModel, BadSetting
from elasticdl.spec.jobspec import JobKind, JobSpec

if TYPE_CHECKING:
    from elasticdl.tabular.features import Plan

MODEL_DEF = "model.custom_model"
PLAN = "plan.json"
TEXT = '''"""A model of a table: plan.json says what each column becomes. `elasticdl train --model_zoo=DIRECTORY` trains it again."""

from pathlib import Path

from elasticdl.tabular.modelfile import TableModel

table = TableModel(Path(__file__).with_name("plan.json"))
custom_model, feed, loss, optimizer = table.custom_model, table.feed, table.loss, table.optimizer
eval_metrics_fn, callbacks, serving_model = table.eval_metrics_fn, table.callbacks, table.serving_model
'''


_CALLBACKS = "table.callbacks"
"""What a file has, also one that somebody has changed, whose callbacks are still those of the plan."""


def write(directory: Path, plan: Plan) -> None:
    """Write the two files into a directory that is there. Raises OSError."""
    (directory / PLAN).write_text(plan.to_json())
    (directory / "model.py").write_text(TEXT)


def check(spec: JobSpec, file: Path) -> None:
    """Check that the job that trains a model of a plan again has rows to evaluate it on if the plan stops it by them.

    `file`: of the job's model, of a plan or not. Raises BadSetting; BadModel for a plan that can't be read.
    """
    beside = file.with_name(PLAN)
    if spec.kind is not JobKind.TRAIN or not beside.is_file() or _CALLBACKS not in file.read_text():
        return
    from elasticdl.tabular.features import Plan  # imports NumPy, which submitting any other job does not need

    try:
        plan = Plan.from_json(beside.read_text())
    except (ValueError, KeyError, TypeError) as error:
        raise BadModel(
            f"{beside}: is no plan of a model ({error!r}); take the one that was written with the model"
        ) from None
    if not plan.stops_early or (spec.validation_data and spec.evaluate_at_epoch_end):
        return
    missing = (
        "--evaluate_at_epoch_end=false is given" if spec.validation_data else "--validation_data is missing"
    )
    remedy = (
        "leave that out"
        if spec.validation_data
        else "name files of rows with the same columns that are not trained on"
    )
    raise BadSetting(
        f'{missing}: {file} stops the training when the loss of other rows gets no better; {remedy}, or write "validates": false in '
        f"{beside}, and it is trained for all --num_epochs"
    )
