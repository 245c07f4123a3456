"""Settings and commands that are known and have no effect: refused with the sentence that says why or what comes in its place, or
accepted with a note where leaving them out gives the same job.

People who come from other versions, or read ahead in the documentation, get an answer instead of "unknown flag". Nothing is
parsed here: whatever value was given, the sentence is the same.
"""

from __future__ import annotations


def _all(names: str, sentence: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), sentence)


_EVALUATE = "workers evaluate, and no processes for it alone; --evaluation_steps says how often"

SETTINGS: dict[str, str] = {
    "wire_dtype": "needs transfers of 16-bit numbers, which this version does not have; servers and workers exchange 32 bits",
    "need_tf_config": "is no longer a setting: the workers of a job change while it runs, so there is no cluster to list in TF_CONFIG; "
    "`elasticdl run -- COMMAND` runs a custom training loop without it, so leave it out",
    "lr_scaling": "needs learning rates that follow the number of workers, which this version does not have; "
    "--global_batch_size keeps the batch, and with it the right learning rate, the same",
    "log_file_path": "is not needed: every process of a job logs to the job's folder; read it with `elasticdl logs JOB`",
    "task_fault_tolerance": "is no longer a setting: all faults are tolerated always; "
    "relaunch_on_worker_failure limits how often a worker's own errors are",
    "relaunch_timeout_worker": "is no longer a setting: all faults are tolerated always; "
    "witness_seconds and stall_seconds say how soon a silent worker is replaced",
    "restart_policy": "is no longer a setting: all faults are tolerated always; "
    "relaunch_on_worker_failure says how often a worker is started again",
    "aux_params": "is no longer a setting, and none takes its place; leave it out",
    "extra_pypi_index": "is no longer a setting: `elasticdl zoo build` makes images; write --extra-index-url URL into the zoo's "
    "requirements.txt",
    "dataset_fn": "is now --feed: the function gets (dataset, mode, metadata)",
    "num_ps": "is now --num_ps_pods",
    "ps_image": "is now --image_name, for all pods of a job; --worker_image is another one for workers",
    **_all(
        "num_evaluator evaluator_resource_request evaluator_resource_limit",
        f"is no longer a setting: {_EVALUATE}",
    ),
    **_all("evaluation_start_delay_secs evaluation_throttle_secs", f"is no longer a setting: {_EVALUATE}"),
    "chief_resource_request": "is now --worker_resource_request: no worker is the chief",
    "chief_resource_limit": "is now --worker_resource_limit: no worker is the chief",
    **_all(
        "docker_image_repository image_base docker_base_url docker_tlscert docker_tlskey",
        "is no longer a setting: `elasticdl zoo build` and `zoo push` make an image, which --image_name names",
    ),
}
"""Setting → what follows its name in the message."""

ACCEPTED: dict[str, str] = {
    **_all(
        "need_elasticdl_job_service need_task_manager need_pod_manager",
        "is accepted and changes nothing: every job has a master that deals out the data and starts the workers; leave it out",
    ),
    "force_use_kube_config_file": "is accepted and changes nothing: KUBECONFIG names the file, and ~/.kube/config is the default; "
    "leave it out",
    "restart_policy": "is accepted and changes nothing: every life of a process is a pod of its own; leave it out",
    "use_go_ps": "is accepted and changes nothing: there is one kind of parameter server; leave it out",
    "yaml": "is accepted and writes nothing: without --dry_run the job is started; `--dry_run -o yaml` prints its objects instead",
}
"""Setting that changes nothing → what follows its name in a note."""

OF_TRAINED = {
    "trained_model": "is a setting of `elasticdl evaluate` and `elasticdl predict`: training begins with what the model function returns, "
    "so load the weights of a file there, or it continues from a checkpoint, which --checkpoint_dir_for_init names",
}
"""Setting of jobs that don't train → what follows its name in the message where something is trained."""

IDLE = "is accepted and changes nothing: nothing is trained; leave it out"
"""What follows the name of a setting that says how to train, where nothing is trained."""

ZOO_INIT: dict[str, str] = {
    "base_image": "is now --base",
    "model_zoo": "is now the argument: `elasticdl zoo init DIRECTORY`",
    "local_pkg_dir": "is no longer a flag: `elasticdl zoo build --wheel=FILE` takes this package from a file",
    "cluster_spec": "is a setting of `elasticdl train`, which changes the pods of a job; an image has none",
    "extra_pypi_index": "is no longer a flag: write --extra-index-url URL into the zoo's requirements.txt",
}
"""Flag of `elasticdl zoo init` → what follows its name in the message."""
ZOO_TOOL: dict[str, str] = _all(
    "docker_base_url docker_tlscert docker_tlskey",
    "is no longer a flag: docker, podman and buildah read DOCKER_HOST, DOCKER_CERT_PATH and their like themselves",
)
"""Flag of `elasticdl zoo build` and `push` → what follows its name in the message."""

COMMANDS: dict[str, str] = {
    "clean": "is no longer a command: `elasticdl stop JOB --namespace=NAME` removes what a job on Kubernetes made, "
    "`elasticdl list --prune` the folders of local jobs that have ended; images are removed by the tool that built them, as "
    "`docker image rm NAME` does",
}
"""Command → what follows its name in the message."""


def note(name: str, value: object) -> str:
    """Return what follows the name of a setting that is accepted and changes nothing, empty if it is none or this value is refused."""
    if name == "restart_policy" and value != "Never":
        return ""
    return ACCEPTED.get(name, "")
