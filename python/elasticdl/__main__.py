"""`python -m elasticdl`: the same as the command `elasticdl`."""

import sys

from elasticdl.cli import main

sys.exit(main())
