"""Scripts, run as a person runs them: a model is trained while processes die, used, shown and removed; what can't work leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import elasticdl
from elasticdl.audit import audit
from elasticdl.cli import run as command
from elasticdl.errors import BadStatement, Interrupted, JobFailed
from elasticdl.query import jobs, needs, run, shown, training
from elasticdl.query.registry import Store
from tests.job.conftest import ELASTICDL, ROOT, Job
from tests.job.test_evaluation import master_of
from tests.job.test_faults import at_step, joins, kill
from tests.job.test_faults import training as in_training

ZOO = ROOT / "tests/job/zoo"
ROWS, EPOCHS = 1000, 4
TRAIN = f"""
SELECT number, "double", word FROM numbers
TO TRAIN table.custom_model WITH engine.model_zoo='{ZOO}', train.epoch={EPOCHS}, train.batch_size=8, engine.num_workers=2,
    engine.num_minibatches_per_task=1, engine.witness_seconds=2, engine.job_name='test',
    engine.callbacks='paced.callbacks'
LABEL "double" INTO doubles;
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a table of numbers, which is the working directory, and the store of models in it."""
    numbers = [*range(ROWS)]
    table = pa.table(
        {
            "number": numbers,
            "double": [2.0 * one for one in numbers],
            "word": [f"row {one}" for one in numbers],
        }
    )
    pq.write_table(table, tmp_path / "numbers.parquet")
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "ELASTICDL_STORE": "store",
        "XDG_STATE_HOME": "state",
        "TMPDIR": "",
        "GO": "go",
    }.items():
        monkeypatch.setenv(name, str(tmp_path / value))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    return tmp_path


def _begin(*words: str) -> Job:
    process = subprocess.Popen(
        [ELASTICDL, "sql", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    return Job(process, Path(os.environ["XDG_STATE_HOME"]), Path("none"))


def _lines(text: str) -> Sequence[dict[str, object]]:
    return [row for line in text.splitlines() for row in json.loads(line)]


def test_a_model_is_trained_while_processes_die_and_then_used(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    job = _begin(TRAIN, "-o", "json")
    at_step(job, 3, lambda status: kill(in_training(status)[-1]))
    joins(job, 3)
    os.kill(master_of(job), signal.SIGKILL)
    at_step(job, 8, lambda status: True)  # of the next master
    (folder / "go").touch()
    result = job.wait().succeeded()
    (trained,) = _lines(result.out)
    assert (trained["rows"], trained["validation_rows"], trained["epochs"]) == (ROWS - 100, 100, EPOCHS)
    (directory,) = (folder / "store/doubles").iterdir()
    report = audit(directory / "audit")
    assert report.complete
    assert [epoch.counted for epoch in report.epochs] == [ROWS - 100] * EPOCHS
    kept = json.loads((directory / "model.json").read_text())
    assert (kept["label"], kept["label_kind"]) == ("double", "number")
    assert kept["rows"] == {
        "select": ROWS,
        "training": ROWS - 100,
        "validation": 100,
        "audit": [ROWS - 100] * EPOCHS,
    }
    assert not list((folder / "store/.work").iterdir())

    use = f"""
    SELECT number, "double", word FROM numbers WHERE number >= 100 ORDER BY number DESC TO PREDICT results.seen USING doubles;
    SELECT seen > 0 AS above, count(*) AS n, count(DISTINCT number) AS one FROM results GROUP BY ALL;
    SELECT * FROM numbers TO EVALUATE doubles LABEL "double";
    SHOW MODELS LIKE 'dou%'; SHOW TRAIN doubles@{trained["version"]}; DROP MODEL doubles; SHOW MODELS; DROP MODEL IF EXISTS doubles
    """
    assert command(["sql", use, "-o", "json", "--num_workers=1"]) == 0
    written, counted, evaluated, models, source, *rest = map(json.loads, capfd.readouterr().out.splitlines())
    assert written == [
        {"table": "results", "rows": ROWS - 100, "model": "doubles", "version": trained["version"]}
    ]
    assert sum(row["n"] for row in counted) == sum(row["one"] for row in counted) == ROWS - 100
    table = pq.read_table(folder / "results.parquet")
    assert table.column("number").to_pylist() == [
        *range(ROWS - 1, 99, -1)
    ]  # in the order of the SELECT, each with its own prediction
    seen = table.column("seen").to_pylist()
    steps = {round((one - other) * 1e3, 1) for one, other in pairwise(seen)}
    assert len(steps) == 1, "the model is a line"
    assert [row["metric"] for row in evaluated] == ["loss"]
    assert [row["model"] for row in models] == ["doubles"]
    assert source == [{"model": f"doubles@{trained['version']}", "statement": TRAIN.strip().rstrip(";")}]
    assert rest == [[]]
    assert not (folder / "store/doubles").exists()


REFUSED = {
    "no such column": (
        "SELECT number FROM numbers LABEL nomber INTO m",
        "TEXT:1: the SELECT gives no column 'nomber'; did you mean number?",
    ),
    "no rows": (
        "SELECT * FROM numbers WHERE number < 0 LABEL word INTO m",
        "TEXT:1: the SELECT gives no rows",
    ),
    "a label that is not always there": (
        "SELECT number, nullif(word, 'row 7') AS word FROM numbers LABEL word INTO m",
        "TEXT:1: 1 of 1,000 rows have no word; add WHERE word IS NOT NULL, or predict those",
    ),
    "no row to train on": (
        "SELECT * FROM numbers TO TRAIN dnn WITH validation.fraction=0.9999 LABEL word INTO m",
        "TEXT:1: validation.fraction=0.9999 sets all 1,000 rows apart, and leaves none to train on; make it smaller",
    ),
    "one class": (
        "SELECT number, 'a' AS kind FROM numbers LABEL kind INTO m",
        "TEXT:1: the label 'kind' is 'a' in all rows; there is nothing to learn",
    ),
    "no model of this name": (
        "SELECT * FROM numbers TO TRAIN dnnn LABEL word INTO m",
        "TEXT:1: there is no model 'dnnn'; there are dnn, linear, wide_deep, deepfm, dcn, with _classifier or _regressor, and functions of "
        "a model zoo as file.function; did you mean dnn?",
    ),
    "a zoo's file without the function": (
        f"SELECT * FROM numbers TO TRAIN table.custom_modle WITH engine.model_zoo='{ZOO}' LABEL \"double\" INTO m",
        f"TEXT:1: {ZOO}/table.py: does not define 'custom_modle' (--model_def); did you mean custom_model?",
    ),
    "a zoo without the file": (
        f"SELECT * FROM numbers TO TRAIN tabel.custom_model WITH engine.model_zoo='{ZOO}' LABEL \"double\" INTO m",
        f"TEXT:1: {ZOO}/tabel.py: No such file or directory",
    ),
    "metrics of a model that has its own": (
        "SELECT * FROM numbers TO TRAIN table.custom_model WITH eval.metrics=[AUC] LABEL word INTO m",
        "TEXT:1: table.custom_model is of a model zoo, whose eval_metrics_fn says which metrics it has; leave validation.metrics out",
    ),
    "an optimizer of a model that has its own": (
        "SELECT * FROM numbers TO TRAIN table.custom_model WITH optimizer.learning_rate=0.1 LABEL word INTO m",
        "TEXT:1: table.custom_model is of a model zoo, which has an optimizer of its own; leave optimizer.learning_rate out",
    ),
    "a setting of pods in a statement": (
        "SELECT * FROM numbers TO TRAIN dnn WITH engine.image_name='x' LABEL word INTO m",
        "TEXT:1: engine.image_name is not for WITH: it is for all statements of a script, whose pods are made before it is read; give it "
        "as a flag",
    ),
    "a Secret of a local job": (
        "SELECT 1 LABEL a INTO m",
        "--database_secret is for jobs on Kubernetes: give --image_name; on this machine --database has the URL",
    ),
    "a Secret beside a database": (
        "SELECT 2 LABEL a INTO m",
        "--database is not for --database_secret: a pod reads the rows",
    ),
    "a store that pods do not see": (
        "SELECT 3 LABEL a INTO m",
        "--store: '",
    ),
    "no trained model": (
        "SELECT * FROM numbers TO PREDICT r.p USING m",
        "TEXT:1: there is no model m in ",
    ),
    "no label": ("SELECT * FROM numbers TO TRAIN dnn INTO m", "TEXT:1: LABEL is missing before INTO"),
    "a setting that the statement makes": (
        "SELECT 1 LABEL a INTO m",
        "--output is not for statements: INTO names the model, and --store its place",
    ),
    "a store that is a URL": (
        "SELECT 4 LABEL a INTO m",
        "--store: jobs write models and audits to a directory, and not to a URL; name a directory, of a bucket one where it is mounted; "
        "received 's3://b/m'",
    ),
    "no statement": (" -- nothing", "TEXT: there is no statement"),
    "a mistake behind a training": (
        "SELECT * FROM numbers LABEL word INTO m; SELECT 'a",
        "TEXT:1: what begins here does not end; close it with '",
    ),
}


@pytest.mark.parametrize("failure", REFUSED)
def test_what_cannot_work_leaves_nothing(
    folder: Path, capfd: pytest.CaptureFixture[str], failure: str
) -> None:
    text, message = REFUSED[failure]
    options = {
        "SELECT 1 LABEL a INTO m": ["--output=m.keras"]
        if "--output" in message
        else ["--database_secret=hr"],
        "SELECT 2 LABEL a INTO m": ["--database_secret=hr", "--database=sqlite:///x.db"],
        "SELECT 3 LABEL a INTO m": ["--image_name=x", "--job_name=m"],
        "SELECT 4 LABEL a INTO m": ["--store=s3://b/m"],
    }.get(text, [])
    before = sorted(path.name for path in folder.iterdir())
    assert command(["sql", text, *options]) == 2
    assert f"error: {message}" in capfd.readouterr().err
    left = [path for path in folder.rglob("*") if path.is_file() and path.name not in (*before, ".lock")]
    assert not left
    assert not (folder / "s3:").exists()


@pytest.mark.parametrize(
    "last",
    [
        "TO TRAIN dmn LABEL word INTO m",
        "TO TRAIN dnn WITH train.epoch=0 LABEL word INTO m",
        "TO PREDICT results.word WITH predict.into=newer USING m",
        "TO EXPLAIN m WITH explain.rows=0",
    ],
)
def test_a_mistake_in_the_last_statement_is_found_before_the_first_one_runs(
    folder: Path, capfd: pytest.CaptureFixture[str], last: str
) -> None:
    assert command(["sql", f"SELECT 1 AS one; SELECT * FROM numbers {last}", "-o", "json"]) == 2
    assert capfd.readouterr().out == ""


def test_a_script_is_given_once_and_readable(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert command(["sql"]) == 2
    assert command(["sql", "SELECT 1", "-f", "a.sql"]) == 2
    assert command(["sql", "-f", "a.sql"]) == 2
    (folder / "a.sql").write_bytes(b"SELECT '\xff'")
    assert command(["sql", "-f", "a.sql"]) == 2
    said = capfd.readouterr().err.splitlines()
    assert said[0] == said[1] == "error: give the statements as TEXT, or a file with -f; one of them"
    assert said[2] == "error: -f a.sql: can't be read: No such file or directory"
    assert said[3] == "error: -f a.sql: is not text in UTF-8 (invalid start byte at byte 8)"


@pytest.mark.parametrize("scheme", ["duckdb", "sqlite"])
def test_a_script_that_begins_with_create_makes_its_database(
    folder: Path, capfd: pytest.CaptureFixture[str], scheme: str
) -> None:
    database = f"--database={scheme}:///new.db"
    refused = {
        "SELECT 1": f"--database: {scheme}:///new.db: there is no file new.db",
        "SELECT a FROM t LABEL a INTO m; CREATE TABLE t (a INT)": "there is no file new.db",
        "CREATE TEMP TABLE t AS SELECT 1 AS a": "there is no file new.db",
        "DROP TABLE t": "there is no file new.db",
        "CREATE TABLE t AS SELECT * FROM nowhere": "TEXT:1: the database says: ",
        "CREATE TABLE t (a INT": "TEXT:1: the database says: ",
    }
    before = sorted(folder.rglob("*"))
    for text, message in refused.items():
        assert command(["sql", text, database]) == 2
        assert message in capfd.readouterr().err
    assert command(["sql", "CREATE TABLE t (a INT)", f"--database={scheme}:///none/new.db"]) == 2
    assert f"there is no directory {folder}/none to make the file in" in capfd.readouterr().err
    assert command(["sql", "CREATE TABLE t (a INT)", database, "--dry_run"]) == 2
    assert "a dry run makes nothing" in capfd.readouterr().err
    assert sorted(folder.rglob("*")) == before
    script = "/* a table */ create table t as SELECT 7 AS a; SELECT a + 1 AS b FROM t"
    assert command(["sql", script, database, "-o", "json"]) == 0
    assert _lines(capfd.readouterr().out)[-1] == {"b": 8}
    assert command(["sql", "DROP TABLE nowhere", f"--database={scheme}:new.db"]) == 2, "the same file"
    assert "the database says: " in capfd.readouterr().err
    assert (folder / "new.db").is_file(), "what was there stays when a statement fails"


def test_a_difference_between_rows_and_records_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Report:
        epochs = (type("Epoch", (), {"expected": 900, "counted": 899})(),) * 2

    monkeypatch.setattr(jobs, "run", lambda spec: {})
    monkeypatch.setattr(training, "audit", lambda directory: Report())
    with pytest.raises(
        JobFailed, match="gave 900 rows to train on, and the workers' records have 899, 899 in the epochs"
    ):
        elasticdl.sql(TRAIN)
    assert not list((folder / "store/doubles").iterdir())
    (kept,) = (folder / "store/.work").iterdir()
    assert (kept / "rows/training").is_dir()


@pytest.mark.parametrize("stopped", [Interrupted("interrupt"), KeyboardInterrupt()], ids=["job", "table"])
@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (TRAIN, ", and its model is not kept"),
        ("SELECT * FROM numbers TO PREDICT p.y USING doubles", ""),
    ],
    ids=["training", "prediction"],
)
def test_who_interrupts_a_statement_hears_what_is_left_of_it(
    stopped: BaseException,
    statement: str,
    said: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def interrupt(*given: object, **more: object) -> object:
        raise stopped

    monkeypatch.setattr(run, "_answer", interrupt)
    assert command(["sql", statement]) == 130
    assert capfd.readouterr().err == f"error: interrupted: the statement has ended without a result{said}\n"
    assert not (folder / "store").exists()


def test_a_job_gets_no_password(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def submitted(spec: object, out: object) -> dict[str, object]:
        seen.append("PGPASSWORD" in os.environ)
        raise JobFailed("told nothing")

    monkeypatch.setenv("PGPASSWORD", "secret")
    monkeypatch.setattr("elasticdl.job.submit.run", submitted)
    with pytest.raises(JobFailed, match="told nothing"):
        elasticdl.sql(TRAIN)
    assert seen == [False]
    assert os.environ["PGPASSWORD"] == "secret"


def test_a_dry_run_makes_nothing_and_says_why(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert (
        command(
            [
                "sql",
                "SELECT number, word, number % 2 = 0 AS even FROM numbers LABEL even INTO m; DELETE FROM x",
                "--dry_run",
            ]
        )
        == 0
    )
    out, err = capfd.readouterr()
    assert "even: 2 classes (boolean of the values 0, 1)" in err
    assert "TEXT:1: is the database's own" in err
    assert "dnn" in out
    assert not (folder / "store/m").exists()


def test_the_databases_own_statements_and_values(folder: Path) -> None:
    answer = elasticdl.sql("SELECT word FROM numbers WHERE number = ?", params=[7])
    assert answer.table is not None
    assert answer.table.to_pylist() == [{"word": "row 7"}]
    assert answer.all == (answer.all[0],)
    assert str(answer) == "word\n-----\nrow 7"
    assert answer._repr_html_() == "<table>\n<tr><th>word</th></tr>\n<tr><td>row 7</td></tr>\n</table>"
    with pytest.raises(BadStatement, match=r"sql:2: the database says: .*nomber"):
        elasticdl.sql("SELECT 1;\nSELECT nomber FROM numbers")


def test_rows_for_people_and_programs() -> None:
    table = pa.table({"名": ["a,b", None], "n": [1.5, float("nan")], "l": [[1, 2], []], "t": [True, False]})
    assert shown.text(table, "table") == (
        "名      n  l       t\n----  ---  ------  -----\na,b   1.5  [1, 2]  True\nNULL  nan  []      False\n"
    )
    assert shown.text(table, "csv") == '名,n,l,t\n"a,b",1.5,"[1, 2]",true\n,nan,[],false\n'
    assert json.loads(shown.text(table, "json")) == [
        {"名": "a,b", "n": 1.5, "l": [1, 2], "t": True},
        {"名": None, "n": None, "l": [], "t": False},
    ]
    same = pa.Table.from_arrays([pa.array([at]) for at in range(5)], ["e", "e", "E", "e_1", "e"])
    assert json.loads(shown.text(same, "json")) == [{"e": 0, "e_2": 1, "E": 2, "e_1": 3, "e_3": 4}]
    assert shown.text(same, "csv") == "e,e,E,e_1,e\n0,1,2,3,4\n"
    many = pa.table({"n": [*range(50)]})
    assert shown.table(many).endswith("… 10 more rows")
    assert len(shown.csv(many).splitlines()) == 51


def test_broken_models_are_shown_and_dropped(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    kept = {"target": "dnn", "label": None, "rows": {"training": 9}, "metrics": {"loss": 0.5}}
    broken = {
        "empty": "",
        "fields": "{}",
        "metrics": json.dumps(kept | {"metrics": {"loss": "low"}}),
        "rows": json.dumps(kept | {"rows": 9}),
        "text": '"x"',
        "whole": json.dumps(kept),
    }
    for name, text in broken.items():
        with Store(folder / "store").begin(name) as entry:
            (entry.commit({}).directory / "model.json").write_text(text)
    assert command(["sql", "SHOW MODELS", "-o", "json"]) == 0
    out, err = capfd.readouterr()
    shown_facts = {row.pop("model"): [*row.values()][1:] for row in map(dict, _lines(out))}
    assert shown_facts == {name: [None] * 4 for name in broken} | {"whole": ["dnn", None, 9, "loss 0.5"]}
    said = [line for line in err.splitlines() if line.endswith(" removes it")]
    assert [line.split("model.json: ")[1].split(";")[0] for line in said] == [
        "Expecting value: line 1 column 1 (char 0)",
        "there is no 'label'",
        "expected a number, received 'low'",
        "expected an object, received 9",
        "expected an object, received 'x'",
    ]
    for use in ("SHOW TRAIN fields", "SELECT 1 AS a TO PREDICT p USING fields", "SHOW TRAIN empty"):
        assert command(["sql", use]) == 2
        assert " can't be read: " in capfd.readouterr().err
    version = next((folder / "store/empty").iterdir()).name
    drop = f"DROP MODEL empty@{version}; DROP MODEL fields; DROP MODEL IF EXISTS metrics; DROP MODEL rows; DROP MODEL text"
    assert command(["sql", drop]) == 0
    assert [path.name for path in (folder / "store").iterdir() if not path.name.startswith(".")] == ["whole"]


def test_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(needs, "find_spec", lambda package: None)
    assert command(["sql", "SELECT 1"]) == 2
    assert (
        capfd.readouterr().err
        == "error: statements of SQL need the package duckdb: pip install 'elasticdl[sql]'\n"
    )
