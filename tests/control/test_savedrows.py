"""Rows of a checkpoint are found by their ids, whatever these are; ids without a row have initial weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl.catalog.catalog import Catalog, Initial, InitialKind, Rule, Table, Variable
from elasticdl.checkpoint import savedrows
from elasticdl.checkpoint.manifest import Manifest
from elasticdl.checkpoint.savedrows import SavedRows
from elasticdl.control.protocol.psmessages import SlotSection
from elasticdl.data.plan.order import Dealing
from elasticdl.data.plan.shard import Shard
from elasticdl.errors import BadData, Unwritable

WIDTHS = (3, 1, 2)
ROWS = 5000
CATALOG = Catalog(
    9,
    [Table(f"t{width}", width, Initial(InitialKind.UNIFORM, -1.0, 1.0)) for width in WIDTHS],
    [Variable("v", (2,))],
    Rule("sgd", {"momentum": 0.0, "nesterov": 0.0}),
)


def manifest_of(folder: Path, catalog: Catalog, rows: int) -> Manifest:
    """Return a manifest of one slot with so many rows."""
    section = SlotSection(0, 1, 0, 8, 0, 0, 0, 0, rows, 0, "0" * 32)
    dealing = Dealing((Shard("x", 0, 1),), 0, False, 1, 1, 0)
    return Manifest(
        1, "job", 1.0, 0, (), 0, dealing, json.loads(catalog.text()), ((folder / "a.slots", section),)
    )


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[dict[int, np.ndarray]]:
    """The rows of each table, in many slots; the last table has none."""
    random = np.random.default_rng(1)
    ids = np.concatenate([random.integers(-(2**63), 2**63 - 1, ROWS // 2), np.arange(ROWS // 2)])
    random.shuffle(ids)
    tables = [
        {int(one): random.random(width, np.float32) for one in (ids if width != WIDTHS[-1] else ())}
        for width in WIDTHS
    ]

    def contents(manifest: Manifest, core: Any) -> Any:
        for first in range(0, ROWS, 700):
            slot = []
            for table, width in zip(tables, WIDTHS, strict=True):
                some = list(table.items())[first : first + 700]
                weights = np.concatenate([np.empty(0, np.float32), *(row for _, row in some)])
                slot.append((np.array([one for one, _ in some], np.int64), weights.reshape(-1)))
                assert len(weights) == width * len(some)
            yield slot, {0: np.array([1.0, 2.0], np.float32)} if first == 700 else {}

    monkeypatch.setattr(savedrows, "contents", contents)
    # many parts, and many pieces of each
    monkeypatch.setattr(savedrows, "_HELD", 9000)
    monkeypatch.setattr(savedrows, "_SORTED", 4000)
    return tables


def test_every_row_is_found_and_others_are_initial(held: list[dict[int, np.ndarray]], tmp_path: Path) -> None:
    room = tmp_path / "room"
    saved = SavedRows(manifest_of(tmp_path, CATALOG, 2 * ROWS), room)
    assert saved.values[0].tolist() == [1.0, 2.0]
    assert list(room.iterdir()) == [], "files have no name"
    for number, rows in enumerate(held):
        there = list(rows)[::-1]
        missing = [one for one in (*range(ROWS // 2, ROWS), 2**62, -1) if one not in rows]
        wanted = np.array([*there, *missing], np.int64)
        found = saved.rows(number, wanted)
        assert found.shape == (len(wanted), WIDTHS[number])
        for one, row in zip(there, found, strict=False):
            assert np.array_equal(row, rows[one])
        ids = np.array(missing, np.int64)
        initial = np.frombuffer(CATALOG.core().initial(number, ids.data), np.float32)
        assert np.array_equal(found[len(there) :].reshape(-1), initial)
        assert saved.rows(number, np.empty(0, np.int64)).shape == (0, WIDTHS[number])


def test_a_variable_without_a_value_is_refused(held: list[dict[int, np.ndarray]], tmp_path: Path) -> None:
    catalog = Catalog(9, CATALOG.tables, [*CATALOG.variables, Variable("w", (1,))], CATALOG.rule)
    with pytest.raises(BadData, match="the checkpoint has no value of w: nothing had been trained"):
        SavedRows(manifest_of(tmp_path, catalog, 1), tmp_path / "room")


def test_a_place_that_takes_no_files_is_said(held: list[dict[int, np.ndarray]], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unwritable, match=r"the rows of .* can't be written to .*file"):
        SavedRows(manifest_of(tmp_path, CATALOG, 1), tmp_path / "file")
