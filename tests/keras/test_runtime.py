"""How the framework is imported."""

import importlib
import os
import subprocess
import sys
import tempfile

import pytest

from elasticdl.errors import BadSetting
from elasticdl.keras import runtime
from elasticdl.spec import framework


def test_what_no_training_needs_is_imported_when_it_is_used_and_nothing_is_collected() -> None:
    """By a callback that draws, or a model file that imports JAX itself: both work."""
    program = (
        "import gc, sys\n"
        "from elasticdl.keras import runtime\n"
        "runtime.start(1)\n"
        "assert gc.isenabled() and gc.get_freeze_count() > 100_000\n"
        "names = ('jax', 'sklearn', 'matplotlib', 'matplotlib.pyplot', 'IPython')\n"
        "assert not {*names} & {*sys.modules}, sorted({*names} & {*sys.modules})\n"
        "import keras, matplotlib\n"
        "assert matplotlib.__version__ and not hasattr(matplotlib, 'pyplot')\n"
        "matplotlib.use('Agg')\n"
        "import numpy as np\n"
        "keras.visualization.plot_image_gallery(np.zeros((4, 8, 8, 3)), rows=2, cols=2, path=sys.argv[1])\n"
        "import jax\n"
        "assert jax.numpy.ones(2).sum() == 2\n"
    )
    with tempfile.NamedTemporaryFile(suffix=".png") as file:
        environment = {**os.environ, "PYTHONPATH": ""}
        command = [sys.executable, "-c", program, file.name]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        assert file.read(4) == b"\x89PNG"


def test_threads_that_have_nothing_to_do_sleep() -> None:
    """TensorFlow's configuration once it has computed: no spinning threads, and as many as were asked for."""
    program = (
        "from elasticdl.keras import runtime\n"
        "runtime.start(3)\n"
        "import tensorflow as tf\n"
        "from tensorflow.python.eager import context\n"
        "assert tf.function(lambda x: x + 1)(tf.constant(1)) == 2\n"
        "told = context.context().config\n"
        "assert told.experimental.disable_thread_spinning\n"
        "assert (told.intra_op_parallelism_threads, told.inter_op_parallelism_threads) == (3, 2)\n"
    )
    environment = {**os.environ, "PYTHONPATH": ""}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def test_a_module_that_is_missing_is_missing() -> None:
    with runtime.later("no_such_package", "no_such_package.part"), pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_package.part")


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_a_worker_of_a_job_on_tensorflow_refuses_another_backend(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERAS_BACKEND", backend)
    keras = framework.find("keras")
    for begin in (keras.import_library, lambda: keras.start(1)):
        with pytest.raises(BadSetting, match=rf"KERAS_BACKEND={backend}: the job .* on TensorFlow; unset it"):
            begin()
