"""Steps as an SQLFlow server makes them run unchanged, each alone with the database, and its server finds in the table what it reads there.

`steps/` has the programs, with `{{DATASOURCE}}` where the server puts that of the session. What steps import of SQLFlow beside ElasticDL is
made here, as small as they need it.
"""

from __future__ import annotations

import base64
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    text_format,
    wrappers_pb2,
)

from elasticdl.errors import BadData, BadSetting
from elasticdl.query import responses
from elasticdl.query.datasource import url_of
from elasticdl.query.modeltable import ModelTable
from elasticdl.query.registry import Store
from elasticdl.query.source import open_source
from tests.job.conftest import ROOT

from .mariadb import PASSWORD, Server

STEPS = Path(__file__).parent / "steps"
ZOO = ROOT / "tests/job/zoo"
ROWS = 300
RUNTIME = {
    "__init__.py": "",
    "elasticdl/__init__.py": "from elasticdl.query.sqlflow import *\n",
    "temp_file.py": """
import contextlib, os, tempfile
@contextlib.contextmanager
def TemporaryDirectory(as_cwd=False):
    with tempfile.TemporaryDirectory() as place:
        before = os.getcwd()
        os.chdir(place)
        try:
            yield place
        finally:
            os.chdir(before)
""",
    "feature/__init__.py": "",
    "feature/column.py": "class NumericColumn:\n    def __init__(self, field_desc): ...\n",
    "feature/field_desc.py": """
class DataType:
    INT64, FLOAT32, STRING = 0, 1, 2
class FieldDesc:
    def __init__(self, **what): ...
""",
}


Run = Callable[[str, str], subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a step with a datasource in a container of its own: nothing is left of those before but the database."""
    for name, text in RUNTIME.items():
        path = tmp_path / "image/runtime" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "go").touch()
    count = iter(range(100))

    def run(name: str, datasource: str) -> subprocess.CompletedProcess[str]:
        home = tmp_path / f"container-{next(count)}"
        home.mkdir()
        text = (STEPS / f"{name}.txt").read_text()
        text = text.replace("{{DATASOURCE}}", datasource).replace("{{ZOO}}", str(ZOO))
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith(("XDG_", "ELASTICDL_"))
        }
        environment |= {"HOME": str(home), "GO": str(tmp_path / "go")}
        found = [str(tmp_path / "image"), os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, found))
        return subprocess.run(
            [sys.executable, "-"],
            input=text,
            env=environment,
            cwd=home,
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


def test_a_model_goes_from_step_to_step_in_mariadb(run: Run, mariadb: Server) -> None:
    mariadb.ask("CREATE TABLE test.numbers (number BIGINT, `double` DOUBLE, word TEXT)")
    values = ", ".join(f"({one}, {2.0 * one}, 'row {one}')" for one in range(ROWS))
    mariadb.ask(f"INSERT INTO test.numbers VALUES {values}")
    datasource = f"mysql://me:{PASSWORD}@unix({mariadb.folder}/socket)/test?maxAllowedPacket=0"
    trained = run("train", datasource)
    assert trained.returncode == 0, trained.stderr
    assert PASSWORD not in trained.stderr
    known = as_go_reads_it(mariadb.ask("SELECT id, block FROM test.doubles WHERE id>=0 AND id<32"))
    assert known["model_repo_image"] == "registry.local/steps:1"
    predicted = run("predict", datasource)
    assert predicted.returncode == 0, predicted.stderr
    counts = mariadb.ask("SELECT count(*), count(DISTINCT number), count(seen) FROM test.results")
    assert counts == [(ROWS - 100,) * 3]


@pytest.fixture
def step(run: Run, tmp_path: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Run a step with a database of SQLite."""
    with closing(sqlite3.connect(tmp_path / "data.db")) as connection:
        connection.execute("CREATE TABLE numbers (number INTEGER, double REAL, word TEXT)")
        connection.executemany(
            "INSERT INTO numbers VALUES (?, ?, ?)", [(one, 2.0 * one, f"row {one}") for one in range(ROWS)]
        )
        connection.execute("CREATE TABLE doubles (id INTEGER, name TEXT)")
        connection.commit()
    return lambda name: run(name, f"sqlite3://{tmp_path}/data.db")


def test_a_model_goes_from_step_to_step_in_its_table(
    step: Callable[[str], subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    with closing(sqlite3.connect(tmp_path / "data.db")) as database:
        refused = step("train")
        assert refused.returncode == 2
        assert "the table doubles of sqlite:///" in refused.stderr
        assert "is no model's, and INTO would replace it" in refused.stderr
        missing = step("predict")
        assert missing.returncode == 2
        assert "has no model of SQLFlow" in missing.stderr or "no such column" in missing.stderr
        database.execute("DROP TABLE doubles")

        trained = step("train")
        assert trained.returncode == 0, trained.stderr
        known = as_go_reads_it([*database.execute("SELECT id, block FROM doubles WHERE id>=0 AND id<32")])
        assert known["model_repo_image"] == "registry.local/steps:1"
        assert known["select"] == "SELECT * FROM numbers"

        predicted = step("predict")
        assert predicted.returncode == 0, predicted.stderr
        (counts,) = database.execute("SELECT count(*), count(DISTINCT number), count(seen) FROM results")
        assert counts == (ROWS - 100,) * 3
        again = step("predict")
        assert again.returncode == 2
        assert "the table results of sqlite:///" in again.stderr
        assert "predict.into='replace'" in again.stderr

    evaluated = step("evaluate")
    assert evaluated.returncode == 0, evaluated.stderr
    assert [row[0] for row in rows_of(evaluated.stdout)] == ["metric", "loss"]
    shown = rows_of(step("show_train").stdout)
    assert shown == [["Model", "Train Statement"], ["doubles", known["original_sql"]]]
    explained = step("explain")
    assert explained.returncode == 2
    assert "table.py: feed failed: AssertionError" in explained.stderr, (
        "it compares columns, of which one is shuffled"
    )


def as_go_reads_it(blocks: Sequence[tuple[int, str]]) -> dict[str, str]:
    """Return the JSON of a model's table as SQLFlow's server reads it: ten characters, and as many bytes as they say."""
    blocks = sorted(blocks)
    assert [one for one, _ in blocks] == [*range(len(blocks))]
    data = b"".join(base64.b64decode(block) for _, block in blocks)
    length = int(data[:10], 0)
    assert len(data) > 10 + length, "the server takes the end of the data for an error"
    found: dict[str, str] = json.loads(data[10 : 10 + length])
    return found


def rows_of(text: str) -> list[list[object]]:
    """Return names and rows as SQLFlow's server reads them from a step's output."""
    found = []
    for line in text.splitlines():
        response = text_format.Parse(line, RESPONSE())
        if response.HasField("head"):  # type: ignore[attr-defined]
            found.append(list(response.head.column_names))  # type: ignore[attr-defined]
        else:
            found.append([unpacked(one) for one in response.row.data])  # type: ignore[attr-defined]
    return found


def unpacked(value: any_pb2.Any) -> object:
    for kind in (
        wrappers_pb2.BoolValue,
        wrappers_pb2.Int64Value,
        wrappers_pb2.DoubleValue,
        wrappers_pb2.StringValue,
    ):
        if value.Is(kind.DESCRIPTOR):
            message = kind()
            value.Unpack(message)
            return message.value
    assert value.type_url.endswith("/proto.Row.Null")
    return None


def _response() -> type:
    """Return the message that SQLFlow's server and its clients exchange, as far as rows need it."""
    pool = descriptor_pool.Default()
    file = descriptor_pb2.FileDescriptorProto(
        name="sqlflow_of_tests.proto",
        package="proto",
        syntax="proto3",
        dependency=["google/protobuf/any.proto"],
    )
    head = file.message_type.add(name="Head")
    head.field.add(name="column_names", number=1, type=9, label=3)
    row = file.message_type.add(name="Row")
    row.nested_type.add(name="Null")
    row.field.add(name="data", number=1, type=11, label=3, type_name=".google.protobuf.Any")
    response = file.message_type.add(name="Response")
    response.oneof_decl.add(name="response")
    response.field.add(name="head", number=1, type=11, label=1, type_name=".proto.Head", oneof_index=0)
    response.field.add(name="row", number=2, type=11, label=1, type_name=".proto.Row", oneof_index=0)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("proto.Response"))


RESPONSE = _response()


def test_rows_are_the_servers_messages() -> None:
    table = pa.table(
        {'a "name"': ['é\\ "x"\n\tand 年', None], "n": [1, -2], "x": [0.5, 1e300], "yes": [True, False]}
    )
    names, *rows = rows_of("\n".join(responses.lines(table)))
    assert names == table.column_names
    assert rows == [[*one.values()] for one in table.to_pylist()]


@pytest.mark.parametrize(
    ("datasource", "url"),
    [
        ("mysql://root:root@tcp(127.0.0.1:3306)/?maxAllowedPacket=0", "mysql://root:root@127.0.0.1:3306/"),
        ("mysql://me:p@ss/w:rd@tcp(db:3307)/iris?parseTime=true&tls=false", "mysql://me:p%40ss%2Fw%3Ard@db:3307/iris"),
        ("mysql://me@/iris", "mysql://me@127.0.0.1:3306/iris"),
        ("mysql://me:x@unix(/run/my sql.sock)/iris", "mysql://me:x@localhost/iris?unix_socket=/run/my%20sql.sock"),
        ("sqlite3:///data/flights.db", "sqlite:////data/flights.db"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
    ],
)  # fmt: skip
def test_datasources_are_urls(datasource: str, url: str) -> None:
    assert url_of(datasource) == url


@pytest.mark.parametrize(
    ("datasource", "said"),
    [
        ("hive://root:secret@127.0.0.1:10000/?auth=NOSASL", "don't read Hive"),
        ("maxcompute://ak:secret@service.com/api?curr_project=p", "odps://PROJECT/TABLE"),
        ("alisa://ak:secret@service.com?curr_project=p", "through Alisa"),
        ("mysql://root:secret@pipe(mysql)/iris", "by pipe"),
        ("mysql://root:secret@tcp(127.0.0.1:3306)/iris?tls=true", "tls=true"),
        ("mysql://root:secret", "is mysql://…, but not of the form"),
        ("secret", "is DRIVER://…"),
    ],
)
def test_what_steps_do_not_have_is_refused_without_the_password(datasource: str, said: str) -> None:
    with pytest.raises(BadSetting, match=said.replace("/", r"\/")) as refused:
        url_of(datasource)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("name", ["a.b.c", "a-b", "x; DROP TABLE y", ""])
def test_a_models_table_has_a_plain_name(name: str, tmp_path: Path) -> None:
    (tmp_path / "data.db").touch()
    table = ModelTable(open_source(f"sqlite:///{tmp_path}/data.db"), name)
    with pytest.raises(BadSetting, match="SQLFlow keeps"):
        table.check()
    with pytest.raises(BadSetting, match="SQLFlow keeps models in tables"):
        table.known()


@pytest.mark.parametrize("block", ["", "AAAA", "*", base64.b64encode(b"0x00000002{}").decode()])
def test_a_table_that_has_no_whole_model_is_no_model(block: str, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "data.db")) as connection:
        connection.execute("CREATE TABLE m (id INTEGER, block TEXT)")
        connection.execute("INSERT INTO m VALUES (0, ?)", (block,))
        connection.commit()
    with pytest.raises(BadData, match="train it again"):
        ModelTable(open_source(f"sqlite:///{tmp_path}/data.db"), "m").model(Store(tmp_path / "store"))
    assert not [*(tmp_path / "store").rglob("*/*")]
