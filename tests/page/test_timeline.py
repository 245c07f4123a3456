"""The time line of a job's processes, from its events."""

from __future__ import annotations

import pytest

from elasticdl.control.protocol.status import EventKind, JobEvent
from elasticdl.page.timeline import MOST_SPANS, Phase, Span, Timeline, row_of

BEGAN = 100.0


def line(*events: tuple[float, EventKind, str] | tuple[float, EventKind, str, str]) -> Timeline:
    made = Timeline(BEGAN)
    for time, kind, worker, *text in events:
        made.take(JobEvent(time, kind, worker, 0, 0, text[0] if text else ""))
    return made


def test_a_killed_worker_is_lost_until_it_is_replaced() -> None:
    rows = line(
        (103.0, EventKind.JOINED, "worker-0-1"),
        (110.0, EventKind.ENDED, "worker-0-1", "worker-0-1 has ended: killed by SIGKILL"),
        (111.0, EventKind.LAUNCHED, "worker-0-2"),
        (112.0, EventKind.LOST, "worker-0-1", "worker-0-1 is lost: killed by SIGKILL"),
        (114.0, EventKind.HEALING, "worker-0-2", "receiving step 3"),
        (115.0, EventKind.HEALED, "worker-0-2"),
    ).rows()
    why = "worker-0-1 has ended: killed by SIGKILL; worker-0-1 is lost: killed by SIGKILL"
    assert rows == {
        "worker-0": (
            Span("worker-0-1", Phase.STARTING, 100.0, 103.0),
            Span("worker-0-1", Phase.TRAINING, 103.0, 110.0),
            Span("worker-0-1", Phase.LOST, 110.0, 111.0, why),
            Span("worker-0-2", Phase.STARTING, 111.0, 114.0),
            Span("worker-0-2", Phase.HEALING, 114.0, 115.0, "receiving step 3"),
            Span("worker-0-2", Phase.TRAINING, 115.0, None),
        )
    }


def test_one_that_was_left_out_is_lost_before_it_ends() -> None:
    (spans,) = (
        line(
            (103.0, EventKind.JOINED, "worker-1-1"),
            (110.0, EventKind.EVICTED, "worker-1-1", "two witnesses"),
            (111.0, EventKind.ENDED, "worker-1-1", "worker-1-1 has ended: exit code 3"),
        )
        .rows()
        .values()
    )
    assert [(span.phase, span.since) for span in spans] == [
        (Phase.STARTING, 100.0),
        (Phase.TRAINING, 103.0),
        (Phase.LOST, 110.0),
    ]
    assert spans[-1].why == "two witnesses; worker-1-1 has ended: exit code 3"


@pytest.mark.parametrize(
    "event",
    [
        (110.0, EventKind.DRAINED, "worker-0-1"),
        (110.0, EventKind.ENDED, "worker-0-1", "worker-0-1 has ended: released"),
    ],
)
def test_one_that_leaves_in_order_is_not_lost(event: tuple[float, EventKind, str]) -> None:
    (spans,) = line((103.0, EventKind.JOINED, "worker-0-1"), event).rows().values()
    assert spans[-1] == Span("worker-0-1", Phase.TRAINING, 103.0, 110.0)


def test_with_the_job_all_ends() -> None:
    made = line(
        (103.0, EventKind.JOINED, "worker-0-1"),
        (104.0, EventKind.JOINED, "ps-0-1"),
        (120.0, EventKind.FINISHED, "", "all data was trained"),
        (121.0, EventKind.ENDED, "worker-0-1", "worker-0-1 has ended: killed by SIGTERM"),
    )
    assert [spans[-1].until for spans in made.rows().values()] == [120.0, 120.0]
    assert made.to_json()["ended"] == 120.0


def test_servers_serve_and_come_after_workers() -> None:
    rows = line(
        (103.0, EventKind.JOINED, "ps-0-1"),
        (104.0, EventKind.JOINED, "worker-10-1"),
        (104.0, EventKind.JOINED, "worker-9-1"),
        (110.0, EventKind.LEAVING, "ps-0-1", "it is emptied"),
        (112.0, EventKind.DRAINED, "ps-0-1"),
    ).rows()
    assert list(rows) == ["worker-9", "worker-10", "ps-0"]
    assert [(span.phase, span.until) for span in rows["ps-0"]] == [
        (Phase.STARTING, 103.0),
        (Phase.SERVING, 110.0),
        (Phase.LEAVING, 112.0),
    ]


def test_one_that_never_began_is_lost_too() -> None:
    (spans,) = line((103.0, EventKind.REPLACED, "worker-0-1", "it takes too long")).rows().values()
    assert [(span.phase, span.since, span.until) for span in spans] == [
        (Phase.STARTING, 100.0, 103.0),
        (Phase.LOST, 103.0, None),
    ]


def test_evaluations_and_what_concerns_all_are_told_beside() -> None:
    made = Timeline(BEGAN)
    made.take(JobEvent(120.0, EventKind.EVALUATED, "", 0, 5, "evaluation of step 5", 4.0))
    made.take(JobEvent(130.0, EventKind.MASTER, "", 0, 0, "the master is back"))
    body = made.to_json()
    assert body["evaluations"] == [{"since": 116.0, "until": 120.0, "text": "evaluation of step 5"}]
    assert body["marks"] == [{"time": 130.0, "kind": "master", "text": "the master is back"}]


def test_the_version_changes_with_what_is_shown_only() -> None:
    made = line((103.0, EventKind.JOINED, "worker-0-1"))
    before = made.version
    made.take(JobEvent(104.0, EventKind.SEALED, "worker-0-1", 1, 0, "sealed view 1"))
    assert made.version == before
    made.take(JobEvent(105.0, EventKind.LOST, "worker-0-1", 1, 0, "gone"))
    assert made.version != before


def test_it_is_bounded() -> None:
    made = Timeline(BEGAN)
    for life in range(1, 2 * MOST_SPANS):
        made.take(JobEvent(BEGAN + life, EventKind.LAUNCHED, f"worker-0-{life}", 0, 0, ""))
        made.take(JobEvent(BEGAN + life, EventKind.LOST, f"worker-0-{life}", 0, 0, "again"))
    (spans,) = made.rows().values()
    assert len(spans) <= MOST_SPANS + 1
    assert spans[-1].process == f"worker-0-{2 * MOST_SPANS - 1}"


@pytest.mark.parametrize(
    ("process", "row"),
    [
        ("worker-3-2", "worker-3"),
        ("ps-0-1", "ps-0"),
        ("master-0-1", ""),
        ("", ""),
        ("worker-x-1", ""),
        ("worker-1", ""),
    ],
)
def test_rows_of_processes(process: str, row: str) -> None:
    assert row_of(process) == row
