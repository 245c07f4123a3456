"""What people hear of an evaluation, in both ways of training."""

from __future__ import annotations

from elasticdl.control.protocol.status import EventKind
from elasticdl.master.core.events import Announce
from elasticdl.master.core.records import EvaluatedRecord


def evaluated(record: EvaluatedRecord) -> Announce:
    """Return the event of metrics that are journalled."""
    shown = ", ".join(f"{name} {value:z.4g}" for name, value in record.values)
    text = f"evaluation of step {record.state.step}: {shown}" if record.state.step else f"evaluation: {shown}"
    step, values = record.state.step, tuple(record.values)
    return Announce(EventKind.EVALUATED, "", 0, step, text, record.seconds, values=values)
