"""Readers that users write: those of the earlier generation's shape, and mistakes in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from elasticdl.data.plan.ledger import Ledger
from elasticdl.data.plan.shard import Shard, Task
from elasticdl.data.readers.custom import CustomReader, TaskRange, open_custom_reader
from elasticdl.data.readers.reader import Metadata, shards_of
from elasticdl.errors import BadData, BadModel, BadSetting


class Numbers:
    """Record i of a shard is (shard, i)."""

    def __init__(self, shards: Any, short_by: int = 0) -> None:
        self.shards = shards
        self.short_by = short_by
        self.asked: list[tuple[int, int]] = []

    def create_shards(self) -> Any:
        return self.shards

    def read_records(self, task: TaskRange) -> Iterator[tuple[str, int]]:
        self.asked.append((task.start, task.end))
        for i in range(task.start, task.end - self.short_by):
            yield task.shard.name, i


def test_all_chunks_of_an_epoch_with_each_task_read_once() -> None:
    user = Numbers([("a", 0, 20), ("b", 100, 7)])
    reader = CustomReader(user)
    ledger = Ledger(shards_of(reader), records_per_task=8, minibatch_size=3, seed=1, shuffle=True)
    seen = []
    tasks = [ledger.task(0, place) for place in range(ledger.num_tasks)]
    for chunk in range(3):  # as in a wave: chunk by chunk of several tasks
        for task in tasks:
            seen += reader.read(task, ledger.chunk(task, chunk).tolist())
    assert sorted(seen) == [("a", i) for i in range(20)] + [("b", i) for i in range(100, 107)]
    assert sorted(user.asked) == [(0, 8), (8, 16), (16, 20), (100, 107)]


@pytest.mark.parametrize(
    "shards",
    [
        [("a", 0, 5), ("b", 0, 3), ("a", 10, 4)],
        {"a": [(0, 5), (10, 4)], "b": (0, 3)},
        {"a": [[0, 5], [10, 4]], "b": [0, 3]},
    ],
)
def test_several_ranges_of_one_name(shards: Any) -> None:
    reader = CustomReader(Numbers(shards))
    ledger = Ledger(shards_of(reader), records_per_task=4, minibatch_size=2, seed=1, shuffle=True)
    tasks = [ledger.task(0, place) for place in range(ledger.num_tasks)]
    seen = [
        one
        for task in tasks
        for chunk in range(2)
        for one in reader.read(task, ledger.chunk(task, chunk).tolist())
    ]
    assert sorted(seen) == [("a", i) for i in (0, 1, 2, 3, 4, 10, 11, 12, 13)] + [("b", i) for i in range(3)]


@pytest.mark.parametrize("shards", [{"a": [(0, 5), (4, 4)]}, [("a", 0, 5), ("a", 4, 4)]])
def test_ranges_of_one_name_that_overlap(shards: Any) -> None:
    with pytest.raises(BadData, match="returned two shards that overlap"):
        shards_of(CustomReader(Numbers(shards)))


def test_a_task_is_forgotten_when_its_records_are_handed_out() -> None:
    user = Numbers([("a", 0, 4)])
    reader = CustomReader(user)
    task = Task(0, 0, Shard("a", 0, 4), 0, 4)
    for _ in range(2):
        reader.read(task, [3, 0])
        reader.read(task, [1, 2])
    assert user.asked == [(0, 4), (0, 4)]
    assert not reader._kept


def test_tasks_that_nobody_finishes_do_not_pile_up() -> None:
    reader = CustomReader(Numbers([("a", 0, 1000)]))
    for i in range(100):
        reader.read(Task(i, 0, Shard("a", 0, 1000), i * 10, i * 10 + 10), [i * 10])
    assert len(reader._kept) <= 32


def test_readers_of_the_earlier_generation_find_what_they_look_for() -> None:
    class Old(Numbers):
        def read_records(self, task: TaskRange) -> Iterator[tuple[str, int]]:
            assert (task.shard.start, task.shard.end, task.shard.indices) == (task.start, task.end, None)
            for i in range(task.shard.start, task.shard.end):
                yield task.shard_name, i

    reader = CustomReader(Old({"a": (10, 5)}))
    assert shards_of(reader) == (Shard("a", 10, 5),)
    task = Task(1, 0, Shard("a", 10, 5), 12, 15)
    assert reader.read(task, [14, 12]) == [("a", 14), ("a", 12)]
    assert list(reader.read_records(task)) == [("a", 12), ("a", 13), ("a", 14)]
    assert reader.metadata == Metadata()


def test_the_users_metadata_reaches_feed() -> None:
    class WithMetadata(Numbers):
        metadata = Metadata(("x",), {"x": "int64"})

    assert CustomReader(WithMetadata([])).metadata.column_names == ("x",)


@pytest.mark.parametrize(("short_by", "got"), [(1, "gave 4 records"), (-1, "gave more than 5 records")])
def test_a_reader_that_gives_too_few_or_too_many(short_by: int, got: str) -> None:
    reader = CustomReader(Numbers([("a", 0, 5)], short_by))
    with pytest.raises(
        BadData, match=rf"read_records of Numbers {got} for the records 0 to 4 of shard 'a'; expected 5"
    ):
        reader.read(Task(0, 0, Shard("a", 0, 5), 0, 5), [0])


def test_an_endless_reader_is_cut_off() -> None:
    class Endless(Numbers):
        def read_records(self, task: TaskRange) -> Iterator[tuple[str, int]]:
            while True:
                yield "a", 0

    with pytest.raises(BadData, match="more than 5"):
        CustomReader(Endless([])).read(Task(0, 0, Shard("a", 0, 5), 0, 5), [0])


def test_an_exception_of_the_user_comes_out_as_it_is() -> None:
    class Broken(Numbers):
        def read_records(self, task: TaskRange) -> Iterator[tuple[str, int]]:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        CustomReader(Broken([])).read(Task(0, 0, Shard("a", 0, 5), 0, 5), [0])


@pytest.mark.parametrize(
    "shards",
    [None, 5, [("a", 0)], [("a", 0, "5")], [("a", -1, 5)], [(1, 0, 5)], ["abc"], {"a": 5}, [("a", 0, 1.5)]],
)
def test_wrong_shards(shards: Any) -> None:
    with pytest.raises(BadData, match="create_shards must return"):
        shards_of(CustomReader(Numbers(shards)))


@pytest.mark.parametrize(
    ("shard", "shown"),
    [
        (("t", 0, 10**19), f"('t', 0, {10**19})"),
        (("t", 10**19, 5), f"('t', {10**19}, 5)"),
        (("t", 0, 2**53 + 1), f"('t', 0, {2**53 + 1})"),
        (("t", 0, -(10**19)), f"('t', 0, {-(10**19)})"),
        (("t", 0, 10**5000), "('t', 0, an integer of 16,610 bits)"),
        (("t", False, 5), "('t', False, 5)"),
        (("t", 0, True), "('t', 0, True)"),
    ],
)
def test_numbers_that_no_shard_has(shard: tuple[str, int, int], shown: str) -> None:
    reader = CustomReader(Numbers([("a", 0, 5), shard]))
    with pytest.raises(BadData) as refused:
        shards_of(reader)
    assert str(refused.value) == (
        "create_shards must return (name, start, count) for each shard: a string and two integers "
        f"from 0 to 9,007,199,254,740,992; Numbers returned {shown}"
    )


def test_shards_that_are_too_many_records_together() -> None:
    most = 2**53
    assert shards_of(CustomReader(Numbers([("a", most, most)]))) == (Shard("a", most, most),)
    with pytest.raises(
        BadData, match="of Numbers returned shards with 9,007,199,254,740,993 records in all; "
    ):
        shards_of(CustomReader(Numbers([("a", 0, most), ("b", 0, 1)])))


def test_each_record_of_several_shards_of_one_name_is_read_once() -> None:
    user = Numbers([("a", 10, 5), ("b", 0, 5), ("a", 0, 7), ("a", 7, 3), ("a", 7, 0)])
    reader = CustomReader(user)
    ledger = Ledger(shards_of(reader), records_per_task=4, minibatch_size=2, seed=1, shuffle=True)
    tasks = [ledger.task(0, place) for place in range(ledger.num_tasks)]
    seen = [
        record
        for chunk in range(2)
        for t in tasks
        for record in reader.read(t, ledger.chunk(t, chunk).tolist())
    ]
    assert sorted(seen) == [("a", i) for i in range(15)] + [("b", i) for i in range(5)]


@pytest.mark.parametrize(
    ("shards", "message"),
    [
        ([("a", 0, 5), ("b", 0, 5), ("a", 4, 5)], "records 0 to 4 of 'a' and records 4 to 8 of 'a'"),
        ([("a", 5, 5), ("a", 5, 5)], "records 5 to 9 of 'a' and records 5 to 9 of 'a'"),
        ([("a", 20, 1), ("a", 0, 0), ("a", 0, 30)], "records 0 to 29 of 'a' and records 20 to 20 of 'a'"),
    ],
)
def test_two_shards_with_the_same_record(shards: list[tuple[str, int, int]], message: str) -> None:
    with pytest.raises(BadData, match=message):
        shards_of(CustomReader(Numbers(shards)))


def test_numbers_of_other_libraries_count_as_integers() -> None:
    import numpy

    assert shards_of(CustomReader(Numbers([("a", numpy.int64(0), numpy.int32(5))]))) == (Shard("a", 0, 5),)


def test_what_the_factory_is_called_with() -> None:
    calls: list[tuple[Any, ...]] = []

    def full(data_origin: str, records_per_task: int | None = None, **params: Any) -> Numbers:
        calls.append((data_origin, records_per_task, params))
        return Numbers([("a", 0, 5)])

    def plain(data_origin: str, table: str = "") -> Numbers:
        calls.append((data_origin, table))
        return Numbers([("a", 0, 5)])

    open_custom_reader(full, "here", 512, {"x": 1})
    open_custom_reader(plain, "there", 512, {"table": "t"})
    assert calls == [("here", 512, {"x": 1}), ("there", "t")]
    with pytest.raises(
        BadSetting, match="plain takes no parameter 'tabel'; data_reader_params may give: table"
    ):
        open_custom_reader(plain, "there", 512, {"tabel": "t"})


def test_a_factory_that_returns_no_reader() -> None:
    def custom_data_reader(data_origin: str) -> object:
        return object()

    with pytest.raises(BadModel, match="must return an object with read_records"):
        open_custom_reader(custom_data_reader, "here", 512, {})
