"""Loaded by every Python process that tests start: those of a job have no Matplotlib, as an image has none that is made for jobs.

Keras imports it if it is there, and trains the same without it: a tenth of the start of each worker. It is here because programs that make
data need it. Not so pandas, which pyarrow would take for a module of nothing if its import were blocked.
"""

import os
import sys

if "ELASTICDL_PROCESS" in os.environ:
    sys.modules["matplotlib"] = None  # the documented way to block an import
