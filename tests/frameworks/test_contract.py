"""What the loop of a worker relies on, for every framework of this package."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from elasticdl.catalog.catalog import read_catalog
from elasticdl.checkpoint.stateimage import StateImage
from elasticdl.cluster.cluster import process_name
from elasticdl.errors import BadData, BadModel, TransferFailed
from elasticdl.spec import framework
from elasticdl.spec.edge import build, from_arguments
from elasticdl.spec.jobspec import PARQUET, JobSpec
from elasticdl.worker.contract.allreduce import Adapter, StepLogs
from elasticdl.worker.contract.framework import Framework
from elasticdl.worker.contract.ps import PsAdapter

ZOO = Path(__file__).parent / "zoo"
LIFE = process_name("worker-0-1")
NAMES = ("keras", "reference")
"""Those of this package; what is installed besides is not tested here."""


def records(count: int, first: int = 0) -> list[list[str]]:
    return [
        [str((first + n) * 7 % 30), str((first + n) * 3 % 30), "0.5", str(n % 5), str((first + n) % 3)]
        for n in range(count)
    ]


@pytest.fixture(params=NAMES)
def found(request: pytest.FixtureRequest) -> Iterator[Framework]:
    made: Framework = framework.find(request.param)
    made.start(1)
    yield made
    for name in [one for one in sys.modules if one.startswith("for_")]:
        del sys.modules[name]


def job(made: Framework, model: str = "custom_model", **settings: Any) -> JobSpec:
    asked = {
        "model_zoo": str(ZOO),
        "model_def": f"for_{made.name}.{model}",
        "training_data": "x",
        "framework": made.name,
    }
    return build(from_arguments({**asked, "minibatch_size": 8, "seed": 7, **settings}))


@pytest.fixture
def adapter(found: Framework) -> Callable[..., Adapter]:
    def make(**settings: Any) -> Adapter:
        spec = job(found, **settings)
        made = found.adapter(found.load(spec), spec, None, LIFE)
        made.prepare(records(8))
        return made

    return make


@pytest.fixture
def ps_adapter(found: Framework) -> Callable[..., PsAdapter]:
    def make(**settings: Any) -> PsAdapter:
        spec = job(found, "lookups", num_ps_pods=1, embedding_threshold=0, **{"feed": "feed_ids", **settings})
        made = found.ps_adapter(found.load(spec), spec, None, LIFE)
        made.prepare(records(8))
        return made

    return make


def sum_of(
    made: Adapter, *chunks: tuple[int, list[list[str]]], step: int = 1
) -> tuple[npt.NDArray[Any], float, float]:
    """Compute chunks, given as (lane, records); return a copy of the accumulator, the examples and the loss."""
    examples = loss = 0.0
    for lane, raw in chunks:
        done = made.compute(made.convert(raw), step, lane)
        examples, loss = examples + done.examples, loss + done.loss
    return np.array(made.accumulator()), examples, loss


def train(made: Adapter, steps: int) -> None:
    for step in range(1, steps + 1):
        result, examples, _ = sum_of(made, (0, records(8, 8 * step)), step=step)
        made.apply(result, examples)


# ---------------------------------------------------------------------- synchronous


def test_two_chunks_in_one_adapter_are_one_in_each_of_two(adapter: Callable[..., Adapter]) -> None:
    one, first, second = adapter(), adapter(), adapter()
    both, examples, loss = sum_of(one, (0, records(8)), (1, records(5, 8)))
    parts = [sum_of(first, (0, records(8))), sum_of(second, (1, records(5, 8)))]
    assert both.shape == (one.size,)
    assert both.dtype == one.dtype
    np.testing.assert_array_equal(both, parts[0][0] + parts[1][0])
    assert (examples, loss) == (parts[0][1] + parts[1][1], pytest.approx(parts[0][2] + parts[1][2]))
    assert examples == 13
    result = both.copy()
    for made in (one, first, second):
        made.apply(result, examples)
    assert one.digest() == first.digest() == second.digest() != adapter().digest()


def test_a_chunk_depends_on_its_place_and_on_nothing_else(adapter: Callable[..., Adapter]) -> None:
    busy, fresh = adapter(), adapter()
    sum_of(busy, (3, records(7, 40)), step=9)
    busy.zero()
    np.testing.assert_array_equal(sum_of(busy, (1, records(8)))[0], sum_of(fresh, (1, records(8)))[0])
    fresh.zero()
    assert not np.array_equal(sum_of(fresh, (2, records(8)))[0], sum_of(busy, (1, records(8)))[0])


def test_computing_leaves_the_committed_state_and_a_step_without_examples_too(
    adapter: Callable[..., Adapter],
) -> None:
    made = adapter()
    digest = made.digest()
    result, _, _ = sum_of(made, (0, records(8)))
    assert np.any(result)
    assert made.digest() == digest
    made.apply(np.zeros(made.size, made.dtype), 0.0)
    assert made.digest() == digest
    assert not np.any(np.array(made.accumulator()))


def test_preparing_with_other_records_makes_the_same_model(
    found: Framework, adapter: Callable[..., Adapter]
) -> None:
    spec = job(found)
    other = found.adapter(found.load(spec), spec, None, LIFE)
    other.prepare(records(3, 50))
    assert other.digest() == adapter().digest() != adapter(seed=8).digest()


def test_a_worker_that_was_healed_continues_like_its_donor(adapter: Callable[..., Adapter]) -> None:
    donor, joiner = adapter(), adapter()
    train(donor, 3)
    image = donor.image()
    # as it travels: through JSON, and at any address
    sent = StateImage(
        json.loads(json.dumps(image.meta)), np.frombuffer(b"-" + image.body.tobytes(), np.uint8)[1:]
    )
    train(donor, 1)
    joiner.load(sent)
    assert joiner.digest() != donor.digest()
    train(joiner, 1)
    assert joiner.digest() == donor.digest()


def test_the_state_of_another_model_changes_nothing(
    found: Framework, adapter: Callable[..., Adapter]
) -> None:
    made = adapter()
    image, digest = made.image(), made.digest()
    for wrong in (replace(image, body=image.body[:-1]), replace(image, meta={**image.meta, "arrays": []})):
        with pytest.raises(TransferFailed):
            made.load(wrong)
        assert made.digest() == digest


def test_training_lowers_the_loss_and_reports_it(adapter: Callable[..., Adapter]) -> None:
    made = adapter()
    losses = []
    for step in range(1, 31):
        result, examples, loss = sum_of(made, (0, records(8)), step=step)
        losses.append(loss / examples)
        made.apply(result, examples)
        assert made.logs(StepLogs(step, 0, loss / examples, False, None)) is None
    assert np.mean(losses[-5:]) < np.mean(losses[:5])


def test_a_callback_hears_of_the_end_and_the_state_stays(
    found: Framework, adapter: Callable[..., Adapter]
) -> None:
    made = adapter()
    train(made, 1)
    made.logs(StepLogs(1, 0, 0.5, True, 0.5))
    written = sys.modules[f"for_{found.name}"].WRITTEN
    digest, before = made.digest(), len(written)
    made.writes = True
    made.end_training()
    assert written[before:] == [(1, True)]
    assert made.digest() == digest


def test_the_result_is_written_in_each_format_and_the_state_stays(
    found: Framework, adapter: Callable[..., Adapter], tmp_path: Path
) -> None:
    made = adapter()
    train(made, 1)
    digest = made.digest()
    for form in found.formats:
        target = tmp_path / f"model{form.suffix}"
        assert made.export(str(target), form.name) == digest
        assert target.is_file() if form.suffix else target.is_dir()
    first, left = found.formats[0], sorted(path.name for path in tmp_path.iterdir())
    assert left == sorted(f"model{form.suffix}" for form in found.formats)
    assert made.export("", first.name) == digest == made.digest()
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"Not a directory|File exists"):
        made.export(str(tmp_path / "file" / f"model{first.suffix}"), first.name)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*left, "file"])
    assert made.digest() == digest


# ---------------------------------------------------------------------- parameter servers


def rows_of(made: PsAdapter, batch: Any, value: float = 0.25) -> list[npt.NDArray[np.float32]]:
    return [
        np.full(len(ids) * table.width, value, np.float32)
        for ids, table in zip(batch.batches, made.catalog.tables, strict=True)
    ]


def test_equal_workers_find_equal_models_on_the_servers(ps_adapter: Callable[..., PsAdapter]) -> None:
    one, other = ps_adapter(), ps_adapter()
    assert one.catalog.text() == other.catalog.text()
    assert read_catalog(one.catalog.text()).text() == one.catalog.text()
    assert [(table.name, table.width) for table in one.catalog.tables] == [("embeddings", 4)]
    for first, same, described in zip(
        one.first_values(), other.first_values(), one.catalog.variables, strict=True
    ):
        assert first.shape == (described.size,)
        assert first.dtype == np.float32
        np.testing.assert_array_equal(first, same)


def test_gradients_are_a_function_of_weights_rows_and_place(ps_adapter: Callable[..., PsAdapter]) -> None:
    one, other = ps_adapter(), ps_adapter()
    other.compute(other.convert(records(5, 60)), rows_of(other, other.convert(records(5, 60))), 9, 9)
    found = []
    for made in (one, other, one):
        batch = made.convert(records(8))
        assert batch.examples == 8
        found.append(made.compute(batch, rows_of(made, batch), 1, 2))
    first, *others = found
    assert [len(values) for values in first.dense] == [one.size for one in one.catalog.variables]
    batch = one.convert(records(8))
    assert [len(values) for values in first.rows] == [len(ids) * 4 for ids in batch.batches]
    assert any(np.any(values) for values in first.dense)
    assert any(np.any(values) for values in first.rows)
    for same in others:
        assert same.loss == first.loss
        for mine, theirs in zip((*first.dense, *first.rows), (*same.dense, *same.rows), strict=True):
            np.testing.assert_array_equal(mine, theirs)
    for variable, value in enumerate(one.first_values()):
        one.take(variable, np.linspace(-1, 1, len(value), dtype=np.float32))
    assert one.compute(batch, rows_of(one, batch), 1, 2).loss != first.loss
    assert other.compute(batch, rows_of(other, batch, 0.5), 1, 2).loss != first.loss


def test_the_gradient_of_the_rows_is_that_of_the_loss(ps_adapter: Callable[..., PsAdapter]) -> None:
    made = ps_adapter()
    batch = made.convert(records(8))
    for variable, value in enumerate(made.first_values()):
        made.take(variable, np.linspace(-1, 1, len(value), dtype=np.float32))
    rows = rows_of(made, batch)
    slope = made.compute(batch, rows, 0, 0).rows[0]
    at = int(np.argmax(np.abs(slope)))
    losses = []
    for change in (-0.01, 0.01):
        moved = [row.copy() for row in rows]
        moved[0][at] += change
        losses.append(made.compute(batch, moved, 0, 0).loss)
    assert (losses[1] - losses[0]) / 0.02 == pytest.approx(slope[at], rel=0.02)


def test_ids_outside_of_a_table_are_bad_data(ps_adapter: Callable[..., PsAdapter]) -> None:
    made = ps_adapter()
    with pytest.raises(BadData, match="the ids 0 to 29, received"):
        made.convert([["31", "1", "0", "0", "1"]])


def test_a_model_takes_the_catalog_of_its_checkpoint_only(ps_adapter: Callable[..., PsAdapter]) -> None:
    made = ps_adapter()
    made.adopt(replace(made.catalog, seed=99, slots=64))
    assert (made.catalog.seed, made.catalog.slots) == (99, 64)
    with pytest.raises(BadModel, match="of another model: the name of a table other and embeddings"):
        made.adopt(replace(made.catalog, tables=[replace(made.catalog.tables[0], name="other")]))


class Rows:
    """Tables as they would be on servers."""

    def matrix(self, table: int, rows: int) -> Iterator[npt.NDArray[np.float32]]:
        yield np.full((rows - 10, 4), 1.0, np.float32)
        yield np.full((10, 4), 2.0, np.float32)

    def trained(self, table: int) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]]:
        yield np.arange(3), np.ones((3, 4), np.float32)


def test_what_is_on_the_servers_is_written(
    found: Framework, ps_adapter: Callable[..., PsAdapter], tmp_path: Path
) -> None:
    digests, suffixes = set(), {one.name: one.suffix for one in found.formats}
    for form in [*suffixes, PARQUET]:
        made = ps_adapter()
        for variable, value in enumerate(made.first_values()):
            made.take(variable, value)
        assert made.acts_at_end
        made.end_training(5, True)
        target = (
            tmp_path / f"model{next((one.suffix for one in found.formats if one.name == form), '')}-{form}"
        )
        target = target.with_name(
            f"{form}{next((one.suffix for one in found.formats if one.name == form), '')}"
        )
        digests.add(made.export(str(target), form, Rows()))
        assert target.exists()
    assert len(digests) == 2  # Parquet's is of the variables only


def test_a_checkpoints_model_is_written_without_data(
    found: Framework, ps_adapter: Callable[..., PsAdapter], tmp_path: Path
) -> None:
    made = ps_adapter()
    spec = job(found, "lookups", num_ps_pods=1, embedding_threshold=0, feed="feed_ids")
    restored = found.restored(found.load(spec), made.catalog, 0)
    assert restored.rows() == {0: 30}
    values = {number: value + np.float32(1) for number, value in enumerate(made.first_values())}
    target = tmp_path / f"model{found.formats[0].suffix}"
    restored.export(str(target), found.formats[0].name, values, Rows())
    assert target.exists()
    with pytest.raises(BadModel, match="the checkpoint has the tables"):
        found.restored(found.load(spec), replace(made.catalog, tables=[]), 0)
