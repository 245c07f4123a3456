"""What a page shows, from statuses, steps and events; and what the next master takes up of it."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from elasticdl.control.protocol.status import EventKind
from elasticdl.page.recording import MOST_EVENTS, Recording

from .jobs import Clock, event, status


def trained(clock: Clock, steps: int, made: Recording | None = None, first: int = 1) -> Recording:
    made = made or Recording(900.0, clock)
    for step in range(first, first + steps):
        clock.now += 1.0
        made.progress(step, 1.0 / step)
    return made


def test_curves_of_steps_and_of_evaluations() -> None:
    clock = Clock()
    made = trained(clock, 3)
    made.event(
        event(
            1004.0, EventKind.EVALUATED, step=3, seconds=0.5, values=(("val_loss", 0.25), ("val_auc", 0.75))
        )
    )
    made.status(status(3))
    assert made.series_json()["series"] == {
        "loss": [(1001.0, 1, 1.0), (1002.0, 2, 0.5), (1003.0, 3, 0.333333)],
        "val_loss": [(1004.0, 3, 0.25)],
        "val_auc": [(1004.0, 3, 0.75)],
        "records_per_second": [(1003.0, 3, 8.0)],
        "workers": [(1003.0, 3, 1)],
    }


def test_a_status_says_a_step_that_nobody_has_told() -> None:
    clock = Clock()
    made = Recording(900.0, clock)
    made.status(status(7, loss=0.125))
    made.status(status(7, loss=0.126))
    assert made.series_json()["series"]["loss"] == [(1000.0, 7, 0.125)]


@pytest.mark.parametrize("kind", [EventKind.VIEW, EventKind.ROLLED_BACK])
def test_steps_that_are_done_once_more_have_one_point(kind: EventKind) -> None:
    clock = Clock()
    made = trained(clock, 5)
    made.event(event(1005.5, EventKind.EVALUATED, step=5, seconds=0.1, values=(("val_loss", 9.0),)))
    made.event(event(1006.0, kind, step=3))
    trained(clock, 2, made, first=4)
    series = made.series_json()["series"]
    assert [step for _, step, _ in series["loss"]] == [1, 2, 3, 4, 5]
    assert series["loss"][-1][0] == 1007.0
    assert series["val_loss"] == []


def test_figures_that_are_no_numbers_are_none() -> None:
    made = Recording(900.0, Clock())
    made.status(status(3, loss=math.nan))
    body = json.loads(json.dumps(made.status_json(), allow_nan=False))
    assert body["job"]["loss"] is None


def test_goodput_and_evaluations_are_in_the_status() -> None:
    clock = Clock()
    made = trained(clock, 11)
    made.event(event(clock.now, EventKind.EVALUATED, step=11, seconds=2.0))
    body = made.status_json()
    assert body["goodput"] == pytest.approx(1.0)
    assert body["evaluation_seconds"] == 2.0


def test_events_after_a_time() -> None:
    made = Recording(900.0, Clock())
    for time in (1.0, 2.0, 3.0):
        made.event(event(time, EventKind.NOTE, text=str(time)))
    assert [one.text for one in made.events_after(1.0)] == ["2.0", "3.0"]
    assert made.events_after(3.0) == []
    for time in range(4, MOST_EVENTS + 10):
        made.event(event(float(time), EventKind.NOTE))
    assert len(made.events_after(0.0)) == MOST_EVENTS


def test_the_next_master_takes_up_curves_and_events() -> None:
    clock = Clock()
    first = trained(clock, 5)
    events = [
        event(1002.5, EventKind.VIEW, step=2),
        event(1004.5, EventKind.EVALUATED, step=4, values=(("val_loss", 1.0),)),
    ]
    kept = trained(Clock(), 5)
    for one in events[1:]:
        kept.event(one)
    text = kept.curves()
    again = Recording(900.0, clock)
    again.recall(text)
    for one in events:  # a view that began before what is kept gives up nothing of it
        again.event(one)
    assert again.series_json()["series"] == kept.series_json()["series"]
    assert again.status_json()["goodput"] == pytest.approx(first.status_json()["goodput"])
    clock.now += 1.0
    again.progress(6, 0.1)
    assert [step for _, step, _ in again.series_json()["series"]["loss"]] == [1, 2, 3, 4, 5, 6]


def test_curves_are_thinned_for_small_places() -> None:
    made = trained(Clock(), 1000)
    kept = json.loads(made.curves(50))["curves"]["loss"]
    assert len(kept) <= 50
    assert [kept[0][2], kept[-1][1]] == [1.0, 1000]


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"format": 2}', '{"format": 1, "curves": {"loss": 1}}', "{" * 10_000]
)
def test_curves_that_are_none_change_nothing(text: str) -> None:
    made = trained(Clock(), 3)
    before = made.series_json()
    with pytest.raises(ValueError):
        made.recall(text)
    assert made.series_json() == before


def test_a_master_that_has_not_heard_of_all_yet_ends_no_curve() -> None:
    clock = Clock()
    made = Recording(900.0, clock)
    made.status(status(3))
    made.event(event(1000.0, EventKind.MASTER))
    for seconds, workers in ((1.0, 0), (1.0, 0), (1.0, 2)):
        clock.now += seconds
        made.status(replace(status(4), workers=status(4).workers[:workers]))
    series = made.series_json()["series"]
    assert [value for _, _, value in series["workers"]] == [1, 1]
    # What was done without a master is not the rate of a moment.
    assert len(series["records_per_second"]) == 2
