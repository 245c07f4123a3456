"""How the framework is imported."""

import subprocess
import sys


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
