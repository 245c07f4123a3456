"""Settings and commands that are known and not accepted, each with the sentence that says why or what comes in its place.

People who come from other versions, or read ahead in the documentation, get an answer instead of "unknown flag". Nothing is
parsed here: whatever value was given, the sentence is the same.
"""

from __future__ import annotations

_EVALUATION = "needs evaluation, which this version does not have; evaluate the exported model with Keras"
_PREDICTION = (
    "needs prediction jobs, which this version does not have; predict with the exported model in Keras"
)
_LOOPS = "needs loops of one's own as a library, which this version does not have; write a model file"


def _all(names: str, sentence: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), sentence)


SETTINGS: dict[str, str] = {
    "wire_dtype": "needs transfers of 16-bit numbers, which this version does not have; servers and workers exchange 32 bits",
    **_all(
        "eval_metrics_fn validation_data evaluation_steps evaluate_at_epoch_end tensorboard_log_dir",
        _EVALUATION,
    ),
    **_all("prediction_data prediction_outputs_processor", _PREDICTION),
    **_all("job_command need_tf_config", _LOOPS),
    "lr_scaling": "needs learning rates that follow the number of workers, which this version does not have; "
    "--global_batch_size keeps the batch, and with it the right learning rate, the same",
    "log_file_path": "is not needed: every process of a job logs to the job's folder; read it with `elasticdl logs JOB`",
    "task_fault_tolerance": "is no longer a setting: all faults are tolerated always; "
    "relaunch_on_worker_failure limits how often a worker's own errors are",
    "relaunch_timeout_worker": "is no longer a setting: all faults are tolerated always; "
    "witness_seconds and stall_seconds say how soon a silent worker is replaced",
    "restart_policy": "is no longer a setting: all faults are tolerated always; "
    "relaunch_on_worker_failure says how often a worker is started again",
}
"""Setting → what follows its name in the message."""

COMMANDS: dict[str, str] = {
    "evaluate": _EVALUATION,
    "predict": _PREDICTION,
}
"""Command → what follows its name in the message."""
