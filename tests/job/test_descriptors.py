"""A master in a pod asks for the descriptors that its connections need."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
from elasticdl.job.master import ask_for_descriptors
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
ask_for_descriptors()
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
