"""`python -m elasticdl`: the same as the command `elasticdl`."""

from elasticdl.cli import main

main()
