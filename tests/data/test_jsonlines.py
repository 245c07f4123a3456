"""JSON lines: columns by the first MiB, lines in any order, bad ones left out or named."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from elasticdl.data.plan.shard import Shard
from elasticdl.data.readers.reader import BadRecords, Metadata, Reader, shards_of
from elasticdl.data.readers.recordfiles import open_reader
from elasticdl.data.readers.records import Columns
from elasticdl.errors import BadData, BadSetting
from tests.data.test_tables import opened, read, refused, task_of

LINES = [{"n": n, "x": n / 2, "s": f"é{n}", "on": n % 2 == 0, "bag": list(range(n))} for n in range(8)]


def jsonl(path: Path, lines: list[Any] = LINES) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def test_lines_are_columns(tmp_path: Path) -> None:
    reader = opened(jsonl(tmp_path / "file.jsonl"), tmp_path)
    assert shards_of(reader) == (Shard(str(tmp_path / "file.jsonl"), 0, 8),)
    dtypes = {"n": "int64", "x": "float64", "s": "string", "on": "bool", "bag": "int64[]"}
    assert reader.metadata == Metadata(tuple(dtypes), dtypes)
    arrays = read(reader, 5, 0, 5)
    assert arrays["n"].tolist() == [5, 0, 5]
    assert arrays["x"].tolist() == [2.5, 0, 2.5]
    assert arrays["s"].tolist() == ["é5", "é0", "é5"]
    assert arrays["on"].tolist() == [False, True, False]
    assert [vector.tolist() for vector in arrays["bag"]] == [[0, 1, 2, 3, 4], [], [0, 1, 2, 3, 4]]


def test_rows_of_strings_and_some_columns(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "file.jsonl")
    reader = opened(path, tmp_path, {"rows": "strings", "columns": ["on", "n"]})
    assert reader.read(task_of(reader), [3, 2]) == [["false", "3"], ["true", "2"]]


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.json", "a", "a.txt"])
def test_what_is_recognised(tmp_path: Path, name: str) -> None:
    assert len(read(opened(jsonl(tmp_path / name), tmp_path))["n"]) == 8


@pytest.mark.parametrize(
    "text",
    [
        '{"n":1}\n{"n":2}',
        '\n  \n{"n":1}\r\n\r\n\t\n{"n":2}\r\n \n',
        '\ufeff{"n":1}\n{"n":2}\n',
        '\ufeff\n{"n":1}\n{"n":2}\n',
        ' {"n":1} \n {"n" : 2}',
    ],
)
def test_white_space_makes_no_record(tmp_path: Path, text: str) -> None:
    (tmp_path / "file.jsonl").write_bytes(text.encode())
    reader = opened(tmp_path / "file.jsonl", tmp_path)
    assert read(reader)["n"].tolist() == [1, 2]
    assert read(reader, 1, 0)["n"].tolist() == [2, 1]


def test_the_first_mebibyte_says_which_columns_there_are(tmp_path: Path) -> None:
    many = [{"n": 1, "s": "x" * 500}] * 3000
    path = jsonl(
        tmp_path / "file.jsonl", [*many, {"n": 2, "s": "y", "late": 1}, {"s": "z", "n": None}, {"n": "two"}]
    )
    reader = opened(path, tmp_path)
    assert reader.metadata.column_names == ("n", "s")
    assert read(reader, 3000)["s"].tolist() == ["y"]
    with pytest.raises(BadData, match=r"record 3001 of .* is corrupt: its column 'n' is null"):
        read(reader, 3001)
    with pytest.raises(
        BadData, match=r"record 3002 of .* is corrupt: .*\(/n\) changed from number to string"
    ):
        read(reader, 3002)
    early = [{"n": 1}, {"n": 2, "late": 0.5}]
    reader = opened(jsonl(tmp_path / "early.jsonl", early), tmp_path)
    assert reader.metadata.column_dtypes == {"n": "int64", "late": "float64"}
    assert str(read(reader)["late"].tolist()) == "[nan, 0.5]"


def test_times_are_text(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "file.jsonl", [{"t": "2026-01-01 00:00:00", "ts": ["2026-01-01"]}] * 2)
    reader = opened(path, tmp_path)
    assert reader.metadata.column_dtypes == {"t": "string", "ts": "string[]"}
    assert read(reader)["t"].tolist() == ["2026-01-01 00:00:00"] * 2


BROKEN = ['{"n": 0}', '{"n": 1', "[2]", '{"n": 3} {"n": 4}', "nonsense", '{"n": 5}']


def test_bad_lines_are_named_or_left_out(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "file.jsonl", BROKEN)
    strict = opened(path, tmp_path)
    for record in (1, 2, 3, 4):
        with pytest.raises(BadData, match=rf"record {record} of {path} \(counted from 0\) is corrupt: \S"):
            read(strict, 0, record)
    told: list[str] = []
    reader = opened(path, tmp_path, bad_records=BadRecords(4, lambda what: told.append(what) is None))
    for _ in range(2):
        assert read(reader)["n"].tolist() == [0, 5]
        assert reader.read(task_of(reader), [4, 1]) == []
    assert len(told) == 4
    with pytest.raises(BadData, match=r"\(4 bad records met, max_bad_records is 3\)"):
        read(opened(path, tmp_path, bad_records=BadRecords(3)))


def test_a_bad_line_at_the_beginning_says_nothing_of_columns(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "file.jsonl", ["{", {"n": 1}])
    reader = opened(path, tmp_path, bad_records=BadRecords(1))
    assert read(reader)["n"].tolist() == [1]


def test_a_field_of_another_type_at_the_beginning_is_a_corrupt_record(tmp_path: Path) -> None:
    lines = [
        {"n": 1, "m": None, "l": []},
        {"n": 2.5, "m": "a", "l": [1]},
        {"n": "x", "m": "b", "l": [2]},
        {"n": 3, "m": 4, "l": [3]},
    ]
    path = jsonl(tmp_path / "file.jsonl", [*lines, {"n": 4, "m": "c", "l": [4.5]}])
    strict = opened(path, tmp_path)
    for record in (2, 3):
        with pytest.raises(
            BadData, match=rf"record {record} of {path} \(counted from 0\) is corrupt: .* changed from "
        ):
            read(strict, 0, record)
    reader = opened(path, tmp_path, bad_records=BadRecords(2))
    assert read(reader)["n"].tolist() == [1, 2.5, 4]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n \n", "has no records: there is no line"),
        (
            '{"n": 1}\n{"n": "x"}\n',
            "can't be read as JSON lines, each of which is an object with the same fields",
        ),
        ("nonsense\n", "can't be read as JSON lines"),
        ("{}\n{}\n", "has no columns"),
        ('{"n": null}\n', "the column 'n' of .* is null, of which feed can't get columns"),
        ('{"n": {"m": 1}, "k": 1}\n', r"the column 'n' .* leave it out with .*columns=\['k'\]"),
        ('[{"n": 1}]', "is one array of JSON; write each of its objects on a line of its own"),
        ('{\n  "n": 1\n}\n', "can't be read as JSON lines"),
    ],
)
def test_files_that_are_something_else(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "file.jsonl").write_text(text)
    assert re.search(message, refused(tmp_path / "file.jsonl", tmp_path))


def test_files_of_one_data_set(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    jsonl(tmp_path / "data" / "1.jsonl", [{"n": 1}])
    jsonl(tmp_path / "data" / "2.jsonl", [{"n": 2, "more": 1}])
    (tmp_path / "data" / "0.jsonl").touch()
    reader = opened(tmp_path / "data", tmp_path)
    found = [reader.read(task_of(reader, shard), [0]) for shard in (0, 1)]
    assert [columns.arrays["n"].tolist() for columns in found if isinstance(columns, Columns)] == [[1], [2]]
    (tmp_path / "data" / "3.csv").write_text("n\n1\n")
    with pytest.raises(BadData, match="mixes kinds"):
        opened(tmp_path / "data", tmp_path)


def test_a_file_that_changes(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "file.jsonl")
    reader: Reader = open_reader(str(path), {}, tmp_path / "job")
    jsonl(path, LINES[:3])
    with pytest.raises(BadData, match="has changed"):
        read(reader, 0)


def test_parameters(tmp_path: Path) -> None:
    params: Mapping[str, Any] = {"header": True}
    with pytest.raises(BadSetting, match="a table has the parameters rows and columns; got header"):
        opened(jsonl(tmp_path / "file.jsonl"), tmp_path, params)
