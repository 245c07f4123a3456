"""L7 at the end: whether all members of a final view hold the same bits.

Each of them says which it holds. The ring compares programs' states before their steps, all bits of them every so often (see
`worker/allreduce/divergence.py`); what they have become since shows here. Nobody waits for this: a result may be there before all have
spoken, and what was said to an earlier master is not said again.
"""

from __future__ import annotations

from dataclasses import dataclass

from elasticdl.control.protocol.view import ViewId


@dataclass(frozen=True, slots=True)
class LastBits:
    """What was said first of a final view.

    Attributes:
        view: which, None before anybody has spoken.
        worker: who said it.
        digest: of its state's bits (hexadecimal).
    """

    view: ViewId | None = None
    worker: str = ""
    digest: str = ""

    def heard(self, view: ViewId, worker: str, digest: str) -> tuple[LastBits, str]:
        """Return what to remember, and what is wrong with what this worker holds; empty if nothing is."""
        if self.view != view:
            return LastBits(view, worker, digest), ""
        if digest == self.digest:
            return self, ""
        return self, (
            f"{worker} ends with other parameters than {self.worker}, though both have made the same steps. Something has changed them in "
            "one worker only: all must do the same after each step, and let only files and messages depend on which worker they are"
        )
