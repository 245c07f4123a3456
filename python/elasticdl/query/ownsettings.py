"""The settings of a job that a statement makes itself: neither WITH nor a flag may give them."""

from __future__ import annotations

from elasticdl.spec.jobspec import SETTINGS

_FROM_STATEMENT = {
    "training_data": "the SELECT says what is trained on",
    "validation_data": "validation.select says what is validated on",
    "prediction_data": "the SELECT says what is predicted",
    "prediction_keep": "all columns of the SELECT are kept",
    "data_reader_params": "the SELECT says how rows are made",
    "model_def": "TO TRAIN says which model",
    "model_params": "write model.NAME=value",
    "trained_model": "USING says which model",
    "output": "INTO names the model, and --store its place",
    "output_format": "a model of a statement is a .keras file",
    "audit": "the audit of a model is kept beside it",
    "summary": "the model keeps what the job did",
    "job_command": "a statement trains a model; run programs with `elasticdl run`",
    "detach": "a statement is waited for",
    "work": "a statement trains a model; run programs with `elasticdl run`",
}
"""Setting → what says it."""
_OF_SCRIPT = "it is for all statements of a script, whose pods are made before it is read; give it as a flag"


def why_not(name: str) -> str:
    """Return why neither WITH nor a flag may give a setting; empty if they may."""
    return _FROM_STATEMENT.get(name, "")


def why_not_in_with(name: str) -> str:
    """Return why WITH may not give a setting; empty if it may."""
    setting = SETTINGS.get(name)
    if setting is not None and (setting.group == "pods" or name in ("platform", "namespace")):
        return _OF_SCRIPT
    return why_not(name)
