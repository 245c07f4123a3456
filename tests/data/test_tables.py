"""Tables in Parquet and Arrow files: types, blocks, bad records, and files that are wrong."""

from __future__ import annotations

import datetime
import decimal
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl.data.plan.ledger import Ledger
from elasticdl.data.plan.shard import Shard, Task
from elasticdl.data.readers import blocks, tablefiles
from elasticdl.data.readers.reader import BadRecords, Metadata, Reader, shards_of
from elasticdl.data.readers.recordfiles import open_reader
from elasticdl.data.readers.records import Columns
from elasticdl.errors import BadData, BadSetting

Write = Callable[..., Path]


def parquet(path: Path, table: pa.Table, block: int = 1000) -> Path:
    pa.parquet.write_table(table, path, row_group_size=block)
    return path


def arrow(path: Path, table: pa.Table, block: int = 1000, compression: str | None = None) -> Path:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(path, table.schema, options=options) as file:
        file.write_table(table, max_chunksize=block)
    return path


WRITERS = (parquet, arrow)
each_kind = pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
"""Names of the files say nothing: what begins them does."""


def task_of(reader: Reader, shard: int = 0) -> Task:
    found = shards_of(reader)[shard]
    return Task(0, 0, found, found.start, found.start + found.count)


def read(reader: Reader, *records: int) -> Mapping[str, Any]:
    task = task_of(reader)
    found = reader.read(task, records or range(task.start, task.end))
    assert isinstance(found, Columns)
    assert len(found) == found.count == len(next(iter(found.arrays.values())))
    return found.arrays


def opened(path: Path, tmp_path: Path, params: Mapping[str, Any] | None = None, **more: Any) -> Reader:
    return open_reader(str(path), params or {}, tmp_path / "job", **more)


# ------------------------------------------------------------------ types

NUMBERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)] + [
    "float16",
    "float32",
    "float64",
]


@each_kind
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_keep_their_type(tmp_path: Path, write: Write, name: str) -> None:
    values = np.arange(5).astype(name)
    reader = opened(write(tmp_path / "file", pa.table({"x": values})), tmp_path)
    assert reader.metadata == Metadata(("x",), {"x": name})
    array = read(reader, 4, 0, 4)["x"]
    assert array.dtype == name
    assert array.tolist() == [4, 0, 4]


ÉTÉ = datetime.datetime(2026, 7, 1, 12)
OTHERS = {
    "bool": (pa.array([True, False]), "bool", [True, False]),
    "text": (pa.array(["é", ""]), "string", ["é", ""]),
    "large text": (pa.array(["é", ""], pa.large_string()), "string", ["é", ""]),
    "bytes": (pa.array([b"\xff", b""]), "binary", [b"\xff", b""]),
    "digests": (pa.array([b"ab", b"cd"], pa.binary(2)), "binary", [b"ab", b"cd"]),
    "words": (pa.array(["a", "b"]).dictionary_encode(), "string", ["a", "b"]),
    "money": (pa.array([decimal.Decimal("1.50"), decimal.Decimal("-2.25")]), "float64", [1.5, -2.25]),
    "days": (pa.array([datetime.date(1970, 1, 3), datetime.date(1970, 1, 1)]), "int32", [2, 0]),
    "times": (pa.array([ÉTÉ, ÉTÉ], pa.timestamp("ms", "UTC")), "int64", [1782907200_000] * 2),
    "lengths": (pa.array([datetime.timedelta(seconds=1)] * 2, pa.duration("ms")), "int64", [1000] * 2),
    "missing": (pa.array([1.0, None], pa.float32()), "float32", [1.0, float("nan")]),
    "no text": (pa.array(["a", None]), "string", ["a", ""]),
    "no bytes": (pa.array([None, b"a"]), "binary", [b"", b"a"]),
}


@each_kind
@pytest.mark.parametrize("what", OTHERS)
def test_other_values_become_what_a_model_takes(tmp_path: Path, write: Write, what: str) -> None:
    values, dtype, expected = OTHERS[what]
    reader = opened(write(tmp_path / "file", pa.table({"x": values})), tmp_path)
    assert reader.metadata.column_dtypes == {"x": dtype}
    array = read(reader)["x"]
    assert array.shape == (2,)
    assert array.dtype == (object if dtype in ("string", "binary") else dtype)
    np.testing.assert_array_equal(array, expected)


@each_kind
def test_vectors(tmp_path: Path, write: Write) -> None:
    table = pa.table(
        {
            "pair": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.float32(), 2)),
            "bag": pa.array([[1, 2, 3], [], [4]], pa.list_(pa.int32())),
            "gaps": pa.array([[1.5, None], [None], []], pa.list_(pa.float64())),
            "words": pa.array([["a", None], [], ["é"]], pa.large_list(pa.string())),
        }
    )
    reader = opened(write(tmp_path / "file", table), tmp_path)
    assert reader.metadata.column_dtypes == {
        "pair": "float32[2]",
        "bag": "int32[]",
        "gaps": "float64[]",
        "words": "string[]",
    }
    arrays = read(reader, 2, 0, 1)
    np.testing.assert_array_equal(arrays["pair"], np.array([[5, 6], [1, 2], [3, 4]], np.float32))
    assert [vector.dtype for vector in arrays["bag"]] == [np.int32] * 3
    assert [vector.tolist() for vector in arrays["bag"]] == [[4], [1, 2, 3], []]
    np.testing.assert_array_equal(arrays["gaps"][1], [1.5, np.nan])
    assert [vector.tolist() for vector in arrays["words"]] == [["é"], ["a", ""], []]


def test_vectors_of_one_length_stay_apart(tmp_path: Path) -> None:
    """NumPy would make a matrix of them."""
    table = pa.table({"bag": pa.array([[1, 2], [3, 4]])})
    bag = read(opened(parquet(tmp_path / "file", table), tmp_path))["bag"]
    assert bag.shape == (2,)
    assert [vector.tolist() for vector in bag] == [[1, 2], [3, 4]]


@each_kind
def test_rows_of_strings(tmp_path: Path, write: Write) -> None:
    table = pa.table({"n": pa.array([1, None]), "x": [0.1, 2.0], "s": ["a", "b"], "b": [True, False]})
    reader = opened(write(tmp_path / "file", table), tmp_path, {"rows": "strings"})
    assert reader.metadata == Metadata(("n", "x", "s", "b"), dict.fromkeys("nxsb", "string"))
    assert reader.read(task_of(reader), [1, 0]) == [["", "2", "b", "false"], ["1", "0.1", "a", "true"]]


def test_some_columns_in_the_order_asked(tmp_path: Path) -> None:
    table = pa.table({"a": [1, 2], "nested": [{"x": 1}] * 2, "b": [3, 4]})
    for write in WRITERS:
        path = write(tmp_path / "file", table)
        reader = opened(path, tmp_path, {"columns": ["b", "a"]})
        assert reader.metadata.column_names == ("b", "a")
        assert {name: array.tolist() for name, array in read(reader).items()} == {"b": [3, 4], "a": [1, 2]}
        strings = opened(path, tmp_path, {"columns": ["b", "a"], "rows": "strings"})
        assert strings.read(task_of(strings), [0]) == [["3", "1"]]


# ------------------------------------------------------------------ blocks


@each_kind
@pytest.mark.parametrize("compression", [None, "zstd"])
@settings(max_examples=20)
@given(
    records=st.integers(1, 60),
    block=st.integers(1, 25),
    asked=st.integers(1, 30),
    minibatch=st.integers(1, 20),
)
def test_every_record_is_had_once(
    tmp_path_factory: pytest.TempPathFactory,
    write: Write,
    compression: str | None,
    records: int,
    block: int,
    asked: int,
    minibatch: int,
) -> None:
    tmp_path = tmp_path_factory.mktemp("table")
    table = pa.table({"n": np.arange(records)})
    path = tmp_path / "file"
    if write is arrow:
        arrow(path, table, block, compression)
    else:
        parquet(path, table, block)
    reader = opened(path, tmp_path, records_per_task=asked)
    assert reader.block == min(block, records)
    shards = shards_of(reader)
    ledger = Ledger(shards, max(asked, reader.block), minibatch, 3, True)
    seen = []
    for place in range(ledger.num_tasks):
        task = ledger.task(0, place)
        assert task.start % block == 0
        for chunk in range(ledger.num_chunks(task)):
            wanted = ledger.chunk(task, chunk).tolist()
            found = reader.read(task, wanted)
            assert isinstance(found, Columns)
            assert found.arrays["n"].tolist() == wanted
            seen += wanted
    assert sorted(seen) == list(range(records))


def counting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note which row groups are decoded."""
    decoded: list[int] = []
    inner = tablefiles._ParquetFile.read

    def noting(self: Any, block: int, columns: Any) -> pa.Table:
        decoded.append(block)
        return inner(self, block, columns)

    monkeypatch.setattr(tablefiles._ParquetFile, "read", noting)
    return decoded


def test_a_block_is_decoded_once_for_its_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = opened(
        parquet(tmp_path / "file", pa.table({"n": range(100)}), 10), tmp_path, records_per_task=30
    )
    ledger = Ledger(shards_of(reader), 30, 4, 0, True)
    decoded = counting(monkeypatch)
    for chunk in range(8):  # as in a wave: chunk by chunk of several tasks
        for place in range(ledger.num_tasks):
            task = ledger.task(0, place)
            reader.read(task, ledger.chunk(task, chunk).tolist()) if chunk < ledger.num_chunks(task) else None
    assert sorted(decoded) == list(range(10))


def test_decoded_blocks_take_a_bounded_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "KEPT", 200)
    reader = opened(
        parquet(tmp_path / "file", pa.table({"n": range(100)}), 10), tmp_path, records_per_task=10
    )
    ledger = Ledger(shards_of(reader), 10, 10, 0, False)
    decoded = counting(monkeypatch)
    for place in (0, 1, 0, 1, 2, 1, 0):
        task = ledger.task(0, place)
        reader.read(task, [task.start])
    assert decoded == [0, 1, 2, 0]
    monkeypatch.setattr(blocks, "KEPT", 0)  # the last one stays, or nothing could be read
    for _ in range(2):
        reader.read(ledger.task(0, 3), [30])
    assert decoded == [0, 1, 2, 0, 3]


def test_more_files_than_may_be_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tablefiles, "_OPEN_FILES", 2)
    (tmp_path / "data").mkdir()
    for number in range(6):
        parquet(tmp_path / "data" / f"{number}", pa.table({"n": [number, number]}))
    (tmp_path / "data" / "empty.parquet").touch()
    parquet(tmp_path / "data" / "no-rows", pa.table({"n": pa.array([], pa.int64())}))
    reader = opened(tmp_path / "data", tmp_path)
    assert [count for _, _, count in reader.create_shards()] == [2] * 6 + [0, 0]
    for number in range(6):
        found = reader.read(task_of(reader, number), [1])
        assert isinstance(found, Columns)
        assert found.arrays["n"].tolist() == [number]


def test_threads_share_what_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = opened(parquet(tmp_path / "file", pa.table({"n": range(100)})), tmp_path)
    decoded = counting(monkeypatch)
    threads = [threading.Thread(target=read, args=(reader, number)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert decoded == [0]


# ------------------------------------------------------------------ bad records


def with_nulls(tmp_path: Path, write: Write = parquet) -> Path:
    table = pa.table(
        {
            "n": pa.array([0, None, 2, 3, 4, 5]),
            "pair": pa.array([[0, 0], [0, 0], [1, None], None, [0, 0], [0, 0]], pa.list_(pa.int32(), 2)),
            "bag": pa.array([[0], [], [], [1], [7, None], None], pa.list_(pa.int32())),
        }
    )
    return write(tmp_path / "nulls", table, 4)


@each_kind
def test_a_missing_number_makes_a_bad_record(tmp_path: Path, write: Write) -> None:
    path = with_nulls(tmp_path, write)
    reader = opened(path, tmp_path)
    assert read(reader, 0)["n"].tolist() == [0]
    for record, column in (
        (1, "'n' is null, for which int64"),
        (2, r"'pair' is null, for which int32\[2\]"),
        (3, "'pair'"),
    ):
        with pytest.raises(
            BadData, match=rf"record {record} of {path} \(counted from 0\) is corrupt: its column {column}"
        ):
            read(reader, 0, record)
    for record in (4, 5):
        with pytest.raises(
            BadData, match=rf"record {record} of .* its column 'bag' is null, for which int32\[\]"
        ):
            read(reader, record)


@each_kind
def test_bad_records_that_are_allowed_are_left_out(tmp_path: Path, write: Write) -> None:
    told: list[str] = []
    reader = opened(
        with_nulls(tmp_path, write),
        tmp_path,
        bad_records=BadRecords(5, lambda what: told.append(what) is None),
    )
    for _ in range(2):
        assert read(reader)["n"].tolist() == [0]
        assert reader.read(task_of(reader), [3, 2]) == []
    assert [re.findall(r"record (\d)", what)[0] for what in told] == list("12345")
    strict = opened(with_nulls(tmp_path, write), tmp_path, bad_records=BadRecords(4))
    with pytest.raises(BadData, match=r"\(5 bad records met, max_bad_records is 4\)"):
        read(strict)


def test_text_that_is_none_is_a_bad_record(tmp_path: Path) -> None:
    raw = pa.array([b"a", b"\xff", "é".encode()])
    text = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    for column, of in ((text, text), (pa.ListArray.from_arrays([0, 1, 2, 3], text), None)):
        path = parquet(tmp_path / "file", pa.table({"s": column}))
        with pytest.raises(BadData, match=r"record 1 of .* its column 's' is not UTF-8"):
            read(opened(path, tmp_path))
        assert len(read(opened(path, tmp_path, bad_records=BadRecords(1)))["s"]) == 2
        if of is not None:
            reader = opened(path, tmp_path, {"rows": "strings"}, bad_records=BadRecords(1))
            assert reader.read(task_of(reader), [0, 1, 2]) == [["a"], ["é"]]


# ------------------------------------------------------------------ wrong files


def refused(path: Path, tmp_path: Path, params: Mapping[str, Any] | None = None) -> str:
    """Return why a file can't be opened and read."""
    with pytest.raises((BadData, BadSetting)) as caught:
        read_all(path, tmp_path, params)
    return str(caught.value)


def read_all(path: Path, tmp_path: Path, params: Mapping[str, Any] | None = None) -> None:
    reader = opened(path, tmp_path, params)
    for shard in range(len(shards_of(reader))):
        task = task_of(reader, shard)
        reader.read(task, range(task.start, task.end))


@each_kind
def test_files_that_are_cut_or_something_else(tmp_path: Path, write: Write) -> None:
    path = write(tmp_path / "file", pa.table({"n": range(1000)}))
    content = path.read_bytes()
    for length in (12, 500, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        assert f"{path} can't be read as a file of {write.__name__.capitalize()}: " in refused(path, tmp_path)
        assert "was it cut or damaged? Copy or write it again" in refused(path, tmp_path)
    mistyped = tmp_path / f"text.{write.__name__}"
    mistyped.write_text("n\n1\n2\n")
    assert f"{mistyped} can't be read as a file of" in refused(mistyped, tmp_path)


@each_kind
def test_damaged_files_end_in_our_error(tmp_path: Path, write: Write) -> None:
    table = pa.table(
        {"n": range(50), "s": [f"text {n}" for n in range(50)], "b": [[n, n] for n in range(50)]}
    )
    path = write(tmp_path / "file", table, 20)
    content = path.read_bytes()
    random = np.random.default_rng(5)
    refusals = 0
    for _ in range(300):
        damaged = bytearray(content)
        for place in random.integers(8, len(content) - 8, random.integers(1, 4)):
            damaged[place] = random.integers(256)
        path.write_bytes(damaged)
        try:
            read_all(path, tmp_path)
        except BadData:
            refusals += 1
    assert refusals > 20


def test_a_block_whose_pages_were_damaged_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file"
    table = pa.table({"n": np.random.default_rng(0).integers(0, 1 << 60, 2000)})
    pa.parquet.write_table(
        table, path, row_group_size=1000, write_page_checksum=True, compression="none", use_dictionary=False
    )
    content = bytearray(path.read_bytes())
    content[len(content) * 3 // 4] ^= 1
    path.write_bytes(content)
    reader = opened(path, tmp_path)
    reader.read(Task(0, 0, shards_of(reader)[0], 0, 1000), [5])
    with pytest.raises(BadData, match=rf"the row group 1 \(counted from 0\) of {path} can't be read: .*CRC"):
        reader.read(Task(1, 0, shards_of(reader)[0], 1000, 2000), [1005])


@each_kind
def test_files_without_records(tmp_path: Path, write: Write) -> None:
    path = write(tmp_path / "file", pa.table({"n": pa.array([], pa.int64())}))
    assert refused(path, tmp_path) == f"{path} has no records: there is no row"
    path = write(tmp_path / "file", pa.table({}))
    assert refused(path, tmp_path) == f"{path} has no columns"


@each_kind
def test_files_with_other_columns(tmp_path: Path, write: Write) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write(data / "1", pa.table({"a": [1], "b": ["x"]}))
    write(data / "2", pa.table({"a": [1.0], "b": ["x"]}))
    assert f"'a' is int64 in {data}/1 and double in {data}/2" in refused(data, tmp_path)
    write(data / "2", pa.table({"a": [1]}))
    assert f"'b' is string in {data}/1 and missing in {data}/2" in refused(data, tmp_path)
    write(data / "2", pa.table({"b": ["x"], "a": [1]}))
    assert "need the same columns in the same order" in refused(data, tmp_path)
    (data / "2").unlink()
    write(data / "1", pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]))
    assert "has two columns of the name 'a'" in refused(data, tmp_path)


def test_a_column_that_no_model_takes(tmp_path: Path) -> None:
    path = parquet(tmp_path / "file", pa.table({"a": [1], "deep": [{"x": [1]}], "b": [b"raw"]}))
    message = refused(path, tmp_path)
    assert (
        f"the column 'deep' of {path} is struct<x: list<element: int64>>, of which feed can't get columns"
        in message
    )
    assert "leave it out with --data_reader_params=\"columns=['a', 'b']\"" in message
    assert "columns=['a']" in refused(path, tmp_path, {"rows": "strings"})
    only = parquet(tmp_path / "only", pa.table({"deep": [{"x": 1}]}))
    assert refused(only, tmp_path).endswith(
        "feed can't get columns; write it as numbers, text, or lists of them"
    )


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"row": "strings"}, "has the parameters rows and columns; got row; did you mean rows?"),
        ({"rows": "lists"}, "rows is columns or strings; got 'lists'"),
        ({"rows": 1}, "rows is columns or strings; got 1"),
        ({"columns": 3}, "columns is a list of names; got 3"),
        ({"columns": ["n", "n"]}, "columns names one twice"),
        ({"columns": ["numbr"]}, "has no column 'numbr'; did you mean number?; it has number"),
    ],
)
def test_wrong_parameters(tmp_path: Path, params: Mapping[str, Any], message: str) -> None:
    assert message in refused(parquet(tmp_path / "file", pa.table({"number": [1]})), tmp_path, params)


def test_files_that_are_like_these_and_can_not_be_read(tmp_path: Path) -> None:
    table = pa.table({"n": [1]})
    with pa.ipc.new_stream(tmp_path / "stream", table.schema) as stream:
        stream.write_table(table)
    assert "seems to be a stream of Arrow" in refused(tmp_path / "stream", tmp_path)
    (tmp_path / "old").write_bytes(b"FEA1" + bytes(100))
    assert "is a Feather file of version 1" in refused(tmp_path / "old", tmp_path)
    (tmp_path / "secret").write_bytes(b"PARE" + bytes(100))
    assert "is encrypted" in refused(tmp_path / "secret", tmp_path)


def test_feather_is_arrow(tmp_path: Path) -> None:
    path = tmp_path / "file.feather"
    pa.feather.write_feather(pa.table({"n": range(10)}), path, chunksize=4)
    reader = opened(path, tmp_path)
    assert reader.block == 4
    assert read(reader, 3)["n"].tolist() == [3]


@each_kind
def test_a_file_that_changes_while_it_is_read(tmp_path: Path, write: Write) -> None:
    path = write(tmp_path / "file", pa.table({"n": range(10)}))
    reader = opened(path, tmp_path)
    write(path, pa.table({"n": range(10, 20)}))
    with pytest.raises(BadData):
        read(reader, 3)


@each_kind
def test_a_file_that_goes_before_it_is_read(tmp_path: Path, write: Write) -> None:
    path = write(tmp_path / "file", pa.table({"x": [1, 2]}))
    reader = opened(path, tmp_path)
    task = task_of(reader)
    path.unlink()
    with pytest.raises(BadData, match=rf"{path} is gone, or this process can't see it; data must not change"):
        reader.read(task, [0])


@each_kind
def test_records_that_there_are_not(tmp_path: Path, write: Write) -> None:
    path = write(tmp_path / "file", pa.table({"n": range(10)}))
    reader = opened(path, tmp_path)
    with pytest.raises(BadData, match="no data file other"):
        reader.read(Task(0, 0, Shard("other", 0, 5), 0, 5), [0])
    with pytest.raises(BadData, match="has 10 records; record 10"):
        reader.read(Task(0, 0, Shard(str(path), 0, 11), 0, 11), [10])
