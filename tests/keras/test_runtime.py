"""How the framework is imported."""

import subprocess
import sys

import pytest

from elasticdl.errors import BadSetting
from elasticdl.spec import framework


def test_modules_are_nothing_for_the_garbage_collector() -> None:
    program = (
        "import gc\n"
        "from elasticdl.keras import runtime\n"
        "runtime.start(1)\n"
        "print(gc.isenabled(), gc.get_freeze_count() > 100_000)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.split() == ["True", "True"]


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_a_worker_of_a_job_on_tensorflow_refuses_another_backend(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERAS_BACKEND", backend)
    keras = framework.find("keras")
    for begin in (keras.import_library, lambda: keras.start(1)):
        with pytest.raises(BadSetting, match=rf"KERAS_BACKEND={backend}: the job .* on TensorFlow; unset it"):
            begin()
