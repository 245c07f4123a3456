"""Importing the package, the command line or the master loads no framework, and little else."""

import json
import subprocess
import sys

import pytest

FRAMEWORKS = ("tensorflow", "keras", "torch", "jax", "mxnet", "sklearn", "pandas")
LIGHT = (*FRAMEWORKS, "grpc", "google.protobuf", "numpy", "rich", "pydantic", "yaml")
"""What the way to `--help` does not need either."""


def loaded(statement: str) -> set[str]:
    """Return the top-level modules that a new interpreter has after a statement."""
    code = f"import sys, json; {statement}; print(json.dumps(sorted(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    return set(json.loads(run.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "module",
    [
        "elasticdl",
        "elasticdl.cli",
        "elasticdl.master",
        "elasticdl.jax",
        "elasticdl.keras",
        "elasticdl.mxnet",
        "elasticdl.torch",
    ],
)
def test_no_framework_is_imported(module: str) -> None:
    assert loaded(f"import {module}").isdisjoint(FRAMEWORKS)


@pytest.mark.parametrize("module", ["worker", "ps", "master", "launcher"])
def test_a_process_has_no_other_thread_before_it_has_blocked_its_signals(module: str) -> None:
    """A thread that an import starts would take the SIGTERM by which a process is asked to leave, and end it."""
    code = f"import os, elasticdl.job.{module}; print(len(os.listdir('/proc/self/task')))"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert run.stdout == "1\n"


@pytest.mark.parametrize("module", ["elasticdl", "elasticdl.cli"])
def test_help_needs_little(module: str) -> None:
    assert loaded(f"import {module}").isdisjoint(LIGHT)


@pytest.mark.parametrize(
    "module",
    [
        f"elasticdl.{name}.framework"
        for name in ("jax", "keras", "keras.backends", "mxnet", "reference", "tf_keras", "torch")
    ],
)
def test_a_framework_is_looked_up_without_what_workers_need(module: str) -> None:
    """Submitting a job looks it up, and its master does."""
    assert loaded(f"import {module}").isdisjoint(LIGHT)


def test_no_module_of_the_master_imports_a_framework() -> None:
    statement = (
        "import importlib, pkgutil, elasticdl.master, elasticdl.page, elasticdl.control, elasticdl.cluster, elasticdl.data; "
        "import elasticdl.spec; "
        "[importlib.import_module(m.name) for p in ('master', 'page', 'control', 'cluster', 'data', 'spec') "
        "for m in pkgutil.walk_packages([f'{elasticdl.__path__[0]}/{p}'], f'elasticdl.{p}.')]"
    )
    assert loaded(statement).isdisjoint(FRAMEWORKS)


def test_a_master_that_opens_data_has_no_numpy() -> None:
    """Nor pyarrow: it looks into neither records nor states, and importing both takes longer than all else of its start."""
    statement = (
        "import elasticdl.job.master, elasticdl.master.running.runner, elasticdl.master.running.outputs; "
        "import elasticdl.data.readers.madetables, elasticdl.data.readers.recordfiles"
    )
    assert loaded(statement).isdisjoint(("numpy", "pyarrow"))
