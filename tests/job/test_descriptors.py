"""How many files a process may have open: what is needed is asked for, and refused where it is not allowed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import ELASTICDL, ROOT

SCRIPT = """
import resource, sys
from elasticdl.spec.machine import ask_for_descriptors
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
ask_for_descriptors(8192)
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "then"), [(1024, 10_000, 8192), (1024, 4096, 4096), (9000, 10_000, 9000)]
)
def test_the_limit_is_raised_as_far_as_allowed(soft: int, hard: int, then: int) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(soft), str(hard)], check=True, capture_output=True, text=True
    )
    assert ran.stdout.split() == [str(then), str(hard)]


def test_a_job_that_may_not_open_its_files_is_refused_before_anything_begins(
    tmp_path: Path, iris: Path
) -> None:
    state = tmp_path / "state"
    command = [
        *("sh", "-c", 'ulimit -n 40; exec "$0" "$@"', ELASTICDL, "train"),
        *(f"--model_zoo={ROOT / 'tests/job/zoo'}", "--model_def=paced.custom_model", "--num_workers=2"),
        f"--training_data={iris / 'train'}",
    ]
    ran = subprocess.run(
        command,
        env={**os.environ, "XDG_STATE_HOME": str(state)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 2
    assert ran.stderr == (
        "error: a process may have 40 files open here (`ulimit -n`), and those of this job need 80; raise the limit (`ulimit -n 1024`, "
        "as root or in /etc/security/limits.conf), or start fewer workers and servers\n"
    )
    assert not state.exists()
