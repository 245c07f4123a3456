"""Which library Keras computes with is said once, at submission; what it can't do there is refused, with what to do."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import elasticdl.keras
from elasticdl.errors import BadInput, BadModel, BadSetting
from elasticdl.keras.backends import runtime
from elasticdl.spec import framework
from elasticdl.spec.edge import build, from_arguments
from elasticdl.spec.jobspec import JobSpec
from elasticdl.spec.modelfile import check_model_file

ZOO = Path(__file__).parent / "zoo"


def job(**settings: object) -> JobSpec:
    asked = {"model_zoo": str(ZOO), "model_def": "flowers.custom_model", "training_data": "x"}
    return build(from_arguments({**asked, **settings}))


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_the_environment_chooses_and_the_job_keeps_it(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    assert framework.recorded(job()) == job()
    of_pods = job(envs=f"KERAS_BACKEND={backend}")
    assert framework.recorded(of_pods).framework == f"keras_{backend}"
    monkeypatch.setenv("KERAS_BACKEND", backend)
    for asked in ({}, {"framework": "keras"}):
        kept = framework.recorded(job(**asked))
        assert kept.framework == f"keras_{backend}"
    monkeypatch.delenv("KERAS_BACKEND")
    assert framework.framework_of(kept).name == f"keras_{backend}"  # in a pod
    check_model_file(kept)


def test_a_backend_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torhc")
    with pytest.raises(
        BadSetting, match=r"KERAS_BACKEND: expected jax, tensorflow, torch, .*did you mean torch"
    ):
        check_model_file(job())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"num_ps_pods": 1},
            "--num_ps_pods=1: tables .* by TensorFlow, .*leave it out, or unset KERAS_BACKEND",
        ),
        (
            {"output_format": "saved_model", "output": "m"},
            r"a SavedModel with TensorFlow only.*NAME.keras.*export",
        ),
        (
            {"framework": "keras_torch"},
            "KERAS_BACKEND=jax, and --framework=keras_torch computes with PyTorch",
        ),
    ],
)
def test_what_keras_does_with_tensorflow_only_is_refused_at_submission(
    settings: dict[str, object], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    with pytest.raises(BadInput, match=said):
        check_model_file(job(**settings))


def test_a_process_that_computes_with_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = [framework.find("keras_jax").import_library, lambda: framework.find("keras_jax").start(1)]
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    for one in begin:
        with pytest.raises(
            BadSetting, match=r"KERAS_BACKEND=torch: .* submitted with KERAS_BACKEND=jax .*unset it"
        ):
            one()
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    imported = ModuleType("keras")
    imported.backend = SimpleNamespace(backend=lambda: "tensorflow")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keras", imported)
    for one in begin:
        with pytest.raises(BadSetting, match="has imported Keras with tensorflow already"):
            one()
    with pytest.raises(
        BadModel, match=r"computes with TensorFlow, and Keras with jax here; use keras\.layers"
    ):
        _ = elasticdl.keras.Embedding


@pytest.mark.parametrize(("module", "library"), [("jax", "JAX"), ("torch", "PyTorch")])
def test_a_worker_without_the_library_says_what_to_install(
    module: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("KERAS_BACKEND", "JAX_PLATFORMS", "KERAS_TORCH_DEVICE"):  # set in vain
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        BadSetting,
        match=rf"{library} is not installed where workers run; pip install 'elasticdl\[{module}\]'",
    ):
        runtime.import_keras(module)
