"""From when a loss counts, and when the job has recovered from it."""

from __future__ import annotations

import pytest

from elasticdl.master.ps.recovery import AWAY_SECONDS, ECHO_SECONDS, Recovery


def seconds(recovery: Recovery, now: float) -> list[float | None]:
    """Return how long recoveries took that end now."""
    return [one.seconds for one in recovery.settled(now, {}, 5)[1]]


def lost(recovery: Recovery, now: float, journalled: bool, returned_at: float | None = None) -> Recovery:
    return recovery.with_loss(now, "ps-0-1", "silent", returned_at, journalled=journalled)


def test_a_loss_counts_from_its_first_sign_and_is_over_once_what_follows_is_journalled() -> None:
    recovery = lost(Recovery(settled_at=8.0), 9.0, journalled=False)
    recovery, said = recovery.settled(10.0, {}, 5)
    assert said == []
    recovery = lost(recovery, 11.0, journalled=True)
    recovery = lost(recovery, 12.0, journalled=False)  # another sign of what is journalled already
    assert seconds(recovery, 13.0) == [5.0]


def test_one_loss_is_over_and_another_stays_open() -> None:
    recovery = lost(Recovery(settled_at=8.0), 9.0, journalled=True)
    recovery = recovery.with_loss(9.0, "ps-1-1", "silent", None, journalled=False)
    after, said = recovery.settled(10.0, {"ps-0-1": "killed by SIGKILL"}, 5)
    assert [(one.worker, one.cause) for one in said] == [("ps-0-1", "killed by SIGKILL")]
    assert [one.name for one in after.incidents] == ["ps-1-1"]


@pytest.mark.parametrize(("returned_at", "took"), [(None, 3.0), (4.0, 6.0)])
def test_without_a_step_a_loss_counts_from_the_return_of_the_master_or_from_itself(
    returned_at: float | None, took: float
) -> None:
    (said,) = lost(Recovery(), 7.0, journalled=True, returned_at=returned_at).settled(10.0, {}, 5)[1]
    assert said.seconds == took
    assert ("the return of the master" in said.text) == (returned_at is not None)


def test_what_a_stopped_master_hears_when_it_continues_was_settled_before() -> None:
    recovery = Recovery(settled_at=1.0).heard(1.0).heard(1.0 + AWAY_SECONDS)
    echo, _ = recovery.settled(1.0 + AWAY_SECONDS + ECHO_SECONDS / 2, {}, 5)
    assert echo.settled_at == 1.0
    later = 1.0 + AWAY_SECONDS + 2 * ECHO_SECONDS
    assert recovery.settled(later, {}, 5)[0].settled_at == later
