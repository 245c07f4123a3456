"""Loaded by every Python process that tests start: those of a job have only what an image has that is made for jobs.

Keras imports Matplotlib and pandas if they are there, and trains the same without them: a fifth of the start of each worker. They are here
because programs that make data need them.
"""

import os
import sys

if "ELASTICDL_PROCESS" in os.environ:
    sys.modules.update(dict.fromkeys(("matplotlib", "pandas")))  # the documented way to block an import
