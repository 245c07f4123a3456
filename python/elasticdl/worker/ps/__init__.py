"""The worker with parameter servers: a pure state machine and its runner."""
