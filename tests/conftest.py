"""What all tests need of the process that runs them."""

import signal

# A shell's background job ignores Ctrl-C, and so would all processes that are started from it; some tests send it to them.
signal.signal(signal.SIGINT, signal.default_int_handler)
