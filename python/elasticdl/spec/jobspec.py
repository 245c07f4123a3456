"""`JobSpec`: every setting of a job once, with its kind, unit, default and reason.

The command line, the job file and `elasticdl.train(...)` build this one object (through `edge.py`); `spec.json` carries it to every
process of the job. It does not look at files, and it holds nothing that a process of the job finds out: what is here is what was
asked for, and it never changes. One file because a setting is declared once, in the order of `--help`, and what excludes what among
them is read beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from elasticdl.errors import BadSetting
from elasticdl.files import reading
from elasticdl.spec import program
from elasticdl.spec import setting as kinds
from elasticdl.spec.databases import OutputTable, table_of
from elasticdl.spec.grammar import BestMetric, WorkerRange
from elasticdl.spec.pods import Priority, Volume, amount
from elasticdl.spec.setting import Setting, setting, setting_of

FORMAT = 2
"""Format number of `spec.json`."""
_LONGEST_NODE_DIR = 60
"""Bytes: the address of a Unix socket has 107, and the names of a node's folder and of a worker's socket are appended."""
_LOWEST_PORT, _HIGHEST_PORT = 1024, 65535
"""Ports of processes without privileges."""
PARQUET = "parquet"
"""Output format of tables and variables on parameter servers, whatever the framework, and of predictions."""
CSV = "csv"
"""Output format of predictions."""


class JobKind(StrEnum):
    """What a job does, in the words of the commands."""

    TRAIN = "train"
    EVALUATE = "evaluate"
    PREDICT = "predict"
    PROCESS = "process"
    """`run --work=tasks`."""


class Work(StrEnum):
    """How the workers that run a program share its work."""

    STEPS = "steps"
    TASKS = "tasks"


class Strategy(StrEnum):
    """How workers share the work."""

    AUTO = "auto"
    ALLREDUCE = "AllreduceStrategy"
    PARAMETER_SERVER = "ParameterServerStrategy"
    LOCAL = "Local"


class WireDtype(StrEnum):
    """What numbers of a kind are while they travel."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class OnNaN(StrEnum):
    """What a loss or gradient that is not finite does."""

    FAIL = "fail"
    SKIP_STEP = "skip_step"


class PsRestore(StrEnum):
    """What the loss of all copies of a part of the model does."""

    REDO = "redo"
    SKIP = "skip"
    STOP = "stop"


class Platform(StrEnum):
    """Where a job's processes live."""

    AUTO = "auto"
    LOCAL = "local"
    KUBERNETES = "kubernetes"


class PullPolicy(StrEnum):
    """When a node fetches a pod's image, in the words of Kubernetes."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class JitCompile(StrEnum):
    """Whether the step is compiled by XLA."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


class LogLevel(StrEnum):
    """Least weight of what the processes log."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"


class Mode:
    """What a model file's `feed` is asked for: its second argument."""

    TRAINING = "training"
    EVALUATION = "evaluation"
    PREDICTION = "prediction"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """The settings of one job. Build it with `elasticdl.spec.edge.build`, which reads text and names mistakes.

    Attributes:
        kind: what the job does; the command says it, so it is no setting.
    """

    kind: JobKind = JobKind.TRAIN

    # ------------------------------------------------------------------ identity
    job_name: str = setting(
        kinds.text("NAME"), "", group="identity", what="Name of the job; made from the model's name if not given.",
        why="`status`, `logs`, `stop` and the others find the job by it.",
    )  # fmt: skip
    platform: Platform = setting(
        kinds.choice(Platform), Platform.AUTO, group="identity",
        what="Where the processes live; auto: on Kubernetes if there is an image, else on this machine.",
        why="An image is what a job on Kubernetes needs and a local one has no use for.",
    )  # fmt: skip
    namespace: str = setting(
        kinds.text("NAME"), "default", group="identity", what="Namespace of the job on Kubernetes.",
        why="The namespace that every cluster has.",
    )  # fmt: skip

    # ------------------------------------------------------------------ model
    model_zoo: str = setting(
        kinds.path("DIR"), ".", group="model",
        what="Directory in which model files are looked up; of `run` the one in which the program runs, the current one if not given.",
        why="The current directory is where people keep the file that they are writing.",
    )  # fmt: skip
    model_def: str = setting(
        kinds.text("MODULE.SYMBOL"), "", group="model",
        what="The model: `a.b.symbol` is the symbol in the file MODEL_ZOO/a/b.py.", why="There is no model to guess.",
    )  # fmt: skip
    framework: str = setting(
        kinds.text("NAME"), "auto", group="model",
        what="Framework of the model file, one that is installed; auto: the one that the file imports, keras if it imports none.",
        why="A file that imports its framework has said it.",
    )  # fmt: skip
    model_params: Mapping[str, object] = setting(
        kinds.parameters(), {}, group="model", what="Keyword arguments of the model function, as Python literals.",
        why="Literals only: a command line never runs code.",
    )  # fmt: skip
    feed: str = setting(
        kinds.text("SYMBOL"), "feed", group="model", what="Function that turns raw records into (features, labels).",
        why="The name that model files use.",
    )  # fmt: skip
    loss: str = setting(
        kinds.text("SYMBOL"), "loss", group="model", what="Function loss(labels, predictions).",
        why="The name that model files use.",
    )  # fmt: skip
    optimizer: str = setting(
        kinds.text("SYMBOL"), "optimizer", group="model", what="Function that returns the optimizer.",
        why="The name that model files use.",
    )  # fmt: skip
    lr_scheduler: str = setting(
        kinds.text("SYMBOL"), "lr_scheduler", group="model",
        what="With PyTorch: function of the optimizer that returns its learning-rate scheduler, if defined.",
        why="The name that model files use.",
    )  # fmt: skip
    callbacks: str = setting(
        kinds.text("SYMBOL"), "callbacks", group="model", what="Function that returns callbacks, if defined.",
        why="The name that model files use.",
    )  # fmt: skip
    eval_metrics_fn: str = setting(
        kinds.text("SYMBOL"), "eval_metrics_fn", group="model",
        what="Function that returns the metrics of an evaluation, if defined.", why="The name that model files use.",
    )  # fmt: skip
    custom_data_reader: str = setting(
        kinds.text("SYMBOL"), "custom_data_reader", group="model",
        what="Function that returns a custom reader, if defined.", why="The name that model files use.",
    )  # fmt: skip

    job_command: tuple[str, ...] = setting(
        kinds.words(), (), group="model",
        what="Program with a custom training loop that each worker runs instead of a model file, split in words like in a shell; none is "
        "run. `elasticdl run … -- COMMAND` says the same.",
        why="A model file needs no loop.",
    )  # fmt: skip
    work: Work = setting(
        kinds.choice(Work), Work.STEPS, group="model",
        what="What the workers of a program share; steps: they train one model, step by step; tasks: each processes parts of the data, "
        "which `elasticdl.shards` gives it.",
        why="Most programs train.",
    )  # fmt: skip
    prediction_outputs_processor: str = setting(
        kinds.text("SYMBOL"), "PredictionOutputsProcessor", group="model",
        what="Class whose process(predictions, worker_id) gets what was predicted, if defined.", why="The name that model files use.",
    )  # fmt: skip
    trained_model: str = setting(
        kinds.path(), "", group="model",
        what="The trained model, as `train` writes it to --output; or name a checkpoint with --checkpoint_dir_for_init.",
        why="There is no model to guess.",
    )  # fmt: skip

    # ------------------------------------------------------------------ data
    training_data: str = setting(
        kinds.path("DATA"), "", group="data",
        what="File, directory or glob to train on, a URL of files or of a database, or what the custom reader takes.",
        why="There is no data to guess.",
    )  # fmt: skip
    validation_data: str = setting(
        kinds.path("DATA"), "", group="data",
        what="File, directory or glob on which the model is evaluated while it is trained: its loss, and the metrics of eval_metrics_fn.",
        why="Evaluation takes time, and data that is not trained on.",
    )  # fmt: skip
    evaluation_steps: int = setting(
        kinds.integer(0), 0, group="data", unit="steps",
        what="Steps from one evaluation to the next, with parameter servers up to the next task; 0: none within an epoch.",
        why="Each one evaluates all of validation_data, and training waits for it.",
    )  # fmt: skip
    evaluate_at_epoch_end: bool = setting(
        kinds.flag(), True, group="data", what="Evaluate after the last step of each epoch; in any case after the last step of all.",
        why="Keras does so.",
    )  # fmt: skip
    prediction_data: str = setting(
        kinds.path("DATA"), "", group="data", what="File, directory or glob of the records to predict for.",
        why="There is no data to guess.",
    )  # fmt: skip
    prediction_keep: tuple[str, ...] = setting(
        kinds.names(), (), group="data", what="Columns of the data that are written beside the predictions.",
        why="They can also be joined by shard and record.",
    )  # fmt: skip
    data_reader_params: Mapping[str, object] = setting(
        kinds.parameters(), {}, group="data", what="Keyword arguments of the reader, as Python literals.",
        why="Literals only: a command line never runs code.",
    )  # fmt: skip
    data_cache: str = setting(
        kinds.path("DIR"), "", group="data",
        what="Directory for tables that are made of data once: lists of images, results of queries. On Kubernetes one that all pods share, "
        "needed beyond 32 MiB; the job's folder if not given.",
        why="Most of them are small.",
    )  # fmt: skip
    storage_seconds: float = setting(
        kinds.number(0), 300.0, group="data", unit="seconds",
        what="How long a server of data, whose URL is training_data, may be silent; then the job fails.",
        why="Object stores come back within minutes, and what was trained until then is lost if nobody waits.",
    )  # fmt: skip
    minibatch_size: int = setting(
        kinds.integer(1), 64, group="data", unit="records", what="Records of one chunk: what one worker computes at once.",
        why="Large enough to keep a core busy, small enough for a laptop's memory.",
    )  # fmt: skip
    num_minibatches_per_task: int = setting(
        kinds.integer(1), 8, group="data", unit="chunks", what="Minibatches of one task, the unit in which data is dealt out.",
        why="Longer tasks read files in longer runs; in an epoch of fewer tasks than workers some have nothing to do.",
    )  # fmt: skip
    num_epochs: int = setting(
        kinds.integer(0), 1, group="data", unit="epochs", what="Passes over the data; 0: until stopped.",
        why="One pass shows whether everything works.",
    )  # fmt: skip
    max_step: int = setting(
        kinds.integer(0), 0, group="data", unit="steps", what="End after this many committed steps; 0: no limit.",
        why="The data decides unless somebody wants less.",
    )  # fmt: skip
    shuffle: bool = setting(
        kinds.flag(), True, group="data", what="Train tasks, and records inside tasks, in a seeded random order.",
        why="Ordered data trains badly.",
    )  # fmt: skip
    seed: int = setting(
        kinds.integer(0), 0, group="data", what="Seed of the data's order, the first weights and all randomness inside the model.",
        why="The same command gives the same curve.",
    )  # fmt: skip

    # ------------------------------------------------------------------ strictness
    max_bad_records: int = setting(
        kinds.integer(0), 0, group="strictness", unit="records", what="Corrupt records that are skipped and counted before the job fails.",
        why="Nobody wants to train on less than they think without having said so.",
    )  # fmt: skip
    on_nan: OnNaN = setting(
        kinds.choice(OnNaN), OnNaN.FAIL, group="strictness", what="What a loss or gradient that is not finite does.",
        why="A model that has diverged rarely comes back; hours of it help nobody.",
    )  # fmt: skip

    # ------------------------------------------------------------------ strategy
    distribution_strategy: Strategy = setting(
        kinds.choice(Strategy), Strategy.AUTO, group="strategy",
        what="AllreduceStrategy: a group of worker processes, in step; ParameterServerStrategy: each worker for itself, the model on "
        "parameter servers; Local: one member in this process (not on Kubernetes); auto: the second with num_ps_pods, else the first.",
        why="Who asks for parameter servers has said it.",
    )  # fmt: skip
    num_workers: WorkerRange = setting(
        kinds.workers(), WorkerRange(1, 2), group="strategy", unit="workers",
        what="Workers to launch; with MIN:MAX the job waits while it has fewer than MIN.",
        why="Two is the least that survives a loss without starting anew.",
    )  # fmt: skip
    global_batch_size: int = setting(
        kinds.integer(0), 0, group="strategy", unit="records",
        what="Records of one step whatever the number of workers, a multiple of minibatch_size; 0: minibatch_size for each worker.",
        why="Every worker is used; with a fixed size, disturbed and undisturbed runs have the same curve.",
    )  # fmt: skip
    gradient_dtype: WireDtype = setting(
        kinds.choice(WireDtype), WireDtype.FLOAT32, group="strategy",
        what="What gradients are while workers exchange them or push them to servers: float32 (float64 if the model has it), or bfloat16, "
        "which is half the bytes; each worker's gradient is rounded then, and so is the sum of a group.",
        why="Rounding changes the model in its last digits; few jobs wait for the network that long.",
    )  # fmt: skip
    threads_per_worker: int = setting(
        kinds.integer(0, zero="auto"), 0, group="strategy", unit="threads",
        what="Threads with which a worker computes; 0 or auto: cores divided by the most workers, on Kubernetes the cores of its pod, "
        "at least 1.",
        why="More threads than cores slow each other down; the number is fixed for a job because results depend on it in their last bits.",
    )  # fmt: skip
    jit_compile: JitCompile = setting(
        kinds.choice(JitCompile), JitCompile.AUTO, group="strategy", what="Whether XLA compiles the step.",
        why="The adapter knows where it pays.",
    )  # fmt: skip

    # ------------------------------------------------------------------ parameter servers
    num_ps_pods: int = setting(
        kinds.integer(0), 0, group="parameter servers", unit="servers",
        what="Parameter servers to launch, which hold the model and its embedding tables; workers train asynchronously then, unless "
        "use_async says otherwise.",
        why="A model that fits into each worker trains better in step.",
    )  # fmt: skip
    use_async: bool = setting(
        kinds.flag(), True, group="parameter servers",
        what="With parameter servers: each worker trains for itself. false: grads_to_wait minibatches make one step, all computed with "
        "the weights of the step before.",
        why="Nobody waits for anybody.",
    )  # fmt: skip
    grads_to_wait: int = setting(
        kinds.integer(1), 1, group="parameter servers", unit="gradients",
        what="With --use_async=false: gradients of minibatches whose mean makes one step, from any workers; fewer where an epoch "
        "ends. More workers than this have nothing to do.",
        why="The number of workers changes while a job runs, and what a step is must not.",
    )  # fmt: skip
    sync_version_tolerance: int = setting(
        kinds.integer(0), 0, group="parameter servers", unit="steps",
        what="With --use_async=false: steps before its own that the weights of a minibatch may lack.",
        why="With 0 the curve is the same whatever happens; more keeps workers busy while the last of a step is computed.",
    )  # fmt: skip
    ps_replicas: int = setting(
        kinds.integer(0, zero="auto"), 0, group="parameter servers", unit="servers",
        what="Servers that hold each part of the model, 1 or 2; 0 or auto: 2 where there are two servers. "
        "With 1 the loss of a server takes the training back to where its part began.",
        why="With two the loss of a server costs a moment, and no update.",
    )  # fmt: skip
    ps_restore: PsRestore = setting(
        kinds.choice(PsRestore), PsRestore.REDO, group="parameter servers",
        what="What happens when no copy of a part of the model is left. redo: that part comes back from the last snapshot, and the tasks "
        "since are trained once more; skip: without that, so what they did to it is lost; stop: the job fails.",
        why="Every record is to count exactly once.",
    )  # fmt: skip
    embedding_threshold: int = setting(
        kinds.integer(0), 2 << 20, group="parameter servers", unit="bytes",
        what="Keras embeddings that are larger than this are kept as rows on the servers; smaller ones travel whole.",
        why="Below it, sending all of a table costs less than looking for its rows.",
    )  # fmt: skip
    embedding_admission: int = setting(
        kinds.integer(1), 1, group="parameter servers", unit="sightings",
        what="An id gets a row of its own when it is trained for the N-th time, N being this; before, it has its initial weights.",
        why="Every id counts unless somebody knows better.",
    )  # fmt: skip

    embedding_expiry: int = setting(
        kinds.integer(0), 0, group="parameter servers", unit="steps",
        what="Rows of embeddings that no minibatch of this many has touched are forgotten; 0: none. An id that comes back begins anew.",
        why="What was learned is kept unless a table would grow for ever.",
    )  # fmt: skip
    lr_staleness_modulation: bool = setting(
        kinds.flag(), False, group="parameter servers",
        what="Divide the learning rate of a minibatch, for each part of the model, by the number of others that were applied there since "
        "its weights were fetched.",
        why="With few workers it only slows learning down; with many it keeps old gradients from doing harm.",
    )  # fmt: skip
    get_model_steps: int = setting(
        kinds.integer(1), 1, group="parameter servers", unit="chunks",
        what="Minibatches from one with which a worker fetches the dense variables to the next; in between it continues with a copy of its "
        "own, to which it applies its own gradients. Rows are fetched for each minibatch, and each is pushed.",
        why="What others have changed is to be seen at once, unless fetching it takes longer than computing.",
    )  # fmt: skip
    max_staleness: int = setting(
        kinds.integer(0), 0, group="parameter servers", unit="minibatches",
        what="A minibatch is computed again if more than this many others were applied to a part of the model since its weights were "
        "fetched; 0: no limit. A worker's own minibatch before counts.",
        why="Computing again costs more than most old gradients do harm.",
    )  # fmt: skip
    row_dtype: WireDtype = setting(
        kinds.choice(WireDtype), WireDtype.FLOAT32, group="parameter servers",
        what="What rows of embeddings are while workers fetch them: float32, or bfloat16, which is half the bytes. Servers keep float32, "
        "and results have it.",
        why="Gradients are then those of rounded rows; few jobs wait for the network that long.",
    )  # fmt: skip

    # ------------------------------------------------------------------ output
    output: str = setting(
        kinds.path(), "", group="output",
        what="Where the trained model is written, or the directory of predictions, or their table as a URL "
        "(sqlite:///FILE?table=NAME); nothing is written if not given.",
        why="A first try should leave nothing behind.",
    )  # fmt: skip
    output_format: str = setting(
        kinds.text("NAME"), "", group="output", what="keras: one .keras file; saved_model: a SavedModel directory; parquet: a "
        "directory of Parquet files, with the trained rows of tables on parameter servers, and the variables; other frameworks have "
        "others. The framework's own file if not given. Predictions: parquet, which is the default, or csv.",
        why="The file that the framework itself reads.",
    )  # fmt: skip
    summary: str = setting(
        kinds.path("FILE"), "", group="output",
        what="File of this machine to which the job's summary is written as JSON, also if it failed.",
        why="The job's folder has one in any case; on Kubernetes `elasticdl status` shows it until the job is removed.",
    )  # fmt: skip
    audit: str = setting(
        kinds.path("DIR"), "", group="output",
        what="Directory, one for each job, for the workers' records of what they trained, for `elasticdl audit`.",
        why="It grows with the data, so it is written for those who ask.",
    )  # fmt: skip
    tensorboard_log_dir: str = setting(
        kinds.path("DIR"), "", group="output",
        what="Directory, one for each job, to which the master writes event files for TensorBoard: loss, records per second, workers, and "
        "metrics of evaluations. Needs the package tensorboardX.",
        why="The job's page shows the same; TensorBoard compares jobs.",
    )  # fmt: skip
    checkpoint_dir: str = setting(
        kinds.path("DIR"), "", group="output",
        what="Directory for checkpoints, which stay when the job ends; on Kubernetes one that all pods share. Without it there are "
        "snapshots for this job alone in its folder, and on Kubernetes none.",
        why="On one machine every process sees the job's folder; pods share only what is mounted.",
    )  # fmt: skip
    checkpoint_steps: int = setting(
        kinds.integer(0), 0, group="output", unit="steps",
        what="Steps between two checkpoints, or snapshots; 0: one at the end of each epoch.",
        why="A running job needs them only if all workers die at once, or all servers of a part of the model.",
    )  # fmt: skip
    checkpoint_best: BestMetric | None = setting(
        kinds.best_metric(), None, group="output",
        what="A checkpoint after each evaluation in which this metric is the best so far; it is kept until another is better.",
        why="The last state of a job is not always the one that you want. Less is better unless `:max` follows the name.",
    )  # fmt: skip
    keep_checkpoint_max: int = setting(
        kinds.integer(0), 3, group="output", unit="checkpoints",
        what="Checkpoints that are kept in checkpoint_dir, the newest; 0: all.",
        why="One may turn out to be damaged, or to be of a model that has gone astray; each is as large as the model.",
    )  # fmt: skip
    checkpoint_dir_for_init: str = setting(
        kinds.path("DIR"), "", group="output",
        what="The checkpoint to train on from, to evaluate or to predict with, or a directory of checkpoints, of which the newest is "
        "taken; with any number of workers and servers. num_epochs and max_step count from the very beginning.",
        why="A job begins anew unless somebody says otherwise.",
    )  # fmt: skip
    log_loss_steps: int = setting(
        kinds.integer(1), 100, group="output", unit="steps",
        what="Steps between two lines of progress where there is no terminal; slow steps get one a minute.",
        why="Enough to see a curve in a log file, too little to drown it.",
    )  # fmt: skip

    # ------------------------------------------------------------------ pods
    image_name: str = setting(
        kinds.text("IMAGE"), "", group="pods",
        what="Image of the job's pods, with this package and the framework; makes it a job on Kubernetes.",
        why="A local job needs none.",
    )  # fmt: skip
    worker_image: str = setting(
        kinds.text("IMAGE"), "", group="pods", what="Image of the workers, if it is another one.",
        why="Masters and parameter servers need no GPU libraries, but one image is less to build.",
    )  # fmt: skip
    image_pull_policy: PullPolicy = setting(
        kinds.choice(PullPolicy), PullPolicy.IF_NOT_PRESENT, group="pods", what="When a node fetches the image.",
        why="An image is large, and a tag that moves under a running job would mix versions.",
    )  # fmt: skip
    master_resource_request: Mapping[str, str] = setting(
        kinds.resources(), {"cpu": "100m", "memory": "512Mi"}, group="pods", what="Resources that the master's pod is promised.",
        why="It waits most of the time; indexing data takes the memory.",
    )  # fmt: skip
    worker_resource_request: Mapping[str, str] = setting(
        kinds.resources(), {"cpu": "1", "memory": "2Gi"}, group="pods", what="Resources that each worker's pod is promised.",
        why="A core and enough memory for a framework and a small model.",
    )  # fmt: skip
    ps_resource_request: Mapping[str, str] = setting(
        kinds.resources(), {"cpu": "1", "memory": "2Gi"}, group="pods",
        what="Resources that each parameter server's pod is promised.",
        why="A core serves some workers; how much memory the tables take nobody else knows.",
    )  # fmt: skip
    master_resource_limit: Mapping[str, str] = setting(
        kinds.resources(), {}, group="pods", what="Resources that the master's pod may not exceed.",
        why="Without a limit idle cores are used.",
    )  # fmt: skip
    worker_resource_limit: Mapping[str, str] = setting(
        kinds.resources(), {}, group="pods", what="Resources that a worker's pod may not exceed.",
        why="A limit of processors slows a pod down on an idle node too; how many threads compute follows from the request.",
    )  # fmt: skip
    ps_resource_limit: Mapping[str, str] = setting(
        kinds.resources(), {}, group="pods", what="Resources that a parameter server's pod may not exceed.",
        why="Tables grow with what is seen of the data, and a server that runs out of memory takes its part of the model along.",
    )  # fmt: skip
    master_pod_priority: str = setting(
        kinds.text("CLASS"), "", group="pods", what="PriorityClass of the master's pod.",
        why="The cluster has a default.",
    )  # fmt: skip
    worker_pod_priority: Priority = setting(
        kinds.priority(), Priority(), group="pods",
        what="PriorityClass of the workers' pods; a share such as 0.5: that many get `high`, the others `low`.",
        why="The cluster has a default.",
    )  # fmt: skip
    ps_pod_priority: str = setting(
        kinds.text("CLASS"), "", group="pods", what="PriorityClass of the parameter servers' pods, one for all.",
        why="The cluster has a default; no server can be spared as a worker can, so there are no shares.",
    )  # fmt: skip
    volume: tuple[Volume, ...] = setting(
        kinds.volumes(), (), group="pods",
        what="Volumes of every pod: claim_name, host_path, secret, config_map, empty_dir or nfs, each with mount_path.",
        why="Data and results lie somewhere else for everybody.",
    )  # fmt: skip
    node_dir: str = setting(
        kinds.path("DIR"), "", group="pods",
        what="Directory on a volume by which the pods of one node reach each other, such as a host_path: they exchange gradients in "
        "memory, and one worker of each node exchanges them with other nodes.",
        why="Pods share nothing of their node unless they are allowed to.",
    )  # fmt: skip
    envs: Mapping[str, str] = setting(
        kinds.environment(), {}, group="pods", what="Environment variables of every pod.",
        why="Pods begin with what their image says.",
    )  # fmt: skip
    populate_env_names: str = setting(
        kinds.pattern(), "", group="pods",
        what="Variables of your own environment whose whole names match are copied into every pod; --envs wins.",
        why="Nothing of your environment leaves your machine unasked.",
    )  # fmt: skip
    pod_template: Mapping[str, Any] = setting(
        kinds.pod_fragments(), {}, group="pods",
        what="Fragment that is merged into every pod: `metadata` (labels, annotations) and `spec` (nodeSelector, tolerations, affinity, "
        "imagePullSecrets and their like); below `master`, `worker` and `ps` the same for those only.",
        why="What clusters want of pods differs too much for settings of our own.",
    )  # fmt: skip
    cluster_spec_json: Mapping[str, Any] = setting(
        kinds.cluster_fragments(), {}, group="pods",
        what="The same as one JSON object: `pod_spec` has a fragment like pod_template's, `service_spec` one of the Service.",
        why="Programs that submit jobs write JSON more easily than files.",
    )  # fmt: skip
    cluster_spec: str = setting(
        kinds.path("FILE.py"), "", group="pods",
        what="Python file whose `cluster` has `with_pod(pod)` and `with_service(service)`; each gets a manifest and returns it changed.",
        why="For what no fragment can say. Only the submitting command runs it.",
    )  # fmt: skip

    # ------------------------------------------------------------------ faults
    oom_memory_limit: str = setting(
        kinds.memory(), "", group="faults",
        what="How far the workers' limit of memory is raised, by half each time, after one ran out of it; never if not given.",
        why="How much of a shared cluster a job may take is its owner's decision.",
    )  # fmt: skip
    relaunch_on_worker_failure: int = setting(
        kinds.integer(0), 1, group="faults", unit="times",
        what="How often one worker is started again after an error of its program; kills and preemptions never count.",
        why="Once tells an accident from a mistake in the program.",
    )  # fmt: skip
    heartbeat_seconds: float = setting(
        kinds.number(0), 0.5, group="faults", unit="seconds", what="Time between two heartbeats of a worker.",
        why="A tenth of the time after which silence alone is believed.",
    )  # fmt: skip
    witness_seconds: float = setting(
        kinds.number(0), 5.0, group="faults", unit="seconds",
        what="How long one witness alone (such as missed heartbeats) must last before a worker is evicted; two evict at once.",
        why="Longer than a machine under load pauses a process.",
    )  # fmt: skip
    silence_seconds: float = setting(
        kinds.number(0), 5.0, group="faults", unit="seconds",
        what="Silence in the middle of a transfer after which a peer counts as lost; waiting for its contribution never does.",
        why="Longer than TCP needs to send a lost packet again.",
    )  # fmt: skip
    stall_seconds: float = setting(
        kinds.number(0), 60.0, group="faults", unit="seconds",
        what="Least time without progress after which a worker that still sends heartbeats is evicted.",
        why="A first trace or a compilation may take most of a minute.",
    )  # fmt: skip
    start_seconds: float = setting(
        kinds.number(0), 600.0, group="faults", unit="seconds",
        what="How long a worker or parameter server that sends heartbeats may take to get ready; then it is replaced.",
        why="Loading a large model from a slow volume and tracing it take minutes, hardly ever ten.",
    )  # fmt: skip
    stall_steps: float = setting(
        kinds.number(0), 10.0, group="faults", unit="median steps",
        what="The same, as a multiple of the median step; the longer of the two counts.",
        why="No worker of a healthy group is ten times slower than the others.",
    )  # fmt: skip
    moment_seconds: float = setting(
        kinds.number(0, inclusive=True), 0.05, group="faults", unit="seconds",
        what="How long the master waits for the others' rings to end when a worker has left its own.",
        why="A ring that is about to complete should; nobody notices the wait.",
    )  # fmt: skip

    # ------------------------------------------------------------------ process
    log_level: LogLevel = setting(
        kinds.choice(LogLevel), LogLevel.INFO, group="process", what="Least weight of what the job's processes log.",
        why="Every change of the group is one line; nothing repeats by the step.",
    )  # fmt: skip
    status_port: int = setting(
        kinds.integer(0, zero="any"), 0, group="process",
        what="Port of this machine at which the page of a local job is; 0 or any: one that is free. `elasticdl status JOB --open` says "
        "the address.",
        why="Several jobs run on one machine; a fixed port is for Prometheus, and for tunnels.",
    )  # fmt: skip
    metrics_port: int = setting(
        kinds.integer(0, zero="none"), 0, group="process",
        what="Port at which the Service of a job on Kubernetes has its figures for Prometheus, by https; 0 or none: they are not served. A "
        "local job has them at its page.",
        why="A cluster without Prometheus needs no open port.",
    )  # fmt: skip
    spare_process: bool = setting(
        kinds.flag(), True, group="process",
        what="Let a local job with several workers have a process that has imported the framework, and is the next worker that is started.",
        why="A worker that was killed is back without the seconds of the import. With TensorFlow a spare has 0.2 GB of memory of its own.",
    )  # fmt: skip
    detach: bool = setting(
        kinds.flag(), False, group="process", what="Leave the job running and return at once; in Python `wait=False`.",
        why="People want to watch a job that they have just started.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        check(self)

    @property
    def on_kubernetes(self) -> bool:
        """Whether the job's processes are pods."""
        return self.platform is Platform.KUBERNETES or (
            self.platform is Platform.AUTO and bool(self.image_name)
        )

    @property
    def keeps_spare(self) -> bool:
        """Whether the job has a process beside its workers that becomes the next one."""
        several = self.num_workers.maximum > 1 and self.distribution_strategy is not Strategy.LOCAL
        return self.spare_process and several and not self.on_kubernetes and not self.job_command

    @property
    def accumulates(self) -> bool:
        """Whether parameter servers sum up the gradients of several minibatches before they apply them."""
        return self.num_ps_pods > 0 and not self.use_async

    @property
    def data(self) -> str:
        """What the job goes through, in the words of the setting that names it."""
        match self.kind:
            case JobKind.TRAIN:
                return self.training_data
            case JobKind.EVALUATE:
                return self.validation_data
            case JobKind.PREDICT:
                return self.prediction_data
            case JobKind.PROCESS:
                return ""  # its program says it

    @property
    def output_table(self) -> OutputTable | None:
        """The table of a database to which predictions go; None if they go to files."""
        return table_of(self.output) if self.kind is JobKind.PREDICT else None

    @property
    def path_written(self) -> str:
        """The path of the result, or of the database that is to have it; empty if it has none."""
        table = self.output_table
        return self.output if table is None else table.file

    @property
    def short_gradients(self) -> bool:
        """Whether gradients travel as bfloat16."""
        return self.gradient_dtype is WireDtype.BFLOAT16

    @property
    def short_rows(self) -> bool:
        """Whether the embedding rows that workers pull travel as bfloat16."""
        return self.row_dtype is WireDtype.BFLOAT16

    @property
    def replicas(self) -> int:
        """How many parameter servers hold each part of the model."""
        return self.ps_replicas or min(2, self.num_ps_pods)

    def to_json(self) -> dict[str, Any]:
        """Return the settings as plain JSON values with their format number; `from_json` is the inverse."""
        settings = {name: declared.kind.write(getattr(self, name)) for name, declared in SETTINGS.items()}
        return {"format": FORMAT, "kind": self.kind.value, "settings": settings}


SETTINGS: dict[str, Setting] = {
    declared.name: setting_of(declared) for declared in fields(JobSpec) if declared.name != "kind"
}
"""Every setting by name, in the order of `--help`."""

_OF_PREDICTION = frozenset({"prediction_data", "prediction_keep", "prediction_outputs_processor"})
_OF_TRAINING_GROUPS = frozenset({"parameter servers"})
_OF_CHECKPOINTS = frozenset(
    {"optimizer", "callbacks", "eval_metrics_fn", "checkpoint_dir_for_init", "embedding_threshold"}
)
"""What is needed to make a trained model of a checkpoint."""
_OF_TRAINING = frozenset(
    {
        "loss", "optimizer", "lr_scheduler", "callbacks", "training_data", "evaluation_steps", "evaluate_at_epoch_end", "num_epochs",
        "max_step", "shuffle", "on_nan", "distribution_strategy", "global_batch_size", "output", "output_format", "log_loss_steps", "audit",
        "tensorboard_log_dir", "checkpoint_dir", "checkpoint_steps", "checkpoint_dir_for_init", "keep_checkpoint_max", "silence_seconds",
        "moment_seconds", "checkpoint_best", "job_command", "work", "node_dir", "gradient_dtype",
    }
)  # fmt: skip

_HOW_TO_TRAIN = frozenset(
    {
        "num_epochs", "max_step", "shuffle", "on_nan", "distribution_strategy", "global_batch_size", "log_loss_steps", "evaluation_steps",
        "evaluate_at_epoch_end", "tensorboard_log_dir", "checkpoint_steps", "keep_checkpoint_max", "silence_seconds", "moment_seconds",
        "node_dir", "gradient_dtype",
    }
)  # fmt: skip
"""What says how to train, and neither what with nor where anything is written."""
_OF_PROGRAMS = frozenset({"job_command", "work", "output"})
"""What says what program runs, how its workers share its work, and where its result goes."""


def settings_of(kind: JobKind) -> dict[str, Setting]:
    """Return the settings that a job of this kind has."""
    match kind:
        case JobKind.TRAIN:
            left_out = _OF_PREDICTION | {"trained_model"}
        case JobKind.EVALUATE:
            left_out = (_OF_TRAINING | _OF_PREDICTION) - {"loss"} - _OF_CHECKPOINTS
        case JobKind.PREDICT:
            left_out = (_OF_TRAINING | {"validation_data"}) - {"output", "output_format"} - _OF_CHECKPOINTS
        case JobKind.PROCESS:
            return {
                name: one for name, one in settings_of(JobKind.TRAIN).items() if not why_not_of_tasks(name)
            }
    return {
        name: setting
        for name, setting in SETTINGS.items()
        if name not in left_out
        and (kind is JobKind.TRAIN or name in _OF_CHECKPOINTS or setting.group not in _OF_TRAINING_GROUPS)
    }


def settings_of_loop() -> dict[str, Setting]:
    """Return the settings of a job with a custom training loop, besides its command."""
    return {
        name: setting
        for name, setting in settings_of(JobKind.TRAIN).items()
        if name != "job_command" and name not in program.OWN and setting.group not in program.OWN_GROUPS
    }


def why_not_of_loop(name: str) -> str:
    """Return why a custom training loop does not have this setting; empty if it has."""
    setting = SETTINGS.get(name)
    group = "" if setting is None else setting.group
    return program.OWN.get(name, "") or program.OWN_GROUPS.get(group, "")


def why_not_of_tasks(name: str) -> str:
    """Return why a program that processes tasks does not have this setting; empty if it has."""
    if name in _OF_PROGRAMS:
        return ""
    if name in _OF_TRAINING or name in _HOW_TO_TRAIN or name in program.OWN:
        return "a job of tasks (--work=tasks) trains nothing, and its program says what it processes"
    return why_not_of_loop(name)


def idle_settings(kind: JobKind) -> frozenset[str]:
    """Return the settings that a job of this kind accepts although they change nothing, so that flags of the training can stay."""
    if kind in (JobKind.TRAIN, JobKind.PROCESS):
        return frozenset()
    of_groups = {name for name, setting in SETTINGS.items() if setting.group in _OF_TRAINING_GROUPS}
    return (_HOW_TO_TRAIN | of_groups) - settings_of(kind).keys()


REQUIRED: dict[JobKind, tuple[str, ...]] = {
    JobKind.TRAIN: ("model_def", "training_data"),
    JobKind.EVALUATE: ("model_def", "validation_data"),
    JobKind.PREDICT: ("model_def", "prediction_data"),
    JobKind.PROCESS: ("job_command",),
}
"""Settings without which no job of a kind can begin."""


def from_json(body: object) -> JobSpec:
    """Read what `JobSpec.to_json` wrote.

    Raises BadSetting for another format, naming both numbers, and for content that is not a job's.
    """
    if not isinstance(body, Mapping) or body.get("format") != FORMAT:
        written = f"format {body.get('format')!r}" if isinstance(body, Mapping) else "no format"
        raise BadSetting(
            f"the job's settings have {written}, this version of elasticdl reads format {FORMAT}; "
            "use the version that started the job"
        )
    settings = body.get("settings")
    if not isinstance(settings, Mapping) or settings.keys() != SETTINGS.keys():
        raise BadSetting(
            "the job's settings are not those of this version of elasticdl; use the version that started the job"
        )
    try:
        read = {name: SETTINGS[name].kind.read(value) for name, value in settings.items()}
        return JobSpec(kind=JobKind(body["kind"]), **read)
    except (TypeError, ValueError, KeyError) as error:
        raise BadSetting(f"the job's settings can't be read: {error}") from error


def from_text(content: bytes | str) -> JobSpec:
    """Read the text of `JobSpec.to_json`. Raises BadSetting."""
    try:
        body = reading.load(content)
    except ValueError as error:
        raise BadSetting(f"the job's settings can't be read: {error}") from error
    return from_json(body)


def check(spec: JobSpec) -> None:
    """Check what holds between settings. Raises BadSetting."""
    if spec.kind is JobKind.PREDICT and spec.output_format not in ("", PARQUET, CSV):
        raise BadSetting(
            f"--output_format: predictions are written as {PARQUET} or {CSV}, received {spec.output_format!r}"
        )
    table = spec.output_table
    if table is not None and spec.output_format:
        raise BadSetting(
            f"--output_format: --output is a table, which has no format; leave this out, received {spec.output_format!r}"
        )
    if table is not None:
        for name in spec.prediction_keep:
            table.check_name(name, "the column")
    if taken := sorted({"shard", "record"}.intersection(spec.prediction_keep)):
        raise BadSetting(
            f"--prediction_keep: {taken[0]!r} says which record a prediction is of; leave it out"
        )
    module, _, symbol = spec.model_def.rpartition(".")
    is_symbol = bool(module) and all(part.isidentifier() for part in [*module.split("."), symbol])
    if not is_symbol and not spec.job_command:
        raise BadSetting(
            f"--model_def: expected MODULE.SYMBOL, such as mnist.mnist_functional_api.custom_model, received {spec.model_def!r}"
        )
    if spec.global_batch_size % spec.minibatch_size:
        lower = spec.global_batch_size // spec.minibatch_size * spec.minibatch_size
        near = f"{lower} or {lower + spec.minibatch_size}" if lower else str(spec.minibatch_size)
        raise BadSetting(
            f"--global_batch_size: {spec.global_batch_size} is not a multiple of minibatch_size {spec.minibatch_size}; use {near}"
        )
    if spec.distribution_strategy is Strategy.LOCAL and spec.num_workers.maximum != 1:
        raise BadSetting(
            f"--num_workers: the Local strategy trains with one member in this process, received {spec.num_workers}; "
            "leave num_workers out, or use --distribution_strategy=AllreduceStrategy"
        )
    _check_loop(spec)
    _check_files(spec)
    _check_weights(spec)
    _check_servers(spec)
    _check_evaluation(spec)
    _check_checkpoints(spec)
    if spec.status_port > _HIGHEST_PORT:
        raise BadSetting(
            f"--status_port: ports are numbers up to {_HIGHEST_PORT}, received {spec.status_port}; leave it out for any free one"
        )
    if spec.status_port and spec.on_kubernetes:
        raise BadSetting(
            "--status_port: the page of a job on Kubernetes is shown by `elasticdl status JOB --namespace=NAME --open`; leave it out"
        )
    if spec.metrics_port and not spec.on_kubernetes:
        raise BadSetting(
            "--metrics_port: a local job has its figures at /metrics of its page, whose port is --status_port; leave it out"
        )
    if spec.metrics_port and not _LOWEST_PORT <= spec.metrics_port <= _HIGHEST_PORT:
        raise BadSetting(
            f"--metrics_port: pods may listen at ports from {_LOWEST_PORT:,} to {_HIGHEST_PORT:,}, received {spec.metrics_port}; "
            "9464 is usual for figures"
        )
    _check_node_dir(spec)
    if spec.oom_memory_limit:
        limit = spec.worker_resource_limit.get("memory", "")
        if not limit or amount(limit) >= amount(spec.oom_memory_limit):
            raise BadSetting(
                f"--oom_memory_limit: {spec.oom_memory_limit} is to be more than the memory of --worker_resource_limit, "
                f"which is {limit or 'not given'}"
            )
    trains = spec.kind is JobKind.TRAIN
    if trains and spec.output and spec.output_format == PARQUET and not spec.num_ps_pods:
        raise BadSetting(
            "--output_format: parquet is for the tables of parameter servers, of which this job has none; leave it out, or train with "
            "--num_ps_pods"
        )


_FILES = (
    "trained_model", "output", "summary", "audit", "data_cache", "checkpoint_dir", "checkpoint_dir_for_init", "tensorboard_log_dir",
)  # fmt: skip


def _check_files(spec: JobSpec) -> None:
    """Check that no URL stands where a path is meant: it would name a directory such as `s3:`."""
    for name in _FILES:
        given = getattr(spec, name)
        if "://" in given and not (name == "output" and spec.output_table is not None):
            raise BadSetting(
                f"--{name}: it is a path of this file system, or of a volume of pods; only data is read from URLs; received {given!r}"
            )


def _check_node_dir(spec: JobSpec) -> None:
    if not spec.node_dir:
        return
    if not spec.on_kubernetes:
        raise BadSetting(
            "--node_dir: is for pods; the workers of a local job exchange gradients in memory without it; leave it out"
        )
    if spec.num_ps_pods:
        raise BadSetting(
            "--node_dir: with --num_ps_pods workers exchange no gradients with each other; leave one of the two out"
        )
    if len(spec.node_dir.encode()) > _LONGEST_NODE_DIR:
        raise BadSetting(
            f"--node_dir: sockets are made there, whose paths are short: it may have {_LONGEST_NODE_DIR} bytes, and has "
            f"{len(spec.node_dir.encode())}: {spec.node_dir!r}; mount the volume at a shorter path"
        )


def _check_loop(spec: JobSpec) -> None:
    """Check that a job with a custom training loop has no settings but its own. What its program says of its data may be among them."""
    if not spec.job_command and spec.work is Work.TASKS:
        raise BadSetting(
            "--work: tasks are for a program; start it with `elasticdl run --work=tasks -- python process.py`"
        )
    if not spec.job_command:
        return
    why_not = why_not_of_tasks if spec.kind is JobKind.PROCESS else why_not_of_loop
    for name, declared in SETTINGS.items():
        if name not in program.PLANNED and getattr(spec, name) != declared.default and (why := why_not(name)):
            raise BadSetting(f"--{name}: {why}; leave it out")


def _check_weights(spec: JobSpec) -> None:
    if spec.kind in (JobKind.TRAIN, JobKind.PROCESS):
        return
    if not spec.trained_model and not spec.checkpoint_dir_for_init:
        raise BadSetting(
            "--trained_model or --checkpoint_dir_for_init is required: what `elasticdl train` wrote to --output, or a checkpoint"
        )
    if spec.trained_model and spec.checkpoint_dir_for_init:
        raise BadSetting(
            "--checkpoint_dir_for_init: the weights are those of --trained_model already; leave one of the two out"
        )


def _check_evaluation(spec: JobSpec) -> None:
    if spec.evaluation_steps and not spec.validation_data:
        raise BadSetting("--evaluation_steps: there is nothing to evaluate; name it with --validation_data")
    if 0 < spec.max_step < spec.evaluation_steps:
        raise BadSetting(
            f"--evaluation_steps: the job ends after {spec.max_step} steps (--max_step), before the first evaluation after "
            f"{spec.evaluation_steps}; leave it out for one evaluation at the end"
        )


def _check_checkpoints(spec: JobSpec) -> None:
    if spec.keep_checkpoint_max != SETTINGS["keep_checkpoint_max"].default and not spec.checkpoint_dir:
        raise BadSetting(
            "--keep_checkpoint_max: only jobs with --checkpoint_dir keep checkpoints; name a directory, or leave this out"
        )
    if spec.checkpoint_best is None:
        return
    if not spec.checkpoint_dir:
        raise BadSetting(
            "--checkpoint_best: there is no place for checkpoints; name one with --checkpoint_dir"
        )
    if not spec.validation_data:
        raise BadSetting("--checkpoint_best: nothing is evaluated; name data with --validation_data")


def _check_servers(spec: JobSpec) -> None:
    strategy = spec.distribution_strategy
    if strategy is Strategy.PARAMETER_SERVER and not spec.num_ps_pods:
        raise BadSetting(
            "--distribution_strategy: ParameterServerStrategy needs servers; say how many with --num_ps_pods"
        )
    if not spec.num_ps_pods:
        for name in (
            "grads_to_wait",
            "sync_version_tolerance",
            "ps_replicas",
            "ps_restore",
            "embedding_admission",
            "embedding_expiry",
            "lr_staleness_modulation",
            "get_model_steps",
            "max_staleness",
            "row_dtype",
        ):
            if getattr(spec, name) != SETTINGS[name].default:
                raise BadSetting(
                    f"--{name}: is for parameter servers, of which there are none; say how many with --num_ps_pods, or leave it out"
                )
        return
    if strategy not in (Strategy.AUTO, Strategy.PARAMETER_SERVER):
        raise BadSetting(
            f"--num_ps_pods: {strategy.value} has no parameter servers; leave one of the two out"
        )
    _check_accumulation(spec)
    if spec.get_model_steps > 1:
        for name in ("lr_staleness_modulation", "max_staleness"):
            if getattr(spec, name):
                raise BadSetting(
                    f"--get_model_steps: a worker changes its copy of the weights itself, so --{name} has no one time from which to count; "
                    "leave one of the two out"
                )
    if spec.replicas > 2:
        raise BadSetting(
            f"--ps_replicas: each part of the model is held by 1 server or 2, received {spec.ps_replicas}"
        )
    if spec.replicas > spec.num_ps_pods:
        raise BadSetting(
            f"--ps_replicas: {spec.ps_replicas} servers are to hold each part of the model, and --num_ps_pods is {spec.num_ps_pods}"
        )
    if spec.global_batch_size:
        raise BadSetting(
            "--global_batch_size: with parameter servers a step has the records of one minibatch, with --use_async=false those of "
            "grads_to_wait minibatches; leave it out"
        )
    if spec.num_workers.minimum > 1:
        raise BadSetting(
            f"--num_workers: with parameter servers any number of workers trains, so there is no minimum; received {spec.num_workers}"
        )


_STEP_GRADIENTS = 1 << 16
"""Minibatches of a step at most: servers refuse who waits for more."""


def _check_accumulation(spec: JobSpec) -> None:
    if not spec.accumulates:
        for name in ("grads_to_wait", "sync_version_tolerance"):
            if getattr(spec, name) != SETTINGS[name].default:
                raise BadSetting(
                    f"--{name}: is for steps of several minibatches, and each is applied by itself here; add --use_async=false, or "
                    "leave it out"
                )
        return
    if spec.get_model_steps > 1:
        raise BadSetting(
            "--get_model_steps: with --use_async=false each minibatch is computed with the weights of its step; leave it out"
        )
    if spec.grads_to_wait > _STEP_GRADIENTS:
        raise BadSetting(
            f"--grads_to_wait: a step is made of {_STEP_GRADIENTS:,} minibatches at most; received {spec.grads_to_wait}"
        )
    for name in ("max_staleness", "lr_staleness_modulation"):
        if getattr(spec, name) != SETTINGS[name].default:
            raise BadSetting(
                f"--{name}: with --use_async=false nothing is staler than --sync_version_tolerance={spec.sync_version_tolerance} says; "
                "leave it out"
            )
    if spec.ps_restore is PsRestore.SKIP:
        raise BadSetting(
            "--ps_restore: with --use_async=false all parts of the model are of the same step, so none continues without what the others "
            "have; use redo or stop"
        )
