"""Files of records: found, told apart, indexed once, read in any order, and refused with a reason when they are wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from elasticdl.data.plan.shard import Shard, Task
from elasticdl.data.readers import files
from elasticdl.data.readers.reader import BadRecords, Metadata, check_unchanged, shards_of
from elasticdl.data.readers.recordfiles import FileReader, open_reader
from elasticdl.data.readers.writing import write_tfrecord
from elasticdl.errors import BadData, BadSetting

NOBODY = 65534
RECORDS = [f"record {i}".encode() for i in range(10)]


def tfrecord(path: Path, records: Sequence[bytes] = RECORDS) -> Path:
    write_tfrecord(path, records)
    return path


def csv(path: Path, text: str = "a,b\n1,2\n3,4\n") -> Path:
    path.write_bytes(text.encode())
    return path


def whole(reader: FileReader) -> list[Any]:
    tasks = [
        Task(i, 0, shard, shard.start, shard.start + shard.count) for i, shard in enumerate(shards_of(reader))
    ]
    return [record for task in tasks for record in reader.read_records(task)]


def task_of(reader: FileReader) -> Task:
    shard = shards_of(reader)[0]
    return Task(0, 0, shard, 0, shard.count)


# ------------------------------------------------------------------ finding


def test_a_directory_gives_one_shard_per_file_in_the_order_of_names(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    tfrecord(data / "b", RECORDS[5:])
    tfrecord(data / "a", RECORDS[:5])
    (data / "_SUCCESS").touch()
    (data / ".hidden").write_text("x")
    (data / "a.records-index").write_text("x")
    (data / "empty.tfrecord").touch()
    (data / "folder").mkdir()
    reader = open_reader(str(data), {}, tmp_path / "job")
    assert shards_of(reader) == (
        Shard(str(data / "a"), 0, 5),
        Shard(str(data / "b"), 0, 5),
        Shard(str(data / "empty.tfrecord"), 0, 0),
    )
    assert whole(reader) == RECORDS
    assert reader.metadata == Metadata()


def test_a_glob_and_a_single_file(tmp_path: Path) -> None:
    tfrecord(tmp_path / "part-1")
    tfrecord(tmp_path / "part-2")
    tfrecord(tmp_path / "other")
    assert len(shards_of(open_reader(str(tmp_path / "part-*"), {}, tmp_path / "job"))) == 2
    assert len(shards_of(open_reader(str(tmp_path / "other"), {}, tmp_path / "job"))) == 1


def test_a_name_that_looks_like_a_glob_is_a_name_if_it_exists(tmp_path: Path) -> None:
    tfrecord(tmp_path / "a[1]")
    assert len(shards_of(open_reader(str(tmp_path / "a[1]"), {}, tmp_path / "job"))) == 1


def test_a_relative_path_names_the_same_shards_from_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tfrecord(tmp_path / "file")
    monkeypatch.chdir(tmp_path)
    assert shards_of(open_reader("file", {}, tmp_path / "job"))[0].name == str(tmp_path / "file")


# ------------------------------------------------------------------ reading


def test_records_come_in_the_order_asked(tmp_path: Path) -> None:
    reader = open_reader(str(tfrecord(tmp_path / "file")), {}, tmp_path / "job")
    assert reader.read(task_of(reader), [7, 0, 7]) == [RECORDS[7], RECORDS[0], RECORDS[7]]


def test_more_files_than_may_be_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elasticdl.data.readers.recordfiles._OPEN_FILES", 3)
    data = tmp_path / "data"
    data.mkdir()
    for i, record in enumerate(RECORDS):
        tfrecord(data / f"{i}", [record])
    reader = open_reader(str(data), {}, tmp_path / "job")
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert whole(reader) == RECORDS
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_csv_rows_header_and_metadata(tmp_path: Path) -> None:
    reader = open_reader(str(csv(tmp_path / "file.csv")), {}, tmp_path / "job")
    assert whole(reader) == [["1", "2"], ["3", "4"]]
    assert reader.metadata == Metadata(("a", "b"), {"a": "string", "b": "string"})


@pytest.mark.parametrize(
    ("text", "params", "names", "rows"),
    [
        ("a,b\n1,2\n", {"header": "auto"}, ("a", "b"), [["1", "2"]]),
        ("1,2\n3,4\n", {}, ("column_0", "column_1"), [["1", "2"], ["3", "4"]]),
        ("1,2\n3,4\n", {"header": True}, ("1", "2"), [["3", "4"]]),
        ("a,b\n1,2\n", {"header": "False"}, ("column_0", "column_1"), [["a", "b"], ["1", "2"]]),
        ("a;b\n1,5;2\n", {"delimiter": ";"}, ("a", "b"), [["1,5", "2"]]),
        ("a\tb\n1\t2\n", {"delimiter": "\\t"}, ("a", "b"), [["1", "2"]]),
        ("\ufeffa,b\r\n1,\"x\r\ny\"\r\n", {}, ("a", "b"), [["1", "x\r\ny"]]),
    ],
)  # fmt: skip
def test_csv_parameters(
    tmp_path: Path, text: str, params: Mapping[str, Any], names: tuple[str, ...], rows: list[list[str]]
) -> None:
    reader = open_reader(str(csv(tmp_path / "file.csv", text)), params, tmp_path / "job")
    assert reader.metadata.column_names == names
    assert whole(reader) == rows


def test_tsv_needs_no_parameter(tmp_path: Path) -> None:
    assert whole(open_reader(str(csv(tmp_path / "f.tsv", "a\tb\n1\t2\n")), {}, tmp_path / "job")) == [
        ["1", "2"]
    ]


def test_csv_without_a_known_suffix_is_known_by_its_content(tmp_path: Path) -> None:
    text = (
        "name,city\n" + "Ärger,Øster\n" * 1000
    )  # the first 4 KiB end inside a character for one of the names
    assert len(whole(open_reader(str(csv(tmp_path / "file", text)), {}, tmp_path / "job"))) == 1000


# ------------------------------------------------------------------ indexes


def test_a_small_files_index_leaves_no_trace_beside_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    tfrecord(data / "file")
    open_reader(str(data), {}, tmp_path / "job")
    assert [path.name for path in data.iterdir()] == ["file"]


def test_a_large_files_index_lies_beside_it_and_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LARGE", 1)
    path = tfrecord(tmp_path / "file")
    open_reader(str(path), {}, tmp_path / "job-1")
    index = tmp_path / "file.records-index"
    made = index.stat().st_mtime_ns, index.stat().st_ino
    assert whole(open_reader(str(path), {}, tmp_path / "job-2")) == RECORDS
    assert (index.stat().st_mtime_ns, index.stat().st_ino) == made


def test_an_index_of_an_older_file_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LARGE", 1)
    path = tfrecord(tmp_path / "file")
    open_reader(str(path), {}, tmp_path / "job-1")
    tfrecord(path, RECORDS[:3])
    assert whole(open_reader(str(path), {}, tmp_path / "job-2")) == RECORDS[:3]


def test_another_delimiter_is_another_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LARGE", 1)
    # With a comma the quote is inside a field; with a semicolon it opens one, and the line end belongs to it.
    path = csv(tmp_path / "file.csv", 'a;"b\nc";d\n')
    reader = open_reader(str(path), {"header": False}, tmp_path / "job-1")
    assert whole(reader) == [['a;"b'], ['c";d']]
    reader = open_reader(str(path), {"header": False, "delimiter": ";"}, tmp_path / "job-2")
    assert whole(reader) == [["a", "b\nc", "d"]]


def test_a_folder_that_cannot_be_written_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LARGE", 1)
    path = tfrecord(tmp_path / "file")
    (tmp_path / "file.records-index").mkdir()  # the place is taken by something that can't be replaced
    assert whole(open_reader(str(path), {}, tmp_path / "job")) == RECORDS


def test_progress_of_several_files_is_told_as_one(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for name in "abc":
        tfrecord(data / name)
    told: list[tuple[int, int]] = []
    open_reader(str(data), {}, tmp_path / "job", progress=lambda done, total: told.append((done, total)))
    size = sum(path.stat().st_size for path in data.iterdir())
    assert told[-1] == (size, size)
    assert told == sorted(told)


def test_what_progress_raises_ends_the_indexing(tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    def stop(_done: int, _total: int) -> None:
        raise Enough

    with pytest.raises(Enough):
        open_reader(str(tfrecord(tmp_path / "file")), {}, tmp_path / "job", progress=stop)


INDEXER = """
import sys
from pathlib import Path
from elasticdl.data.readers import files
from elasticdl.data.readers.recordfiles import open_reader
files.LARGE = 1
sys.stdin.readline()
reader = open_reader(sys.argv[1], {}, Path(sys.argv[2]))
print(sum(count for _, _, count in reader.create_shards()))
"""


def test_processes_that_index_at_the_same_time(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for i in range(8):
        tfrecord(data / f"part-{i}", RECORDS * 500)
    command = [sys.executable, "-c", INDEXER, str(data), str(tmp_path / "job")]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    for process in processes:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    counts = [process.communicate(timeout=60)[0] for process in processes]
    assert [int(count) for count in counts] == [40_000] * 3
    assert len(whole(open_reader(str(data), {}, tmp_path / "job"))) == 40_000
    leftover = [
        path for path in [*data.iterdir(), *(tmp_path / "job").iterdir()] if path.name.startswith(".")
    ]
    assert leftover == []


# ------------------------------------------------------------------ data that changes


def test_a_worker_that_joins_later_refuses_other_data(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    path = tfrecord(data / "file")
    (data / "empty.tfrecord").touch()
    shards = shards_of(open_reader(str(data), {}, tmp_path / "job"))

    def join() -> None:
        # on a machine of its own
        check_unchanged(open_reader(str(data), {}, tmp_path / "another job"), shards)

    join()
    tfrecord(data / "another")
    with pytest.raises(BadData, match="another has appeared since the job began"):
        join()
    (data / "another").unlink()
    join()
    tfrecord(path, [*RECORDS[:-1], b"record x"])
    with pytest.raises(BadData, match="file has changed since the job began"):
        join()
    path.rename(data / "moved")
    with pytest.raises(BadData, match="file has gone since the job began"):
        join()


def test_a_file_that_changes_while_it_is_read(tmp_path: Path) -> None:
    path = tfrecord(tmp_path / "file")
    reader = open_reader(str(path), {}, tmp_path / "job")
    with path.open("ab") as file:
        file.write(b"x")
    with pytest.raises(BadData, match="has changed"):
        reader.read(task_of(reader), [0])


# ------------------------------------------------------------------ wrong data


def corrupt(path: Path, *records: int) -> Path:
    """Damage the data of records (all are equally long)."""
    content = bytearray(path.read_bytes())
    for record in records:
        content[record * (len(content) // 10) + 14] ^= 1
    path.write_bytes(content)
    return path


def test_a_corrupt_record_is_named(tmp_path: Path) -> None:
    reader = open_reader(str(corrupt(tfrecord(tmp_path / "file"), 3)), {}, tmp_path / "job")
    assert reader.read(task_of(reader), [2, 4]) == [RECORDS[2], RECORDS[4]]
    with pytest.raises(BadData, match=rf"record 3 of {tmp_path}/file .*byte 72.* checksum"):
        reader.read(task_of(reader), [2, 3])


def test_allowed_bad_records_are_absent_and_counted_once(tmp_path: Path) -> None:
    told: list[str] = []
    bad_records = BadRecords(2, lambda what: told.append(what) is None and len(told) > 1)
    path = corrupt(tfrecord(tmp_path / "file"), 3, 5, 8)
    reader = open_reader(str(path), {}, tmp_path / "job", bad_records)
    task = task_of(reader)
    for _ in range(3):
        assert reader.read(task, [5, 4, 3]) == [RECORDS[4]]
    # each is told until it was heard, here at the second time, and then no more
    assert [re.findall(r"record (\d)", what)[0] for what in told] == ["5", "3", "5"]
    with pytest.raises(BadData, match=r"record 8 of .*\(3 bad records met, max_bad_records is 2\)"):
        reader.read(task, [8])


def test_bad_rows_may_be_left_out_too(tmp_path: Path) -> None:
    path = csv(tmp_path / "file.csv", "a,b\n1,2\n3\n4,5\n")
    reader = open_reader(str(path), {}, tmp_path / "job", BadRecords(1))
    assert whole(reader) == [["1", "2"], ["4", "5"]]
    reader = open_reader(str(path), {}, tmp_path / "job")
    with pytest.raises(BadData, match=r"record 1 of .*line 3.* 1 fields, the first row has 2"):
        whole(reader)


def refused(origin: Path | str, tmp_path: Path, params: Mapping[str, Any] | None = None) -> str:
    with pytest.raises((BadData, BadSetting)) as caught:
        open_reader(str(origin), params or {}, tmp_path / "job")
    return str(caught.value)


def test_cut_and_damaged_files(tmp_path: Path) -> None:
    path = tfrecord(tmp_path / "cut.tfrecord")
    path.write_bytes(path.read_bytes()[:-1])
    assert "cut.tfrecord ends in the middle of record 9: the record begins at byte 216" in refused(
        path, tmp_path
    )
    content = bytearray(tfrecord(tmp_path / "length.tfrecord").read_bytes())
    content[24] ^= 1
    (tmp_path / "length.tfrecord").write_bytes(content)
    assert "record 1 of" in refused(tmp_path / "length.tfrecord", tmp_path)
    (tmp_path / "text.tfrecord").write_text("this is no TFRecord file")
    assert "record 0 of" in refused(tmp_path / "text.tfrecord", tmp_path)
    assert "quote never closed" in refused(csv(tmp_path / "quote.csv", 'a,b\n1,"2\n'), tmp_path)


def test_data_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert f"nowhere does not exist (looked from {Path.cwd()}); give a file" in refused(
        tmp_path / "nowhere", tmp_path
    )
    assert "no file in" in refused(tmp_path / "empty", tmp_path)
    assert "no file matches" in refused(tmp_path / "*.tfrecord", tmp_path)
    assert "tape://7/data is a URL, and no reader of the name 'tape' is installed" in refused(
        "tape://7/data", tmp_path
    )
    (tmp_path / "empty/file.csv").touch()
    assert "has no records: the file is empty" in refused(tmp_path / "empty", tmp_path)
    (tmp_path / "empty/README.md").write_text("# Data\n")  # is none
    assert "has no records: the file is empty" in refused(tmp_path / "empty", tmp_path)
    (tmp_path / "empty/file.csv").write_text("a,b\n")
    assert "has no records: there is only a header" in refused(tmp_path / "empty", tmp_path)
    (tmp_path / "empty/more.csv").write_text(
        "a,b\n1,2\n"
    )  # of the other file the master says that it has no records
    reader = open_reader(str(tmp_path / "empty"), {}, tmp_path / "job")
    assert [count for _, _, count in reader.create_shards()] == [0, 1]
    assert "only a header" in refused(csv(tmp_path / "header.csv", "a,b\n"), tmp_path)


def test_data_of_other_kinds(tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    assert (
        "is none of TFRecord, RecordIO, CSV, JSON lines, Parquet and Arrow; other kinds need a custom_data_reader"
        in refused(tmp_path / "image", tmp_path)
    )
    (tmp_path / "packed.csv.gz").write_bytes(b"\x1f\x8b\x08\x00")
    assert "compressed" in refused(tmp_path / "packed.csv.gz", tmp_path)
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    tfrecord(mixed / "a")
    csv(mixed / "b.csv")
    assert "mixes kinds: a is TFRecord, b.csv is CSV" in refused(mixed, tmp_path)


def test_csv_files_with_different_columns(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    csv(data / "1.csv", "a,b\n1,2\n")
    csv(data / "2.csv", "a,c\n1,2\n")
    message = refused(data, tmp_path)
    assert "1.csv has the header ['a', 'b'] and " in message
    assert "2.csv has the header ['a', 'c']" in message
    csv(data / "2.csv", "1,2,3\n")
    assert "no header and 3 columns" in refused(data, tmp_path)
    (data / "1.csv").unlink()
    assert "two columns of one name" in refused(csv(data / "2.csv", "a,a\n1,2\n"), tmp_path)


def test_text_that_is_not_utf8_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "latin.csv").write_bytes("a,b\n1,2\n3,é\n".encode("latin-1"))
    reader = open_reader(str(tmp_path / "latin.csv"), {}, tmp_path / "job")
    with pytest.raises(BadData, match=r"record 1 of .*line 3.* field 2 is not UTF-8 \(byte 0xe9\)"):
        whole(reader)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"heder": True}, "got heder; did you mean header"),
        ({"header": "maybe"}, "header is true, false or auto; got 'maybe'"),
        ({"header": 3}, "header is true, false or auto; got 3"),
        ({"delimiter": ";;"}, "one ASCII character such as ; or .*got ';;'"),
        ({"delimiter": '"'}, "one ASCII character"),
        ({"delimiter": 5}, "one ASCII character"),
    ],
)
def test_wrong_parameters_of_csv(tmp_path: Path, params: Mapping[str, Any], message: str) -> None:
    with pytest.raises(BadSetting, match=message):
        open_reader(str(csv(tmp_path / "file.csv")), params, tmp_path / "job")


def test_tfrecord_has_no_parameters(tmp_path: Path) -> None:
    assert "has no parameters; data_reader_params gives header" in refused(
        tfrecord(tmp_path / "file"), tmp_path, {"header": True}
    )


def test_a_file_that_may_not_be_read() -> None:
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        path = tfrecord(folder / "file")
        path.chmod(0)
        os.seteuid(user or NOBODY)  # root may read everything
        try:
            assert f"can't read {path}: Permission denied" in refused(path, folder)
        finally:
            os.seteuid(user)


def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tfrecord(tmp_path / "file")

    def forbidden(*_arguments: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", forbidden)
    assert f"can't read {path}: Permission denied" in refused(path, tmp_path)


def test_a_shard_that_is_none_of_the_files(tmp_path: Path) -> None:
    reader = open_reader(str(tfrecord(tmp_path / "file")), {}, tmp_path / "job")
    with pytest.raises(BadData, match="no data file other"):
        reader.read(Task(0, 0, Shard("other", 0, 5), 0, 5), [0])
    with pytest.raises(BadData, match="has 10 records; record 10"):
        reader.read(Task(0, 0, Shard(str(tmp_path / "file"), 0, 11), 0, 11), [10])
