"""Workers: the loops, the member's state machine, and the Protocol that framework adapters implement."""
