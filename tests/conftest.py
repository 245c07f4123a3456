"""What all tests need of the process that runs them."""

import os
import signal
from pathlib import Path

from hypothesis import HealthCheck, settings

# A shell's background job ignores Ctrl-C, and so would all processes that are started from it; some tests send it to them.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Processes of jobs start without what no job needs.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, (str(Path(__file__).parent / "lean"), os.environ.get("PYTHONPATH")))
)

# A busy machine is no defect.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
