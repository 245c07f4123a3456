"""The dashboard in the guide asks for figures that a job has."""

from __future__ import annotations

import json
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from elasticdl.control.protocol.status import EventKind
from elasticdl.page.exposition import exposed
from elasticdl.page.recording import Recording

from .jobs import Clock, event, status

BOARD = Path(__file__).resolve().parents[2] / "docs/guides/watching-grafana.json"


def figures() -> dict[str, set[str]]:
    """Return the names of all figures of a job, with their labels."""
    clock = Clock()
    recording = Recording(900.0, clock)
    for step in (1, 2):
        clock.now += 1.0
        recording.progress(step, 0.5)
    recording.status(status(2))
    recording.event(event(1003.0, EventKind.EVALUATED, step=2, seconds=1.0, values=(("val_loss", 1.0),)))
    families = text_string_to_metric_families(exposed(recording.moment()).decode())
    return {sample.name: set(sample.labels) for family in families for sample in family.samples}


def test_each_panel_asks_for_what_there_is() -> None:
    board, known = json.loads(BOARD.read_text()), figures()
    targets = [target for panel in board["panels"] for target in panel["targets"]]
    assert len(targets) >= len(board["panels"]) >= 8
    for target in targets:
        (name,) = re.findall(r"elasticdl_\w+", target["expr"])
        labels = set(re.findall(r"(\w+)=~?\"", target["expr"])) | set(
            re.findall(r"{{(\w+)}}", target["legendFormat"])
        )
        assert labels - {"instance"} <= known[name], target
    kinds = re.findall(r'kind=~"([^"]+)"', json.dumps(targets).replace("\\", ""))
    assert kinds
    assert set("|".join(kinds).split("|")) <= set(EventKind)
    (query,) = (one["query"] for one in board["templating"]["list"] if one["name"] == "instance")
    assert query == "label_values(elasticdl_step, instance)"
    assert "elasticdl_step" in known
