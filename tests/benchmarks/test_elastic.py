"""The experiments of `make bench-elastic` count right: who held a unit, what it was used for, and when the next job is submitted."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest

from benchmarks.elastic import batch, eight, jobs, outcome, service, telling, two
from benchmarks.elastic.__main__ import write
from benchmarks.elastic.cluster import UNITS
from benchmarks.elastic.holding import SERVICE, Life, held
from benchmarks.elastic.jobs import Chunk, Job
from benchmarks.elastic.outcome import Outcome


def life(owner: str, process: str, placed: float, ended: float | None, running: float | None = None) -> Life:
    return Life(f"{owner}-{process}", owner, process, 0.0, placed=placed, running=running, ended=ended)


def leaving(begin: float, end: float) -> Life:
    """A worker of the service's job that was asked to end."""
    return Life("filler-worker-9-1", service.JOB, "worker-9-1", 0.0, asked=begin, placed=0.0, ended=end)


def job(*chunks: Chunk) -> Job:
    return Job("one", 0.0, 4.0, 9.0, len(chunks), 0, 1, 0.0, chunks)


def test_units_are_held_from_a_node_until_the_end() -> None:
    lives = [life("one", "worker-0-1", 1.0, 5.0), life("one", "worker-1-1", 2.0, None)]
    lives.append(Life("one-pending", "one", "worker-2-1", 0.0))
    assert held(lives) == [(0.0, 0), (1.0, 1), (2.0, 2), (5.0, 1)]


def test_a_unit_that_changes_hands_is_one() -> None:
    before = [life("one", f"worker-{index}-1", 1.0, 5.0) for index in range(UNITS)]
    assert max(units for _, units in held([*before, life(SERVICE, "", 4.9, None)])) == UNITS


def test_unit_seconds_are_counted_where_they_were() -> None:
    chunks = (
        Chunk("worker-0-1", 2.0, 4.0, counts=True),
        Chunk("worker-0-1", 4.5, 6.5, counts=False),
        Chunk("worker-0-1", 9.5, 11.5, counts=True),
    )
    lives = (
        life("one", "worker-0-1", 1.0, 12.0),
        life(SERVICE, "", 3.0, None, running=5.0),
        life("one", "worker-1-1", 4.0, 6.0),
    )
    found = Outcome("way", 0.0, 20.0, (job(*chunks),), lives, 0.5)
    spent = found.spent
    assert spent[outcome.USED] == 4.0 + 15.0
    assert spent[outcome.AGAIN] == 2.0
    assert spent[outcome.STEPS] == 0.5
    assert spent[outcome.PAUSES] == 3.0
    assert spent[outcome.STARTS] == 1.0 + 2.0
    assert spent[outcome.ENDS] == 0.5
    assert spent[outcome.SERVICE_STARTS] == 2.0
    assert sum(spent.values()) == UNITS * 20.0
    assert found.used == 19.0 / (UNITS * 20.0)


def test_what_is_outside_of_the_day_does_not_count() -> None:
    lives = (life("one", "worker-0-1", 0.0, 100.0),)
    found = Outcome("way", 10.0, 20.0, (job(Chunk("worker-0-1", 5.0, 12.0, counts=True)),), lives, 0.5)
    assert found.spent[outcome.USED] == 2.0
    assert found.spent[outcome.ENDS] == 8.0
    assert sum(found.spent.values()) == UNITS * 10.0


def test_the_tail_begins_when_not_all_units_have_a_pod_any_more() -> None:
    lives = tuple(life("one", f"worker-{index}-1", 1.0, 5.0 + index) for index in range(UNITS))
    found = Outcome("way", 0.0, 5.0 + UNITS, (), lives, 0.5)
    assert found.spent[outcome.FREE] == UNITS * 1.0
    assert found.spent[outcome.TAIL] == sum(range(UNITS + 1))


def audited(folder: Path, name: str, lines: list[str]) -> None:
    """Write one member's file of an audit."""
    text, checksum = b"", 0
    for line in [f"elasticdl-audit 1 {name}-id {name}", *lines]:
        checksum = zlib.crc32(line.encode(), checksum)
        text += b"%s %08x\n" % (line.encode(), checksum)
    (folder / f"{name}-id.audit").write_bytes(text)


def test_a_step_is_that_of_the_highest_view_that_committed_it(tmp_path: Path) -> None:
    audited(
        tmp_path,
        "worker-0-1",
        ["contributed 1 1 0 0 0 0 1 0", "committed 1 1 2 1", "contributed 1 2 0 0 2 0 1 0", "contributed 2 2 0 0 2 0 1 0",
         "committed 2 2 1 1"],
    )  # fmt: skip
    audited(tmp_path, "worker-1-1", ["contributed 1 1 1 0 1 0 1 0", "contributed 1 2 1 0 3 0 1 0"])
    first, second = jobs.committed(tmp_path)
    assert sorted(first) == [("worker-0-1", 0), ("worker-1-1", 1)]
    assert second == [("worker-0-1", 2)]


def test_a_line_that_was_cut_by_its_writers_death_is_none(tmp_path: Path) -> None:
    (tmp_path / "worker-0-1").write_text("0 1.0 2.0\n1 2.5 3.5\n2 4.0 5.")
    assert jobs.computed_by(tmp_path / "worker-0-1") == [(0, 1.0, 2.0), (1, 2.5, 3.5)]


def test_a_queue_admits_whole_gangs() -> None:
    assert [eight.room_for_all(3, active, 100.0) for active in range(4)] == [True, True, False, False]
    assert all(batch.at_once(number, number, 0.0) for number in range(8))
    assert [two.apart(number, number, 5.0) for number in range(3)] == [True, True, False]


def test_a_days_curve_goes_from_night_to_noon_and_back() -> None:
    day = [service.wanted(hour) for hour in range(service.HOURS)]
    assert (day[0], day[12]) == (5, 19)
    assert day[1:12] == sorted(day[1:12])
    assert day[13:] == day[11:0:-1]
    assert sum(day) == pytest.approx(service.HOURS * UNITS / 2, rel=0.02)


@pytest.mark.parametrize(
    ("figure", "verdict"), [(0.99, "aim"), (0.98, "aim"), (0.96, "must"), (0.94, "short")]
)
def test_more_is_better_if_the_aim_is_above(figure: float, verdict: str) -> None:
    assert telling.judged("used", figure, "", 0.95, 0.98).verdict == verdict
    assert telling.judged("not used", 1 - figure, "", 0.0501, 0.0201).verdict == verdict


def test_workers_that_leave_during_the_day_give_way() -> None:
    lives = (leaving(5.0, 11.0), leaving(12.0, 14.5), leaving(18.0, 21.0))
    assert service.gave_way(Outcome("service", 10.0, 20.0, (), lives, 0.5)) == [2.5]


def test_outcomes_are_told_drawn_and_written(tmp_path: Path) -> None:
    chunks = (Chunk("worker-0-1", 2.0, 4.0, counts=True), Chunk("worker-0-1", 4.0, 6.0, counts=False))
    lives = (life("one", "worker-0-1", 1.0, None), life(SERVICE, "", 3.0, None, running=5.0))
    day = Outcome("service", 0.0, 20.0, (job(*chunks),), lives, 0.5)
    assert "| 20 s | 3.5% | 1 | 5.0 s | 5.0 s | 3.0 s | 0 | 0.0 s | 2 | 0 | 1 of 2 chunks |" in service.table(
        [day]
    )
    assert [bar.verdict for bar in service.verdicts([day])] == ["short", "short"]
    assert "| gang | 20 s | 3.5% | 4 s | 4 s | 9 s | 1 of 2 chunks |" in eight.table(
        [Outcome("gang", 0.0, 20.0, day.jobs, lives, 0.5)]
    )
    assert "| even | 20 s | 3.5% | one | 4 s | 9 s | 1 | 0 ms |" in two.table(
        [Outcome("even", 0.0, 20.0, day.jobs, lives, 0.5)]
    )
    write([day], two.SHORT, tmp_path / "times.json")
    assert json.loads((tmp_path / "times.json").read_text())["outcomes"][0]["used"] == day.used
    pytest.importorskip("matplotlib")
    telling.draw([day], tmp_path / "picture.svg", 2.0)
    assert "service: 20 s" in (tmp_path / "picture.svg").read_text()
