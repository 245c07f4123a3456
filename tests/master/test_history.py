"""What is reported of a job: figures, summary, and the lines that outlive a master."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.control.protocol.frozen import replace
from elasticdl.control.protocol.status import EventKind, JobEvent
from elasticdl.data.plan.ledger import Ledger
from elasticdl.data.plan.schedule import Schedule
from elasticdl.data.plan.shard import Position, Shard
from elasticdl.files import reading
from elasticdl.master.core.witnesses import SUSPICION
from elasticdl.master.reporting.history import EventHistory, HistoryEvent, event_from_line

words = st.text(max_size=20)
numbers = st.floats(allow_nan=False, allow_infinity=False)
whole = st.integers(0, reading.LARGEST)
told = st.builds(
    HistoryEvent,
    st.builds(JobEvent, numbers, st.sampled_from(EventKind), words, whole, whole, words, st.none() | numbers),
    words,
    whole,
)


def event(
    kind: EventKind, time: float, worker: str = "", step: int = 0, seconds: float | None = None
) -> JobEvent:
    return JobEvent(time, kind, worker, 1, step, "", seconds)


def schedule(epochs: int = 2, max_step: int = 0) -> Schedule:
    return Schedule(Ledger([Shard("a", 0, 1000)], 10, 10, 0, True), epochs, max_step)


@given(told)
def test_lines_are_read_back(item: HistoryEvent) -> None:
    line = item.to_line()
    assert line.endswith("\n")
    assert line.count("\n") == 1
    assert event_from_line(line) == item


@given(told, st.data())
def test_a_torn_line_is_none(item: HistoryEvent, data: st.DataObject) -> None:
    line = item.to_line()
    assert event_from_line(line[: data.draw(st.integers(0, len(line) - 3))]) is None


def test_who_has_died_is_lost_also_if_the_master_that_knew_was_killed_before_it_told() -> None:
    history = EventHistory(0.0)
    ends = {
        "worker-0-1": "killed by SIGKILL",
        "worker-1-1": "released",
        "worker-2-1": "exit code 0",
        "worker-3-1": "killed by SIGTERM",
        "ps-0-1": "out of memory",
    }
    for name in ends:
        history.tell(HistoryEvent(event(EventKind.JOINED, 1.0, name)))
    history.tell(HistoryEvent(event(EventKind.DRAINED, 2.0, "worker-3-1")))
    for name, cause in {**ends, "worker-4-1": "exit code 1"}.items():  # the last one has never joined
        history.tell(HistoryEvent(event(EventKind.ENDED, 3.0, name), cause))
    assert history.summary(4.0)["members"] == {"drained": 1, "lost": 1}
    assert history.servers == {"drained": 0, "lost": 1}
    history.tell(HistoryEvent(event(EventKind.LOST, 3.0, "worker-0-1")))
    assert history.summary(4.0)["members"] == {"drained": 1, "lost": 1}


def test_who_ends_with_the_job_is_not_lost() -> None:
    history = EventHistory(0.0)
    for kind in (EventKind.JOINED, EventKind.FAILED, EventKind.ENDED):
        history.tell(HistoryEvent(event(kind, 1.0, "worker-0-1"), "exit code 1"))
    assert history.summary(2.0)["members"] == {"drained": 0, "lost": 0}


def test_members_of_a_view_say_the_same_of_an_idle_step_and_others_count_their_own() -> None:
    history = EventHistory(0.0)
    for worker in ("worker-0-1", "worker-1-1"):
        history.tell(HistoryEvent(event(EventKind.IDLE_STEP, 1.0, worker, 5)))
    assert history.summary(2.0)["idle_steps"] == 1
    history = EventHistory(0.0)
    for worker in ("worker-0-1", "worker-1-1"):
        history.tell(HistoryEvent(replace(event(EventKind.IDLE_STEP, 1.0, worker, 5), view=0)))
    assert history.summary(2.0)["idle_steps"] == 2


def test_the_rate_of_slow_steps_is_steady() -> None:
    history = EventHistory(0.0)
    rates = []
    for step in range(1, 20):
        history.progress(8.0 * step, step, 13 * step, None)
        rates += [history.rate(8.0 * step + later) for later in (0.1, 4.0, 7.9)]
    assert {round(rate or 0.0, 3) for rate in rates[3:]} == {13 / 8}
    assert history.rate(8.0 * 19 + 40) == pytest.approx(13 / 8 / 2)


def test_messages_that_come_together_have_no_rate() -> None:
    history = EventHistory(0.0)
    for number in range(1, 4):
        history.progress(1.0 + number * 1e-5, number, 350 * number, None)
    assert history.rate(1.0) is None
    assert history.rate(5.0) == pytest.approx(700 / 4, rel=0.01)


def test_the_rate_is_of_the_last_seconds() -> None:
    history = EventHistory(0.0)
    assert history.rate(0.0) is None
    for second in range(20):
        history.progress(float(second), second, second * (10 if second < 10 else 100), None)
    assert history.rate(19.0) == pytest.approx(100)
    assert history.rate(30.0) == pytest.approx(100 * 6 / 17, rel=0.2)  # it falls while nothing comes


def test_what_workers_repeat_to_another_master_has_no_rate() -> None:
    """Its journal is behind: that they have done 9,000 records in the first second is only what it hears."""
    history = EventHistory(0.0)
    history.tell(HistoryEvent(event(EventKind.MASTER, 1.0)))
    rates = []
    for tenth, records in enumerate((1_000, 1_000, 5_000, 10_000), start=1_000):
        history.progress(tenth / 10, 0, records, None)
        rates.append(history.rate(tenth / 10 + 0.05))
    assert rates == [None] * 4
    assert history.seconds_left(100.5, schedule(epochs=1000)) is None
    for tenth in range(1_010, 1_100, 10):  # 100 each second
        history.progress(tenth / 10, 0, 10 * tenth, None)
        rates.append(history.rate(tenth / 10))
    assert [rate for rate in rates if rate is not None] == [pytest.approx(100.0)] * 7
    assert rates[-1] is not None


def test_time_left_and_share() -> None:
    history = EventHistory(0.0)
    assert history.done(None) is None
    assert history.done(schedule()) == 0.0
    for second in range(11):
        history.progress(float(second), second, second * 10, None)
    assert history.done(schedule()) == pytest.approx(0.05)
    assert history.seconds_left(10.0, schedule()) == pytest.approx(190)
    assert history.seconds_left(10.0, schedule(max_step=20)) == pytest.approx(10)
    assert history.done(schedule(max_step=20)) == 0.5
    assert history.done(schedule(epochs=0)) is None
    assert history.seconds_left(10.0, schedule(epochs=0)) is None


def test_steps_that_are_given_up_are_counted() -> None:
    history = EventHistory(0.0)
    history.committed(7)
    assert history.begin_again(7) == 0
    history.progress(1.0, 9, 90, None)
    assert history.begin_again(8) == 1
    assert history.step == 8
    history.tell(HistoryEvent(event(EventKind.VIEW, 1.0), redone=1))
    assert history.summary(2.0)["redone_steps"] == 1


def test_who_waits_for_storage() -> None:
    history = EventHistory(0.0)
    for name in ("worker-0-1", "worker-1-1", "worker-2-1", ""):
        history.tell(HistoryEvent(replace(event(EventKind.WAITING, 1.0, name), text=f"waiting for {name}")))
    history.tell(HistoryEvent(event(EventKind.ANSWERED, 2.0, "worker-0-1")))
    history.tell(HistoryEvent(event(EventKind.ENDED, 3.0, "worker-1-1")))
    assert history.waiting == {"worker-2-1": "waiting for worker-2-1", "": "waiting for "}
    history.tell(HistoryEvent(event(EventKind.MASTER, 3.0)))
    assert history.waiting == {}


def test_a_bad_record_that_several_workers_met_counts_once() -> None:
    history = EventHistory(0.0)
    for text in ("record 3 of a", "record 4 of a", "record 3 of a"):
        history.tell(HistoryEvent(replace(event(EventKind.BAD_RECORD, 1.0), text=text)))
    assert history.summary(2.0)["bad_records"] == 2


def test_where_a_view_stands_is_exact() -> None:
    history = EventHistory(0.0)
    history.progress(1.0, 9, 90, None)
    history.stand_at(Position(1, 3, 1, 0), schedule())
    assert history.records == 1030
    history.stand_at(Position(2, 0, 0, 0), schedule())
    assert history.records == 2000
    assert history.summary(1.0)["epochs"] == 2


def test_the_summary_is_of_all_masters_lives() -> None:
    happened = [
        HistoryEvent(event(EventKind.STEP, 104.0, step=1)),
        HistoryEvent(
            event(EventKind.RECOVERED, 106.0, "worker-1-1", 30, 0.123456), cause="killed by SIGKILL"
        ),
        HistoryEvent(event(EventKind.LOST, 105.0, "worker-1-1")),
        HistoryEvent(event(EventKind.EVICTED, 105.5, "worker-2-1")),
        HistoryEvent(event(EventKind.LOST, 106.0, "worker-2-1")),  # by the next master
        HistoryEvent(event(EventKind.DRAINED, 107.0, "worker-0-1")),
        HistoryEvent(event(EventKind.LOST, 107.0, "ps-0-1")),
        HistoryEvent(event(EventKind.UNSAVED, 108.0)),
        HistoryEvent(event(EventKind.FINISHED, 114.0)),
    ]
    history = EventHistory(100.0)
    for item in happened:
        again = event_from_line(item.to_line())
        assert again is not None
        history.tell(again)
    history.stand_at(Position(1, 0, 1, 0), schedule())
    summary = history.summary(115.0)
    assert summary["seconds_to_first_step"] == 4.0
    assert summary["seconds"] == 15.0
    assert summary["members"] == {"drained": 1, "lost": 2}
    assert history.servers == {"drained": 0, "lost": 1}
    assert history.unsaved == 1
    assert summary["recoveries"] == [
        {"cause": "killed by SIGKILL", "member": "worker-1-1", "step": 30, "seconds": 0.1235}
    ]
    assert summary["records_per_second"] == 100.0


def test_a_job_that_fails_with_its_first_figures_has_no_rate() -> None:
    """As one whose `on_train_end` raises: all its steps may be told in one message."""
    history = EventHistory(100.0)
    history.progress(1.0, 40, 400, None)
    history.tell(HistoryEvent(event("step", 104.0, step=40)))
    history.tell(HistoryEvent(event("failed", 104.00004)))
    summary = history.summary(104.1)
    assert (summary["records_trained"], summary["records_per_second"]) == (400, None)


@pytest.mark.parametrize("end_first", [True, False])
def test_the_summary_says_what_became_of_a_suspect(end_first: bool) -> None:
    happened = [
        HistoryEvent(event(EventKind.RECOVERED, 106.0, "worker-1-1", 30, 0.1), cause=SUSPICION),
        HistoryEvent(event(EventKind.ENDED, 106.1, "worker-1-1"), cause="killed by SIGKILL"),
        HistoryEvent(event(EventKind.RECOVERED, 107.0, "worker-2-1", 40, 0.1), cause=SUSPICION),
    ]
    history = EventHistory(100.0)
    for item in (
        sorted(happened, key=lambda told: told.event.kind == EventKind.RECOVERED) if end_first else happened
    ):
        history.tell(item)
    causes = [recovery["cause"] for recovery in history.summary(115.0)["recoveries"]]
    assert causes == [f"{SUSPICION}, then killed by SIGKILL", SUSPICION]


def test_times_only_grow() -> None:
    history = EventHistory(0.0)
    times = []
    for now in (5.0, 5.0, 4.0, 6.0):
        times.append(history.next_time(now))
        history.tell(HistoryEvent(event(EventKind.NOTE, times[-1])))
    assert times == sorted(set(times))
    assert times[-1] == 6.0


def test_an_event_of_a_kind_that_is_not_known_is_none() -> None:
    line = HistoryEvent(event(EventKind.NOTE, 1.0)).to_line()
    assert event_from_line(line) is not None
    assert event_from_line(line.replace('"note"', '"nonsense"')) is None


def test_values_of_an_event_are_read_back_exactly() -> None:
    event = JobEvent(
        1.5,
        EventKind.EVALUATED,
        "",
        0,
        5,
        "evaluation of step 5",
        0.25,
        (("val_loss", 1 / 3), ("val_auc", 1e-300)),
    )
    told = HistoryEvent(event)
    assert event_from_line(told.to_line()) == told
