"""Reading ahead: in the expected order, within bounds, and without losing an exception."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from elasticdl.data.plan.ledger import Ledger
from elasticdl.data.plan.shard import Shard, Task
from elasticdl.data.prefetch import ChunkSource
from elasticdl.data.readers.reader import Metadata
from elasticdl.errors import BadData, Cancelled, StorageAway

LEDGER = Ledger([Shard("a", 0, 100)], records_per_task=10, minibatch_size=2, seed=0, shuffle=False)
KEYS = [(0, task, chunk) for task in range(10) for chunk in range(5)]
SECONDS = 20.0


class Gate:
    """A reader that records what is read and can be held up."""

    metadata = Metadata()

    def __init__(self) -> None:
        self.read_so_far: list[int] = []
        self.open = threading.Event()
        self.open.set()
        self.progress = threading.Condition()
        self.fails: dict[int, BaseException] = {}
        self.absent: set[int] = set()

    def create_shards(self) -> list[tuple[str, int, int]]:
        return [("a", 0, 100)]

    def read_records(self, task: Task) -> Iterator[int]:
        yield from range(task.start, task.end)

    def read(self, task: Task, records: Sequence[int]) -> list[int]:
        with self.progress:
            self.read_so_far.append(records[0])
            self.progress.notify_all()
        assert self.open.wait(SECONDS)
        if records[0] in self.fails:
            raise self.fails[records[0]]
        return [record for record in records if record not in self.absent]

    def await_reads(self, count: int) -> list[int]:
        with self.progress:
            assert self.progress.wait_for(lambda: len(self.read_so_far) >= count, SECONDS)
            return list(self.read_so_far)


@pytest.fixture
def reader() -> Gate:
    return Gate()


@pytest.fixture
def source(reader: Gate) -> Iterator[ChunkSource]:
    source = ChunkSource(reader, LEDGER, tuple, ahead=3)
    yield source
    reader.open.set()
    source.close()


def test_chunks_are_read_ahead_in_the_expected_order_up_to_the_bound(
    reader: Gate, source: ChunkSource
) -> None:
    source.want(KEYS[:10])
    assert reader.await_reads(3) == [0, 2, 4]
    assert source.get(KEYS[0]) == (2, 0, (0, 1))
    assert reader.await_reads(4) == [0, 2, 4, 6]
    for i, key in enumerate(KEYS[1:10], 1):
        assert source.get(key) == (2, 0, (2 * i, 2 * i + 1))
    assert reader.read_so_far == [2 * i for i in range(10)]


def test_no_more_than_the_bound_is_ever_read_ahead(reader: Gate, source: ChunkSource) -> None:
    source.want(KEYS)
    for taken, key in enumerate(KEYS):
        assert len(reader.read_so_far) <= taken + 3
        source.get(key)
    assert len(reader.read_so_far) == len(KEYS)


def test_one_chunk_is_read_while_another_is_converted(reader: Gate) -> None:
    converts, goes_on = threading.Event(), threading.Event()
    at_once: list[int] = []

    def feed(records: list[int]) -> list[int]:
        at_once.append(1)
        converts.set()
        assert goes_on.wait(SECONDS)
        assert len(at_once) == 1, "one chunk is converted at a time"
        at_once.pop()
        return records

    source = ChunkSource(reader, LEDGER, feed, ahead=3)
    source.want(KEYS)
    assert converts.wait(SECONDS)
    assert reader.await_reads(3) == [0, 2, 4]
    goes_on.set()
    assert [source.get(key)[2][0] for key in KEYS[:5]] == [0, 2, 4, 6, 8]
    source.close()


def test_readers_and_feeds_each_stay_on_one_thread() -> None:
    """A connection to a database, for example, may be used by no other."""
    reads, feeds = set(), set()

    class Reader:
        def read(self, task: Task, records: Sequence[int]) -> list[int]:
            reads.add(threading.get_ident())
            return list(records)

    def feed(records: list[int]) -> list[int]:
        feeds.add(threading.get_ident())
        return records

    source = ChunkSource(Reader(), LEDGER, feed, ahead=3)  # type: ignore[arg-type]
    source.want(KEYS)
    for key in KEYS:
        source.get(key)
    source.close()
    assert len(reads) == len(feeds) == 1


def test_a_chunk_that_is_given_up_while_it_waits_to_be_converted_is_read_again(reader: Gate) -> None:
    goes_on = threading.Event()

    def feed(records: list[int]) -> list[int]:
        assert goes_on.wait(SECONDS)
        return records

    source = ChunkSource(reader, LEDGER, feed, ahead=3)
    source.want(KEYS[:3])
    assert reader.await_reads(3) == [0, 2, 4]
    source.want([KEYS[0], KEYS[5]])
    goes_on.set()
    assert source.get(KEYS[5])[2] == [10, 11]
    source.want(KEYS[1:3])
    assert [source.get(key)[2] for key in KEYS[1:3]] == [[2, 3], [4, 5]]
    source.close()


def test_the_record_is_looked_for_when_the_reader_is_free(reader: Gate) -> None:
    at_once = 0
    plainly = reader.read

    def read(task: Task, records: Sequence[int]) -> list[int]:
        nonlocal at_once
        at_once += 1
        assert at_once == 1, "one chunk is read at a time"
        found = plainly(task, records)
        at_once -= 1
        return found

    def feed(records: list[int]) -> list[int]:
        if 5 in records:
            reader.await_reads(4)  # the next one is under way, or has been read
            raise BadData("no number")
        return records

    reader.read = read  # type: ignore[method-assign]
    source = ChunkSource(reader, LEDGER, feed, ahead=3)
    source.want(KEYS)
    for key in KEYS[:2]:
        source.get(key)
    with pytest.raises(BadData, match=r"no number \(record 5 of a\)$"):
        source.get(KEYS[2])
    assert source.get(KEYS[3])[2] == [6, 7]
    source.close()


def test_an_unexpected_chunk_goes_first(
    reader: Gate, source: ChunkSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader.open.clear()
    source.want(KEYS[:10])
    reader.await_reads(1)
    taken: list[Any] = []
    waits, plainly = threading.Event(), source._answered.wait_for

    def wait_for(predicate: Callable[[], bool]) -> bool:
        waits.set()
        return plainly(predicate)

    monkeypatch.setattr(source._answered, "wait_for", wait_for)
    asking = threading.Thread(target=lambda: taken.append(source.get(KEYS[40])))
    asking.start()
    assert waits.wait(SECONDS)
    reader.open.set()
    asking.join(SECONDS)
    assert taken == [(2, 0, (80, 81))]
    assert reader.await_reads(2)[:2] == [0, 80]


def test_without_expectation_chunks_are_read_when_asked(source: ChunkSource) -> None:
    assert source.get(KEYS[7]) == (2, 0, (14, 15))
    assert source.get(KEYS[7]) == (2, 0, (14, 15))


def test_a_new_expectation_keeps_what_is_made_and_drops_the_rest(reader: Gate, source: ChunkSource) -> None:
    source.want(KEYS[:3])
    for key in KEYS[:3]:
        source.get(key)
    source.want(KEYS[10:13])
    assert reader.await_reads(6) == [0, 2, 4, 20, 22, 24]
    with source._answered:
        assert source._answered.wait_for(lambda: len(source._made) == 3, SECONDS)
    source.want([KEYS[12], KEYS[20]])
    assert reader.await_reads(7)[6] == 40
    source.get(KEYS[12])
    source.get(KEYS[20])
    assert len(reader.read_so_far) == 7
    source.get(KEYS[10])
    assert reader.read_so_far[7:] == [20]


def test_an_exception_comes_out_of_get_and_only_there(reader: Gate, source: ChunkSource) -> None:
    reader.fails[2] = BadData("corrupt")
    source.want(KEYS[:3])
    assert source.get(KEYS[0]) == (2, 0, (0, 1))
    with pytest.raises(BadData, match="corrupt"):
        source.get(KEYS[1])
    assert source.get(KEYS[2]) == (2, 0, (4, 5))


def test_the_users_exception_keeps_its_traceback(reader: Gate) -> None:
    def feed(_records: list[Any]) -> None:
        raise ZeroDivisionError("in feed")

    source = ChunkSource(reader, LEDGER, feed, ahead=1)
    with pytest.raises(ZeroDivisionError, match="in feed") as caught:
        source.get(KEYS[0])
    source.close()
    assert caught.traceback[-1].name == "feed"


@pytest.mark.parametrize(
    ("fails", "where"),
    [
        ({13}, "record 13 of a"),
        ({11, 12, 18}, "record 11 of a"),
        (set(range(10, 20)), "among the records 10 to 19 of a"),
        ({10, 19}, "record 10 of a"),
    ],
)
def test_the_record_that_can_not_be_converted_is_found(reader: Gate, fails: set[int], where: str) -> None:
    def feed(records: list[int]) -> None:
        if fails.intersection(records):
            raise BadData("no number")

    ledger = Ledger([Shard("a", 0, 100)], records_per_task=10, minibatch_size=10, seed=0, shuffle=False)
    source = ChunkSource(reader, ledger, feed, ahead=1)
    source.get((0, 0, 0))
    with pytest.raises(BadData, match=rf"no number \({where}\)$"):
        source.get((0, 1, 0))
    source.close()


def test_records_that_fail_only_together_are_named_together(reader: Gate) -> None:
    def feed(records: list[int]) -> None:
        if len(records) == 2:
            raise BadData("two")

    source = ChunkSource(reader, LEDGER, feed, ahead=1)
    with pytest.raises(BadData, match=r"two \(among the records 0 to 1 of a\)$"):
        source.get(KEYS[0])
    source.close()


def test_storage_that_goes_away_makes_no_record_bad(reader: Gate) -> None:
    def feed(records: list[int]) -> None:
        if 7 in records:
            reader.fails = dict.fromkeys(range(10), StorageAway("the server has not answered"))
            raise BadData("no number")

    ledger = Ledger([Shard("a", 0, 100)], records_per_task=10, minibatch_size=10, seed=0, shuffle=False)
    source = ChunkSource(reader, ledger, feed, ahead=1)
    with pytest.raises(BadData, match=r"no number \(among the records 0 to 9 of a\)$"):
        source.get((0, 0, 0))
    assert len(reader.read_so_far) == 2, "it is waited for once"
    source.close()


def test_bad_records_are_counted(reader: Gate, source: ChunkSource) -> None:
    reader.absent = {1, 4, 5}
    assert source.get(KEYS[0]) == (2, 1, (0,))
    assert source.get(KEYS[2]) == (2, 2, None)


def test_a_get_that_waits_ends_with_close(reader: Gate, source: ChunkSource) -> None:
    reader.open.clear()
    failed: list[BaseException] = []

    def ask() -> None:
        try:
            source.get(KEYS[0])
        except Cancelled as error:
            failed.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    reader.await_reads(1)
    source.close()
    asking.join(SECONDS)
    assert len(failed) == 1
    with pytest.raises(Cancelled):
        source.get(KEYS[1])


def test_no_thread_before_the_first_chunk_and_none_after_the_end(reader: Gate) -> None:
    before = set(threading.enumerate())
    source = ChunkSource(reader, LEDGER, tuple, ahead=3)
    assert set(threading.enumerate()) == before
    source.want(KEYS)
    started = set(threading.enumerate()) - before
    assert {thread.name for thread in started} == {"prefetch", "convert"}
    source.close()
    for thread in started:
        thread.join(SECONDS)
        assert not thread.is_alive()
