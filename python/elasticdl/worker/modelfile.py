"""The user's model file: imports it and collects its symbols.

It builds no model and reads no data. The command line has checked the file by its syntax tree; here is what only running shows, so
every error names the file and keeps the user's own traceback.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from elasticdl.compat.finder import importable
from elasticdl.errors import BadModel
from elasticdl.spec.earlier import hint
from elasticdl.spec.framework import Symbol
from elasticdl.spec.jobspec import JobSpec
from elasticdl.worker.contract.usermodel import UserModel
from elasticdl.worker.modelzoo import ModelZoo, open_zoo
from elasticdl.worker.raised import own_frames, why

SERVING_MODEL = "serving_model"
"""Name of the function that returns what is written in place of a trained model; frameworks that have none do not look at it."""


def load(spec: JobSpec, symbols: Sequence[Symbol], model_arguments: Sequence[str] = ()) -> UserModel:
    """Import the file of `spec.model_def` and collect its symbols; other files of the model zoo may be imported by it.

    `symbols`: of the framework, with the arguments that they are called with. `model_arguments`: what the model function gets if it
    takes it, besides its parameters.

    Raises BadModel: no such file, an exception while importing, a missing symbol, a symbol that can't be called as it has to be.
    """
    zoo = open_zoo(Path(spec.model_zoo))
    name, _, symbol = spec.model_def.rpartition(".")
    module = _import(zoo, name)
    path = Path(module.__file__ or "")

    def find(setting: str, wanted: str, required: bool) -> Any:
        # a dotted symbol lives in another file of the zoo
        elsewhere, _, last = wanted.rpartition(".")
        holder = _import(zoo, elsewhere) if elsewhere else module
        found = getattr(holder, last, None)
        if found is None and (required or elsewhere):
            known = (
                ", ".join(n for n, v in vars(holder).items() if callable(v) and not n.startswith("_"))
                or "nothing"
            )
            raise BadModel(
                f"{holder.__file__}: --{setting} names {last!r}, which the file does not define; it defines {known}"
            )
        return found

    def call(
        setting: str,
        wanted: str,
        required: bool,
        arguments: int = 0,
        keywords: Mapping[str, Any] | None = None,
    ) -> Any:
        found = find(setting, wanted, required)
        if found is not None:
            _check_call(path, wanted, found, (None,) * arguments, keywords or {})
        return found

    found = {
        one.setting: call(one.setting, getattr(spec, one.setting), one.required, len(one.arguments))
        if one.is_function
        else find(one.setting, getattr(spec, one.setting), one.required)
        for one in symbols
    }
    model = find("model_def", symbol, True)
    serving = getattr(module, SERVING_MODEL, None)
    if serving is not None:
        _check_call(path, SERVING_MODEL, serving, (None,), {})
    offered = dict.fromkeys(accepted(model, model_arguments))
    return UserModel(
        path=path,
        model=call("model_def", symbol, True, keywords={**offered, **spec.model_params}),
        params=dict(spec.model_params),
        loss=found.get("loss"),
        optimizer=found["optimizer"],
        feed=found["feed"],
        callbacks=found.get("callbacks"),
        custom_data_reader=find("custom_data_reader", spec.custom_data_reader, False),
        lr_scheduler=found.get("lr_scheduler"),
        eval_metrics_fn=found.get("eval_metrics_fn"),
        prediction_outputs_processor=found.get("prediction_outputs_processor"),
        serving_model=serving,
    )


def accepted(function: Callable[..., Any], names: Sequence[str]) -> list[str]:
    """Return those of the names that a function has parameters of."""
    try:
        # a class by its __init__, which its metaclass may hide
        called = vars(function).get("__init__", function) if isinstance(function, type) else function
        parameters = inspect.signature(called).parameters
    except (TypeError, ValueError):  # no function, or a builtin
        return []
    return [name for name in names if name in parameters]


def _import(zoo: ModelZoo, dotted: str) -> ModuleType:
    """Import MODEL_ZOO/a/b.py for `a.b`, from that path whatever else is called so."""
    path = zoo.directory.joinpath(*dotted.split(".")).with_suffix(".py")
    name = zoo.module_name(dotted)
    known = sys.modules.get(name)
    if known is not None and known.__file__ is not None and Path(known.__file__) == path:
        return known
    if not path.is_file():
        raise BadModel(
            f"{path}: no such file; --model_def a.b.symbol is the symbol in the file MODEL_ZOO/a/b.py, and --model_zoo is "
            f"{zoo.directory}"
        )
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None, "a .py file always has a loader"
    assert found.loader is not None, "a .py file always has a loader"
    module = importlib.util.module_from_spec(found)
    before = sys.modules.get(name)
    sys.modules[name] = module
    try:
        with importable():
            found.loader.exec_module(module)
    except Exception as error:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        raise BadModel(f"{path}: importing it failed: {describe(error, path)}") from error
    return module


def describe(error: BaseException, path: Path) -> str:
    """Say in one line what the user's code raised, with the last line of `path` that it went through."""
    lines = [frame.lineno for frame in own_frames(error) if frame.filename == str(path)]
    where = f" (line {lines[-1]})" if lines else ""
    return f"{why(error)}{where}{hint(path)}"


def _check_call(
    path: Path, name: str, function: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> None:
    if not callable(function):
        raise BadModel(f"{path}: {name} is a {type(function).__name__}, expected a function")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # builtins and some classes have none
        return
    try:
        signature.bind(*arguments, **keywords)
    except TypeError as error:
        given = ", ".join(["…"] * len(arguments) + [f"{key}=…" for key in keywords])
        raise BadModel(f"{path}: {name}{signature} can't be called as {name}({given}): {error}") from None
