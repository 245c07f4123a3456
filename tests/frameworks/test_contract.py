"""What the loop of a worker relies on, for every framework of this package."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from elasticdl.catalog.catalog import read_catalog
from elasticdl.checkpoint.group import range_of
from elasticdl.checkpoint.stateimage import StateImage
from elasticdl.cluster.cluster import process_name
from elasticdl.control.protocol.metricstates import combine, pack, read_metrics, unpack
from elasticdl.errors import BadData, BadModel, TransferFailed
from elasticdl.spec import framework
from elasticdl.spec.edge import build, from_arguments
from elasticdl.spec.jobspec import PARQUET, JobSpec
from elasticdl.worker.contract.allreduce import Adapter, StepLogs
from elasticdl.worker.contract.evaluation import Evaluator
from elasticdl.worker.contract.framework import Framework
from elasticdl.worker.contract.ps import PsAdapter
from elasticdl.worker.contract.records import Columns
from tests import jax as jax_tests
from tests import mxnet as mxnet_tests
from tests import torch as torch_tests

ZOO = Path(__file__).parent / "zoo"
LIFE = process_name("worker-0-1")
BACKEND = os.environ.get("KERAS_BACKEND", "tensorflow")
NAMES = (
    ("jax", "keras", "mxnet", "reference", "tf_keras", "torch")
    if BACKEND == "tensorflow"
    else (f"keras_{BACKEND}",)
)
"""Those of this package; what is installed besides is not tested here. Keras computes with one library in a process."""
NEEDS: dict[str, Callable[[], None]] = {
    "jax": jax_tests.need_jax,
    "mxnet": mxnet_tests.need_mxnet,
    "torch": torch_tests.need_torch,
}
with_servers = pytest.mark.parametrize(
    "found", [name for name in NAMES if framework.find(name).has_ps], indirect=True
)


def records(count: int, first: int = 0) -> list[list[str]]:
    return [
        [str((first + n) * 7 % 30), str((first + n) * 3 % 30), "0.5", str(n % 5), str((first + n) % 3)]
        for n in range(count)
    ]


@pytest.fixture(params=NAMES)
def found(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Framework]:
    monkeypatch.setenv(
        "TF_USE_LEGACY_KERAS", "0"
    )  # what starting tf_keras sets is not for the tests that follow
    NEEDS.get(request.param, lambda: None)()
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


def fresh(found: Framework, **settings: Any) -> Adapter:
    """Return an adapter that nobody has used."""
    spec = job(found, **settings)
    made: Adapter = found.adapter(found.load(spec), spec, None, LIFE)
    made.prepare(records(8))
    return made


def fresh_with_servers(found: Framework) -> PsAdapter:
    """Return such an adapter with parameter servers."""
    spec = job(found, "lookups", num_ps_pods=1, embedding_threshold=0, feed="feed_ids")
    made: PsAdapter = found.ps_adapter(found.load(spec), spec, None, LIFE)
    made.prepare(records(8))
    return made


@pytest.fixture(scope="module")
def used() -> dict[str, list[tuple[Adapter, StateImage]]]:
    """Adapters of tests that are over, with their first states, by framework: making one compiles its functions, which takes longest."""
    return {}


@pytest.fixture
def adapter(
    found: Framework, used: dict[str, list[tuple[Adapter, StateImage]]]
) -> Iterator[Callable[[], Adapter]]:
    """Return an adapter in its first state."""
    there, taken = used.setdefault(found.name, []), []

    def take() -> Adapter:
        if not there:
            made = fresh(found)
            there.append((made, made.image()))
        taken.append(there.pop())
        return taken[-1][0]

    yield take
    for made, first in taken:
        made.load(first)
        made.zero()
    there.extend(taken)


@pytest.fixture(scope="module")
def used_with_servers() -> dict[str, list[PsAdapter]]:
    """Such adapters with parameter servers."""
    return {}


@pytest.fixture
def ps_adapter(
    found: Framework, used_with_servers: dict[str, list[PsAdapter]]
) -> Iterator[Callable[[], PsAdapter]]:
    """Return an adapter with its first values."""
    there, taken = used_with_servers.setdefault(found.name, []), []

    def take() -> PsAdapter:
        taken.append(there.pop() if there else fresh_with_servers(found))
        return taken[-1]

    yield take
    for made in taken:
        for variable, value in enumerate(made.first_values()):
            made.take(variable, value)
    there.extend(taken)


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


# ---------------------------------------------------------------------- feed


def test_a_column_that_feed_asks_for_and_the_data_lacks_is_bad_data(found: Framework) -> None:
    spec = job(found)
    user = found.load(spec)

    @functools.wraps(user.feed)  # frameworks look at the names of its arguments
    def feed(given: Any, mode: str, metadata: Any) -> Any:
        if isinstance(given, dict):
            return given["height"], given["width"]
        if isinstance(getattr(given, "element_spec", None), dict):
            return given.map(lambda row: (row["height"], row["width"]))
        return user.feed(given, mode, metadata)

    asking = replace(user, feed=feed)
    rows = Columns(2, {"width": np.zeros(2, np.float32), "heigth": np.zeros(2, np.float32)})
    said = r"feed failed: KeyError: 'height'.*; the data has no column 'height'; did you mean heigth\?; it has width, heigth$"
    with pytest.raises(BadData, match=said):
        found.adapter(asking, spec, None, LIFE).prepare(rows)
    trains = found.adapter(asking, spec, None, LIFE)
    trains.prepare(records(8))
    with pytest.raises(BadData, match=said):
        trains.evaluator(None).prepare(rows)


# ---------------------------------------------------------------------- synchronous


def test_two_chunks_in_one_adapter_are_one_in_each_of_two(adapter: Callable[[], Adapter]) -> None:
    one, first, second = adapter(), adapter(), adapter()
    both, examples, loss = sum_of(one, (0, records(8)), (1, records(5, 8)))
    parts = [sum_of(first, (0, records(8))), sum_of(second, (1, records(5, 8)))]
    assert both.shape == (one.size,)
    assert both.dtype == one.dtype
    assert 0 < one.gradient_size <= one.size
    np.testing.assert_array_equal(both, parts[0][0] + parts[1][0])
    assert (examples, loss) == (parts[0][1] + parts[1][1], pytest.approx(parts[0][2] + parts[1][2]))
    assert examples == 13
    result = both.copy()
    for made in (one, first, second):
        made.apply(result, examples)
    assert one.digest() == first.digest() == second.digest() != adapter().digest()


def test_a_chunk_depends_on_its_place_and_on_nothing_else(
    found: Framework, adapter: Callable[[], Adapter]
) -> None:
    busy, new = adapter(), fresh(found)
    sum_of(busy, (3, records(7, 40)), step=9)
    busy.zero()
    np.testing.assert_array_equal(sum_of(busy, (1, records(8)))[0], sum_of(new, (1, records(8)))[0])
    new.zero()
    assert not np.array_equal(sum_of(new, (2, records(8)))[0], sum_of(busy, (1, records(8)))[0])


def test_computing_leaves_the_committed_state_and_a_step_without_examples_too(
    adapter: Callable[[], Adapter],
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
    found: Framework, adapter: Callable[[], Adapter]
) -> None:
    spec = job(found)
    other = found.adapter(found.load(spec), spec, None, LIFE)
    other.prepare(records(3, 50))
    assert other.digest() == adapter().digest() != fresh(found, seed=8).digest()


def test_a_worker_that_was_healed_continues_like_its_donor(
    found: Framework, adapter: Callable[[], Adapter]
) -> None:
    donor, joiner = adapter(), fresh(found)
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


def test_parts_that_members_copy_make_the_image_and_are_copies(adapter: Callable[[], Adapter]) -> None:
    made = adapter()
    train(made, 2)
    image, (meta, size) = made.image(), made.describe_image()
    assert (meta, size) == (image.meta, image.body.nbytes)
    ranges = [range_of(rank, 3, size) for rank in range(3)]
    parts = [made.image_part(first, end) for first, end in ranges]
    train(made, 1)
    assert np.concatenate(parts).tobytes() == image.body.tobytes() != made.image().body.tobytes()


def test_the_state_of_another_model_changes_nothing(found: Framework, adapter: Callable[[], Adapter]) -> None:
    made = adapter()
    image, digest = made.image(), made.digest()
    for wrong in (replace(image, body=image.body[:-1]), replace(image, meta={**image.meta, "arrays": []})):
        with pytest.raises(TransferFailed):
            made.load(wrong)
        assert made.digest() == digest


def test_training_lowers_the_loss_and_reports_it(adapter: Callable[[], Adapter]) -> None:
    made = adapter()
    losses = []
    for step in range(1, 31):
        result, examples, loss = sum_of(made, (0, records(8)), step=step)
        losses.append(loss / examples)
        made.apply(result, examples)
        assert made.logs(StepLogs(step, 0, loss / examples, False, None)) is None
    assert np.mean(losses[-5:]) < np.mean(losses[:5])


def test_a_callback_hears_of_the_end_and_the_state_stays(found: Framework) -> None:
    made = fresh(found)
    train(made, 1)
    made.logs(StepLogs(1, 0, 0.5, True, 0.5))
    written = sys.modules[f"for_{found.name}"].WRITTEN
    digest, before = made.digest(), len(written)
    made.writes = True
    made.end_training(1)
    assert written[before:] == [(1, True)]
    assert made.digest() == digest


def test_the_result_is_written_in_each_format_and_the_state_stays(
    found: Framework, adapter: Callable[[], Adapter], tmp_path: Path
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


# ---------------------------------------------------------------------- evaluation

TASKS = [[records(8), records(8, 8)], [records(5, 16)], [], [records(8, 30)]]


def state_of(
    evaluator: Evaluator, task: int, rows: Callable[[Any], list[npt.NDArray[np.float32]]] = lambda batch: []
) -> list[npt.NDArray[Any]]:
    evaluator.begin_task(task)
    for raw in TASKS[task]:
        batch = evaluator.convert(raw)
        assert evaluator.evaluate(batch, rows(batch)) == len(raw)
    return evaluator.task_state()


def evaluator_of(made: Adapter | PsAdapter) -> Evaluator:
    evaluator = made.evaluator(None)
    evaluator.prepare(TASKS[0][0])
    return evaluator


def test_values_do_not_depend_on_who_evaluated_which_task(adapter: Callable[[], Adapter]) -> None:
    workers = [evaluator_of(adapter()), evaluator_of(adapter())]
    catalog = workers[0].catalog()
    assert read_metrics(workers[1].catalog().text()) == catalog
    assert [one.name for one in catalog.metrics] == ["val_loss", "val_accuracy", "val_right"]
    found = []
    for split in ([0, 0, 0, 0], [1, 0, 1, 0], [1, 1, 0, 0]):
        states = {task: pack(state_of(workers[split[task]], task)) for task in (3, 1, 0, 2)}
        in_order = [unpack(catalog.task_arrays(), states[task]) for task in range(len(TASKS))]
        found += [worker.metric_values(combine(catalog, in_order)) for worker in workers]
    assert all(one == found[0] for one in found)
    assert found[0]["val_accuracy"] == pytest.approx(found[0]["val_right"])
    assert found[0]["val_accuracy"] * 29 == pytest.approx(round(found[0]["val_accuracy"] * 29))


def test_an_evaluation_changes_nothing_that_is_trained(adapter: Callable[[], Adapter]) -> None:
    made, undisturbed = adapter(), adapter()
    train(made, 2)
    train(undisturbed, 2)
    digest, evaluator = made.digest(), evaluator_of(made)
    result, examples, _ = sum_of(made, (0, records(8)), step=3)
    state_of(evaluator, 0)
    np.testing.assert_array_equal(np.array(made.accumulator()), result)
    assert made.digest() == digest
    made.apply(result, examples)
    result, examples, _ = sum_of(undisturbed, (0, records(8)), step=3)
    undisturbed.apply(result, examples)
    assert made.digest() == undisturbed.digest()


def test_what_is_evaluated_is_the_present_state_without_dropout(adapter: Callable[[], Adapter]) -> None:
    made = adapter()
    evaluator = evaluator_of(made)
    first = evaluator.metric_values(combine(evaluator.catalog(), [state_of(evaluator, 0)]))
    again = evaluator.metric_values(combine(evaluator.catalog(), [state_of(evaluator, 0)]))
    train(made, 20)
    trained = evaluator.metric_values(combine(evaluator.catalog(), [state_of(evaluator, 0)]))
    assert first == again != trained
    assert isinstance(first["val_loss"], float)
    assert isinstance(trained["val_loss"], float)
    assert trained["val_loss"] < first["val_loss"]


def test_feed_hears_that_it_is_for_an_evaluation(found: Framework) -> None:
    spec, heard = job(found), []
    user = found.load(spec)

    def feed(data: Any, mode: str, metadata: Any) -> Any:
        heard.append((mode, metadata))
        return user.feed(data, mode, metadata)

    made = found.adapter(replace(user, feed=feed), spec, "of training", LIFE)
    made.prepare(records(8))
    assert set(heard) == {("training", "of training")}
    heard.clear()
    made.evaluator("of evaluation").prepare(records(8))
    assert set(heard) == {("evaluation", "of evaluation")}


def test_evaluation_data_without_an_example_is_refused(adapter: Callable[[], Adapter]) -> None:
    evaluator = evaluator_of(adapter())
    with pytest.raises(BadData, match="feed made no example of the evaluation data"):
        evaluator.metric_values(combine(evaluator.catalog(), [state_of(evaluator, 2)]))


NO_METRICS: list[tuple[dict[str, Any], str]] = [
    ({}, "is an empty dict"),
    ({"loss": len}, "has the name of the loss"),
    ({"accuracy": 3}, "expected a .*function .labels, .*, received 3"),
    ({"short": lambda labels, outputs: outputs[:3]}, "expected one value per example"),
    ({"failing": lambda labels, outputs: outputs["x"]}, "failing.* failed|evaluation of the first chunk failed"),
    ({"no": {"such": lambda labels, outputs: labels}}, r"\['no'\]\['such'\]: the model"),
]  # fmt: skip


def test_what_is_no_metric_of_the_model_is_refused(found: Framework) -> None:
    spec = job(found)
    given: dict[str, Any] = {}
    user = replace(found.load(spec), eval_metrics_fn=lambda: given["metrics"])
    adapter = found.adapter(user, spec, None, LIFE)
    adapter.prepare(records(8))
    for given["metrics"], said in NO_METRICS:
        with pytest.raises(BadModel, match=said) as refused:
            evaluator_of(adapter)
        assert f"for_{found.name}.py" in str(refused.value)


# ---------------------------------------------------------------------- parameter servers


def rows_of(made: PsAdapter, batch: Any, value: float = 0.25) -> list[npt.NDArray[np.float32]]:
    return [
        np.full(len(ids) * table.width, value, np.float32)
        for ids, table in zip(batch.batches, made.catalog.tables, strict=True)
    ]


@with_servers
def test_equal_workers_find_equal_models_on_the_servers(ps_adapter: Callable[[], PsAdapter]) -> None:
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


@with_servers
def test_gradients_are_a_function_of_weights_rows_and_place(ps_adapter: Callable[[], PsAdapter]) -> None:
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


@with_servers
def test_the_gradient_of_the_rows_is_that_of_the_loss(ps_adapter: Callable[[], PsAdapter]) -> None:
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


@with_servers
def test_rows_and_variables_that_are_taken_are_evaluated(ps_adapter: Callable[[], PsAdapter]) -> None:
    workers = [ps_adapter(), ps_adapter()]
    evaluators = [evaluator_of(made) for made in workers]
    catalog = evaluators[0].catalog()

    def values(rows: float) -> dict[str, Any]:
        states = [
            state_of(
                evaluators[task % 2],
                task,
                lambda batch: rows_of(workers[0], batch, rows) if batch.examples else [],
            )
            for task in range(len(TASKS))
        ]
        return evaluators[0].metric_values(combine(catalog, states))

    for made in workers:
        for variable, value in enumerate(made.first_values()):
            made.take(variable, np.linspace(0, 1, len(value), dtype=np.float32))
    first = values(0.25)
    assert values(0.25) == first
    assert values(0.5)["val_loss"] != first["val_loss"]
    batch = workers[0].convert(records(8))
    gradients = [made.compute(batch, rows_of(made, batch), 1, 2).loss for made in workers]
    evaluators[0].begin_task(0)
    evaluators[0].evaluate(batch, rows_of(workers[0], batch))
    alone = evaluators[0].metric_values(combine(catalog, [evaluators[0].task_state()]))
    assert alone["val_loss"] == pytest.approx(gradients[0], rel=1e-5)
    assert gradients[0] == gradients[1]
    for made in workers:
        for variable, value in enumerate(made.first_values()):
            made.take(variable, value)
    assert values(0.25)["val_loss"] != first["val_loss"]


@with_servers
def test_ids_outside_of_a_table_are_bad_data(ps_adapter: Callable[[], PsAdapter]) -> None:
    made = ps_adapter()
    with pytest.raises(BadData, match="the ids 0 to 29, received"):
        made.convert([["31", "1", "0", "0", "1"]])


@with_servers
def test_a_model_takes_the_catalog_of_its_checkpoint_only(found: Framework) -> None:
    made = fresh_with_servers(found)
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


@with_servers
def test_what_is_on_the_servers_is_written(found: Framework, tmp_path: Path) -> None:
    digests, suffixes = set(), {one.name: one.suffix for one in found.formats}
    for form in [*suffixes, PARQUET]:
        made = fresh_with_servers(found)
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


@with_servers
def test_a_checkpoints_model_is_written_without_data(
    found: Framework, ps_adapter: Callable[[], PsAdapter], tmp_path: Path
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
