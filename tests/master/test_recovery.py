"""From when a loss counts, and when the job has recovered from it."""

from __future__ import annotations

from elasticdl.master.ps.recovery import Recovery


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
