"""What is common to both ends of a job that evaluates or predicts, and trains nothing."""

from __future__ import annotations

from elasticdl.control.protocol.view import StateId, ViewId

STATE = StateId(0, ViewId(0))
"""Name of the model's only state, in messages that name one."""
NO_VIEW = ViewId(0)
