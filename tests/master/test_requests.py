"""Requests of clients: which are refused, and who hears what when."""

from __future__ import annotations

import pytest

from elasticdl.master.core.events import Reply, Scale, ScaleAsked
from elasticdl.master.core.records import FailedRecord, Journal, StoppingRecord, WantedRecord
from elasticdl.master.core.requests import Requests

NOTHING = Requests()
STOPPING = Journal().with_record(StoppingRecord("enough"))
ENDED = Journal().with_record(FailedRecord("lost"))


def test_the_last_number_counts_and_only_its_record_answers() -> None:
    requests, _ = NOTHING.with_scale(Journal(), ScaleAsked(1, 3))
    first = requests.scale_record()
    assert first == WantedRecord(3, None)
    requests, said = requests.with_scale(Journal(), ScaleAsked(2, 4))
    assert said == [Reply(1, "another number was asked for meanwhile")]
    requests, done = requests.after_scale(first)
    assert done == [Scale(3, None)]  # the first one was being appended
    second = requests.scale_record()
    assert second == WantedRecord(4, None)
    requests, done = requests.after_scale(second)
    assert done == [Scale(4, None), Reply(2, "the job wants 4 workers")]
    assert requests == NOTHING


@pytest.mark.parametrize("journal", [STOPPING, ENDED])
def test_a_job_that_ends_takes_no_request(journal: Journal) -> None:
    requests, (stop,) = NOTHING.with_stop(journal, 1, "enough")
    assert (requests, stop.request) == (NOTHING, 1)
    requests, (scale,) = NOTHING.with_scale(journal, ScaleAsked(2, 3))
    assert (requests, scale.request) == (NOTHING, 2)


def test_all_who_ask_for_the_end_are_answered_by_one_record_with_the_first_reason() -> None:
    requests = NOTHING.with_wish("loss is low")
    for request in (1, 2):
        requests, said = requests.with_stop(Journal(), request, "enough")
        assert said == []
    record = requests.stop_record(Journal())
    assert record == StoppingRecord("loss is low")
    requests, said = requests.after_stopping(record.reason)
    assert [one.request for one in said if isinstance(one, Reply)] == [1, 2]
    assert requests == NOTHING


def test_numbers_that_are_put_off_are_answered_once_and_still_wanted() -> None:
    requests, _ = NOTHING.with_scale(Journal(), ScaleAsked(1, 3))
    requests, (said,) = requests.scale_put_off("the disk is full")
    assert said == Reply(1, "the disk is full; the job adapts when it can be written again")
    assert requests.scale_put_off("the disk is full") == (requests, [])
    assert requests.scale_record() == WantedRecord(3, None)


def test_the_end_answers_everybody() -> None:
    requests, _ = NOTHING.with_stop(Journal(), 1, "enough")
    requests, _ = requests.with_scale(Journal(), ScaleAsked(2, 3))
    after, said = requests.ended()
    assert said == [Reply(1, "the job has ended"), Reply(2, "the job has ended")]
    assert after == NOTHING
