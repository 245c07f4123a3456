"""A plan as a model zoo: a model file of ten lines, and the plan beside it."""

from __future__ import annotations

from pathlib import Path

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


def write(directory: Path, plan: Plan) -> None:
    """Write the two files into a directory that is there. Raises OSError."""
    (directory / PLAN).write_text(plan.to_json())
    (directory / "model.py").write_text(TEXT)
