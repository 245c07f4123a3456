"""The launcher's decision about a master that has ended."""

from __future__ import annotations

import pytest

from elasticdl.cluster.local.supervision import JobEnded, Record, Restart, after_master


@pytest.mark.parametrize("code", [0, 1, 2, 130])
def test_the_masters_own_verdicts_end_the_job(code: int) -> None:
    decision = after_master(Record(), 3.0, code, None)
    assert isinstance(decision, JobEnded)
    assert decision.code == code


def test_kills_are_survived_without_limit_and_with_back_off() -> None:
    record, delays = Record(), []
    for _ in range(20):
        decision = after_master(record, 0.5, None, 9)
        assert isinstance(decision, Restart)
        record = decision.record
        delays.append(decision.delay)
    assert delays[:5] == [0.0, 0.1, 0.2, 0.4, 0.8]
    assert delays[-1] == 5.0


def test_a_long_life_clears_the_record() -> None:
    decision = after_master(Record(short_lives=7, errors=4), 60.0, 70, None)
    assert decision == Restart(Record(1, 1), 0.0, "the master ended by code 70 after 60.0 s")


def test_a_kill_between_errors_clears_their_count() -> None:
    decision = after_master(Record(short_lives=4, errors=4), 0.5, None, 9)
    assert isinstance(decision, Restart)
    assert decision.record == Record(5, 0)


def test_five_errors_in_a_row_are_the_end() -> None:
    record, lives = Record(), 0
    while isinstance(decision := after_master(record, 0.5, 70, None), Restart):
        record, lives = decision.record, lives + 1
    assert lives == 4
    assert decision.code == 1
    assert "5 times in a row with code 70" in decision.reason
