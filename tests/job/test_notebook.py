"""A job in a notebook: one output that changes, in which everything is text; and what other programs get instead."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell

from elasticdl.control.protocol.status import EventKind, JobStatus
from elasticdl.job import display
from elasticdl.job.card import card, problem
from elasticdl.job.notebook import NotebookDisplay
from elasticdl.page.recording import Recording
from tests.page.jobs import Clock, event, status

HOSTILE = "<script>alert('1')</script>\"'&<img src=x onerror=alert(1)>"


class Shell(InteractiveShell):
    """A notebook's shell, as far as one is known."""

    kernel = object()


@pytest.fixture
def outputs() -> Iterator[list[dict[str, Any]]]:
    """Be in a notebook; what its cell shows."""
    InteractiveShell.clear_instance()
    shell = Shell.instance()
    shell.display_pub = CapturingDisplayPublisher()
    yield shell.display_pub.outputs
    Shell.clear_instance()


def elements(text: str) -> set[str]:
    """Return the names of all elements of a piece of HTML, which has to be well-formed as XML."""
    return {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(text).iter()}


def evaluated(step: int, name: str = "val_loss") -> Any:
    return event(900.0 + step, EventKind.EVALUATED, step=step, values=((name, 1.0 / step),))


def test_a_card_has_what_a_terminal_shows_and_the_curves() -> None:
    recording = Recording(900.0, Clock())
    for step in (1, 2, 3):
        recording.progress(step, 1.0 / step)
    recording.event(evaluated(2))
    recording.event(evaluated(4))
    text = card(status(3), recording, ["worker-1-1 was lost"])
    for part in (
        "training", "width:25.0%", "epoch 1/2, step 3, loss 0.5000, 8.0 records/s, 1 of 2 workers, 1 of 1 servers, 1:00 min left",
        "worker-0-1 training, worker-1-1 starting (for 3 s), ps-0-1 serving", "last evaluation: val_loss 0.25", "worker-1-1 was lost",
        "loss 0.3333", "val_loss 0.25",
    ):  # fmt: skip
        assert part in text
    assert text.count("<svg") == 2
    assert elements(text) == {"div", "b", "span", "pre", "svg", "polyline", "text"}


def test_whatever_a_card_is_given_is_text() -> None:
    recording = Recording(900.0, Clock())
    for step in (1, 2):
        recording.event(evaluated(step, HOSTILE))
    seen: JobStatus = status(2)
    workers = tuple(replace(one, name=HOSTILE, state=HOSTILE, waits_for=HOSTILE) for one in seen.workers)
    seen = replace(seen, job_name=HOSTILE, state=HOSTILE, reason=HOSTILE, workers=workers)
    text = card(seen, recording, [HOSTILE])
    assert elements(text) == {"div", "b", "span", "pre", "svg", "polyline", "text"}
    assert elements(problem(HOSTILE, HOSTILE)) == {"div", "b"}
    for shown in (text, problem(HOSTILE, HOSTILE)):
        assert "<script" not in shown
        assert "<img" not in shown


def test_a_cell_has_one_output_that_changes_twice_a_second_at_most(outputs: list[dict[str, Any]]) -> None:
    clock = Clock(0.0)
    shown = display.open_display(900.0, 100)
    assert isinstance(shown, NotebookDisplay)
    shown = NotebookDisplay(Recording(900.0, Clock()), 900.0, clock)
    shown.event(event(901.0, EventKind.JOINED, "worker-0-1", "worker-0-1 has joined"))
    assert outputs == [], "of a job that has said nothing there is nothing to show"
    shown.status(status(1))
    shown.status(status(2))
    clock.now = 0.6
    shown.status(status(3))
    shown.event(event(950.0, EventKind.FAILED, text="the data is gone"))
    shown.close()
    first, *later = outputs
    assert not first.get("update")
    assert [one["update"] for one in later] == [True, True]
    assert len({one["transient"]["display_id"] for one in outputs}) == 1
    texts = [one["data"]["text/html"] for one in outputs]
    assert ["step 1," in texts[0], "step 3," in texts[1]] == [True, True]
    assert "     1.0 s  worker-0-1 has joined" in texts[0]
    assert ">failed<" in texts[2]
    assert [" left<" in text for text in texts] == [True, True, False]
    assert "the data is gone" in texts[2]


def test_what_a_job_waits_for_is_shown_before_it_has_said_anything(outputs: list[dict[str, Any]]) -> None:
    shown = NotebookDisplay(Recording(900.0, Clock()), 900.0, Clock(0.0))
    shown.notice("waiting: no node has room")
    shown.notice(HOSTILE)
    shown.status(status(1))
    first, second, third = [one["data"]["text/html"] for one in outputs]
    assert "waiting: no node has room" in first
    assert elements(second) == {"div", "pre"}
    assert "step 1," in third


def test_events_that_are_known_are_not_counted_again(outputs: list[dict[str, Any]]) -> None:
    recording = Recording(900.0, Clock())
    recording.event(evaluated(2))
    shown = NotebookDisplay(recording, 900.0, Clock(0.0))
    shown.event(evaluated(2))
    shown.event(evaluated(4))
    assert [point.step for point in recording.metric_points()["val_loss"]] == [2, 4]


def test_elsewhere_lines_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not display.in_notebook(), "IPython alone, as of a terminal, is no notebook"
    monkeypatch.delitem(sys.modules, "IPython")
    assert not display.in_notebook()
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert isinstance(display.open_display(900.0, 100), display.PlainDisplay)
