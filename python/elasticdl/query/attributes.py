"""What attributes of WITH mean: names in their long form, values of the right type, settings of the job; what means nothing is refused.

The values of `model.` and `optimizer.` are judged in `tabular/network.py`, which knows the models. A name without a prefix is the model's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from elasticdl.query.ownsettings import why_not_in_with
from elasticdl.query.script import Place
from elasticdl.query.statements import Attributes, Evaluate, Explain, Predict, Train
from elasticdl.spec.jobspec import SETTINGS, JobKind, settings_of
from elasticdl.spec.nearest import nearest
from elasticdl.tabular.columns import Value
from elasticdl.tabular.network import MODEL_ATTRIBUTES, OPTIMIZER_ARGUMENTS, target_of

EXPLAINED_ROWS = 10_000
"""Of a table that are explained, unless `explain.rows` says otherwise: 5 passes over them for each column are seconds."""
VALIDATED_FRACTION = 0.1

_PREFIXES = {"runtime": "engine", "summary": "explain", "eval": "validation"}
"""Other names of prefixes, of SQLFlow and of the earlier generation."""
_SQLFLOW = "model.engine_"
"""How SQLFlow has settings of a job, whose server takes no attributes of `engine.` itself."""
_OF_TRAIN = {
    "train.epoch": "a whole number of 1 or more",
    "train.batch_size": "a whole number of 1 or more",
    "train.max_steps": "a whole number of 1 or more",
    "validation.select": "a SELECT in quotes",
    "validation.fraction": "a number above 0 and below 1",
    "validation.metrics": "a list of names",
}
_OF_PREDICT = {
    "predict.extra_outputs": "a list of names",
    "predict.into": "new, replace or append",
}
_OF_EVALUATE = {
    "validation.metrics": "a list of names",
    "predict.into": "new, replace or append",
}
_OF_EXPLAIN = {
    "explain.plot": "the name of a file that ends with .svg or .png",
    "explain.rows": "a whole number of 1 or more",
    "predict.into": "new, replace or append",
}
_JOB_SETTINGS = {
    "train.epoch": "num_epochs",
    "train.batch_size": "minibatch_size",
    "train.max_steps": "max_step",
}
_SUCCESSORS = {
    "model.feature_columns": "is not here: write COLUMN",
    "model.n_classes": "is known from the label; leave it out",
    "model.num_classes": "is known from the label; leave it out",
    "model.loss": "follows from the label; leave it out",
    "train.shuffle": "is not here: rows are shuffled when they are read, and in every epoch again; leave it out",
    "train.verbose": "is not here: write engine.log_loss_steps=N",
    "train.log_every_n_iter": "is not here: write engine.log_loss_steps=N",
    "train.save_checkpoints_steps": "is not here: write engine.checkpoint_steps=N and engine.checkpoint_dir='DIR'",
    "train.disk_cache": "is not here: rows are read once, into files; leave it out",
    "train.num_boost_round": "is XGBoost's, which is not here; train.epoch says how long to train",
    "validation.steps": "is not here: all validation rows are used; validation.fraction says how many there are",
    "validation.start_delay_secs": "is not here: write engine.evaluation_steps=N",
    "validation.throttle_secs": "is not here: write engine.evaluation_steps=N",
    "validation.checkpoint_dir_for_init": "is not here: USING names the model",
    "predict.checkpoint_dir_for_init": "is not here: USING names the model",
    "explain.type": "is not here: all columns are drawn as bars; leave it out",
    "explain.plot_type": "is not here: all columns are drawn as bars; leave it out",
    "engine.type": "is not here: --image_name on the command line says that jobs run on Kubernetes; leave it out",
    "engine.docker_image_repository": "is not here: --image_name on the command line says that jobs run on Kubernetes; leave it out",
}
"""Attributes that are known and mean nothing here → what follows their name."""


_OF_OPTIMIZERS = tuple(f"optimizer.{one}" for one in OPTIMIZER_ARGUMENTS)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What WITH says, in its long form.

    Attributes:
        plan: by dotted names, for `tabular.plan.derive`.
        model: what `model.NAME` says, by NAME: arguments of a model zoo's function.
        settings: of the job.
        validation_select: rows to validate on.
        fraction: of the rows that is put aside for validation.
        metrics: names.
        extra_outputs: further outputs to write.
        into: what becomes of a table that is there: new, replace or append.
        plot: a file to draw into.
        rows: how many are explained.
    """

    plan: Mapping[str, Value] = field(default_factory=dict)
    model: Mapping[str, Value] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)
    validation_select: str | None = None
    fraction: float = VALIDATED_FRACTION
    metrics: tuple[str, ...] = ()
    extra_outputs: tuple[str, ...] = ()
    into: str = "new"
    plot: str | None = None
    rows: int = EXPLAINED_ROWS


def wanted(statement: Train | Predict | Evaluate | Explain) -> Wanted:
    """Return what the attributes of a statement mean. Raises BadStatement at the place of the one that is wrong."""
    known, kind = _known(statement)
    trains = kind is JobKind.TRAIN
    own = settings_of(kind)
    of_ours = (
        isinstance(statement, Train)
        and target_of(statement.target.name if statement.target else None) is not None
    )
    found: dict[str, Value] = {}
    settings: dict[str, object] = {}
    setters: dict[str, str] = {}
    for written, value in statement.attributes.items():
        name = _long(written)
        place = statement.attributes.places[written]
        error = place.error
        if name in found:
            raise error(
                f"{written} and {_written(statement.attributes, name)} are the same; give one of them"
            )
        if name in _SUCCESSORS:
            raise error(f"{written} {_SUCCESSORS[name]}")
        prefix, _, rest = name.partition(".")
        if prefix == "engine":
            if why := why_not_in_with(rest):
                raise error(f"{written} is not for WITH: {why}")
            if rest not in own:
                raise error(
                    f"{written}: a job that is to {kind} has no setting {rest!r}{nearest(rest, own, 'engine.')}"
                )
            setting = rest
        elif name in known:
            if problem := _problem(name, value):
                raise error(f"{written} is {known[name]}; received {problem}")
            setting = _JOB_SETTINGS.get(name, "")
        elif trains and prefix in ("model", "optimizer") and rest and not (of_ours and _strange(name)):
            setting = ""
        else:
            raise error(f"{written} {_unknown(prefix, rest, known, trains)}")
        if setting:
            if setting in setters:
                raise error(f"{written} and {setters[setting]} are the same; give one of them")
            setters[setting] = written
            settings[setting] = _setting(setting, value, place, written)
        found[name] = value
    return Wanted(
        plan=found,
        model={
            name.removeprefix("model."): value for name, value in found.items() if name.startswith("model.")
        },
        settings=settings,
        validation_select=_text(found.get("validation.select")),
        fraction=float(str(found.get("validation.fraction", VALIDATED_FRACTION))),
        metrics=_names(found.get("validation.metrics", ())),
        extra_outputs=_names(found.get("predict.extra_outputs", ())),
        into=str(found.get("predict.into", "new")).lower(),
        plot=_text(found.get("explain.plot")),
        rows=int(str(found.get("explain.rows", EXPLAINED_ROWS))),
    )


def place_of(attributes: Attributes, name: str) -> Place:
    """Return where an attribute stands that is given, whichever of its names is written."""
    return attributes.places[_written(attributes, name)]


def _known(statement: Train | Predict | Evaluate | Explain) -> tuple[Mapping[str, str], JobKind]:
    match statement:
        case Train():
            return _OF_TRAIN, JobKind.TRAIN
        case Predict():
            return _OF_PREDICT, JobKind.PREDICT
        case Evaluate():
            return _OF_EVALUATE, JobKind.EVALUATE
        case Explain():
            return _OF_EXPLAIN, JobKind.EVALUATE


def _long(written: str) -> str:
    prefix, dot, rest = written.partition(".")
    name = f"{_PREFIXES.get(prefix, prefix)}.{rest}" if dot else f"model.{written}"
    return f"engine.{name.removeprefix(_SQLFLOW)}" if name.startswith(_SQLFLOW) else name


def _written(attributes: Attributes, name: str) -> str:
    return next(one for one in attributes if _long(one) == name)


def _strange(name: str) -> bool:
    """Tell whether it is an attribute of a model that our models do not have; a function of a model zoo may have any."""
    return name.startswith("model.") and name.removeprefix("model.") not in MODEL_ATTRIBUTES


def _unknown(prefix: str, rest: str, known: Collection[str], trains: bool) -> str:
    """Return what to say of an attribute that nothing here knows."""
    name = f"{prefix}.{rest}"
    if trains and prefix == "model":
        meant = next((one for one in (*known, *_OF_OPTIMIZERS) if one.partition(".")[2] == rest), "")
        if meant:
            return f"is unknown; write {meant}"
    if rest in SETTINGS and not why_not_in_with(rest) and prefix != "optimizer":
        return f"is a setting of the job; write engine.{rest}"
    if prefix in ("model", "optimizer") and not trains:
        return "is settled when a model is trained; leave it out"
    names = [*known, *(f"model.{one}" for one in MODEL_ATTRIBUTES if trains), "engine.", "optimizer."]
    others = f"; known are {', '.join(known)}, and engine.NAME for settings of the job"
    return f"is unknown{nearest(name, names) or others}"


def _problem(name: str, value: Value) -> str:
    """Return what is wrong with a value, empty if nothing is."""
    match name:
        case "train.epoch" | "train.batch_size" | "train.max_steps" | "explain.rows":
            fits = type(value) is int and value >= 1
        case "validation.fraction":
            fits = isinstance(value, float) and 0 < value < 1
        case "validation.metrics" | "predict.extra_outputs":
            several = (value,) if isinstance(value, str) else value
            fits = (
                isinstance(several, tuple) and bool(several) and all(isinstance(one, str) for one in several)
            )
        case "predict.into":
            fits = isinstance(value, str) and value.lower() in ("new", "replace", "append")
        case "explain.plot":
            fits = isinstance(value, str) and value.lower().endswith((".svg", ".png"))
        case _:
            fits = isinstance(value, str) and bool(value.strip())
    return "" if fits else shown(value)


def _setting(name: str, value: Value, place: Place, written: str) -> object:
    """Return a setting's value as Python callers give it; a list of text is what a flag has several times, or with commas."""
    given = list(value) if isinstance(value, tuple) else value
    if given is None:
        raise place.error(f"{written} has no value; leave it out")
    try:
        SETTINGS[name].kind.read(given)
    except (TypeError, ValueError) as wrong:
        detail = str(wrong)
        more = (
            ""
            if detail.startswith(("invalid literal", "could not convert"))
            else f"; {detail}"
            if detail
            else ""
        )
        raise place.error(
            f"{written}: expected {SETTINGS[name].kind.expected}, received {shown(value)}{more}"
        ) from None
    return given


def shown(value: Value) -> str:
    """Return a value as it is written in a statement."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return "NULL" if value is None else str(value).upper() if isinstance(value, bool) else str(value)


def _names(value: Value) -> tuple[str, ...]:
    """Return names of a list, or of one text with commas."""
    if isinstance(value, tuple):
        return tuple(str(one) for one in value)
    return tuple(one.strip() for one in str(value).split(",") if one.strip())


def _text(value: Value | None) -> str | None:
    return None if value is None else str(value)
