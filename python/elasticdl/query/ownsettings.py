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
_OF_PODS = (
    "jobs of statements run on this machine, where their rows are; to train on Kubernetes put the rows on a volume, and give "
    "`elasticdl train` the model's directory as --model_zoo"
)


def why_not(name: str) -> str:
    """Return why neither WITH nor a flag may give a setting; empty if they may."""
    setting = SETTINGS.get(name)
    if setting is not None and (
        setting.group == "pods" or name in ("platform", "namespace", "oom_memory_limit", "metrics_port")
    ):
        return _OF_PODS
    return _FROM_STATEMENT.get(name, "")
