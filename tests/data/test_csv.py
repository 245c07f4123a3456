"""CSV against Python's own csv module, on the texts that are hard."""

from __future__ import annotations

import csv
import io
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from elasticdl._core import CSVFile, index_csv
from elasticdl.errors import BadData


def rows(text: str) -> list[list[str]]:
    """Return the rows of `text` by the core; those that are not as long as the first one are missing."""
    with tempfile.TemporaryDirectory() as folder:
        path, index = Path(folder, "file.csv"), Path(folder, "index")
        path.write_bytes(text.encode())
        index_csv(str(path), str(index))
        file = CSVFile(str(path), str(index), header=False)
        good, _ = file.read_good(range(len(file)))
        return good


def rows_by_python(text: str) -> list[list[str]]:
    found = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
    return [row for row in found if len(row) == len(found[0])]


def closes_its_quotes(text: str) -> bool:
    """Tell whether a row after the end of the text is a row of its own for Python's module."""
    return list(csv.reader(io.StringIO(text + "\nx", newline="")))[-1] == ["x"]


@given(st.text(alphabet='ab ,"\n\ré', max_size=30).filter(closes_its_quotes))
@example('a,b\r\n"x, ""y""\r\nz",2\r\n\r\n\r\n3,4')
@example('"a"b,c\n')
@example('a"b"",c\n')
@example('"",""\n"\n","\r"')
@example(",\n,")
@example(" a , b \n")
@example('a,""\n')
def test_like_python(text: str) -> None:
    assert rows(text) == rows_by_python(text)


@given(st.text(alphabet='ab,"\n', min_size=1, max_size=12).filter(lambda text: not closes_its_quotes(text)))
def test_a_quote_that_stays_open_is_refused(text: str) -> None:
    with pytest.raises(BadData, match="quote never closed"):
        rows(text)


@given(
    st.integers(1, 5).flatmap(
        lambda columns: st.lists(
            st.lists(st.text(st.characters(codec="utf-8")), min_size=columns, max_size=columns), max_size=10
        )
    ),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
)
def test_what_python_writes_is_read_back(written: list[list[str]], line_end: str, quoting: int) -> None:
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator=line_end, quoting=quoting).writerows(written)  # type: ignore[arg-type]
    text = out.getvalue()
    if text.startswith("\ufeff"):
        text = text[1:]  # a byte order mark belongs to no field
    assert rows(text) == rows_by_python(text)


def test_a_row_longer_than_all_buffers(tmp_path: Path) -> None:
    field = 'long "quoted"\r\n' * 100_000
    path = tmp_path / "file.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["a", "b"], [field, "1"], ["c" * 600_000, "2"], *([["", ""]] * 3)])
    index_csv(str(path), str(tmp_path / "index"))
    file_ = CSVFile(str(path), str(tmp_path / "index"))
    assert file_.header == ["a", "b"]
    assert file_.read([4, 1, 0]) == [["", ""], ["c" * 600_000, "2"], [field, "1"]]


def test_many_columns(tmp_path: Path) -> None:
    row = [str(i) for i in range(5000)]
    path = tmp_path / "file.csv"
    path.write_text(",".join(row) + "\n" + ",".join(row))
    index_csv(str(path), str(tmp_path / "index"))
    assert CSVFile(str(path), str(tmp_path / "index")).read([1]) == [row]


def test_a_missing_quote_does_not_take_the_memory_of_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "file.csv"
    with path.open("wb") as file:
        file.write(b'a,b\n1,"2\n')
        file.truncate(100 << 20)
    with pytest.raises(BadData, match=r"longer than 64 MiB; is a quote never closed"):
        index_csv(str(path), str(tmp_path / "index"))
