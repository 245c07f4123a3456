"""What all tests need of the process that runs them."""

import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A shell's background job ignores Ctrl-C, and so would all processes that are started from it; some tests send it to them.
signal.signal(signal.SIGINT, signal.default_int_handler)

# What is imported to collect tests stays, and the garbage collector needs not look at it: see pytest_runtestloop.
gc.disable()

# This process and those that it starts do without what their libraries import for nothing.
import_module("tests.lean.sitecustomize")
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, (str(Path(__file__).parent / "lean"), os.environ.get("PYTHONPATH")))
)

# A job's processes import what others have compiled before: without that each of them compiles this package anew, for a fifth of its time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# What jobs set, as long as nobody has: JAX sets another level when it is imported, and processes of later tests would inherit that.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# A busy machine is no defect.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


@pytest.fixture(autouse=True, scope="module")
def closed_zoo() -> Iterator[None]:
    """Leave no model zoo to the tests of other files: what it is called decides where their imports lead."""
    yield
    for finder in [*sys.meta_path]:
        if type(finder).__module__ == "elasticdl.worker.modelzoo":
            finder.close()  # type: ignore[attr-defined]


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop() -> Generator[None, object, object]:
    gc.freeze()
    gc.enable()
    return (yield)


LONGEST = ("docs/test_commands.py", "benchmarks/test_parts.py", "job/", "torch/", "keras/")
"""Where tests are that take many seconds."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the longest tests come first: of the processes that run tests, none waits for another's last one."""
    here = Path(__file__).parent

    def place(item: pytest.Item) -> int:
        path = item.path.relative_to(here).as_posix()
        return next((at for at, one in enumerate(LONGEST) if path.startswith(one)), len(LONGEST))

    items.sort(key=place)
