"""The synchronous worker: a pure state machine and its runner."""
