"""Halves of statements as pods do them: each can be done twice, wherever the first try was killed, and no answer has rows or a password."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elasticdl.cluster.kubernetes.datapod import ANSWER, URL_ENVIRONMENT
from elasticdl.errors import BadSetting, BadStatement
from elasticdl.query import duckdb as duckdbsource
from elasticdl.query import pod, registry
from elasticdl.query.asked import Act, Asked
from elasticdl.query.registry import Store

ROWS = 300
PREDICT = "SELECT number FROM numbers TO PREDICT results.seen WITH predict.into='{mode}' USING doubles"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a database, and a store with a model of a zoo."""
    with duckdb.connect(str(tmp_path / "data.db")) as database:
        database.execute(f"CREATE TABLE numbers AS SELECT range AS number FROM range({ROWS})")
    with Store(tmp_path / "store").begin("doubles") as entry:
        entry.commit(
            {
                "model_zoo": "/zoo",
                "model_def": "table.custom_model",
                "model_params": {},
                "file": "model.npz",
                "columns": {"number": "integer"},
                "label": "double",
                "minibatch_size": 8,
            }
        )
    return tmp_path


def ask(place: Path, act: Act, **more: Any) -> dict[str, Any]:
    """Return what a pod answers."""
    asked = Asked(act, "3f2a", str(place / "store"), filename="my.sql", **more)
    return pod.answered(asked, f"duckdb:///{place}/data.db", [])


def begun(place: Path, text: str) -> dict[str, Any]:
    """Do the first half, and what the job does."""
    half: dict[str, Any] = ask(place, Act.BEGIN, text=text)["half"]
    seen = pa.table({"prediction": [float(one) for one in range(ROWS)]})
    output = Path(half["made"]["output"])
    output.mkdir()
    pq.write_table(seen, output / "0.parquet")
    return half


def end(place: Path, text: str, half: dict[str, Any], run: str = "3f2a") -> dict[str, Any]:
    """Do the second half."""
    job = {"file": "", "model_zoo": "", "model_def": "", "model_params": {}, "minibatch_size": 8}
    asked = Asked(Act.END, run, str(place / "store"), text, half=half, job=job)
    return pod.answered(asked, f"duckdb:///{place}/data.db", [])


def killed(act: Callable[[], object]) -> None:
    """Let a process do something in which it is killed."""
    child = os.fork()
    if not child:
        try:
            act()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


def kill(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def before_commit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(duckdbsource._Target, "commit", kill)


def after_commit(patch: pytest.MonkeyPatch) -> None:
    commit = duckdbsource._Target.commit
    patch.setattr(duckdbsource._Target, "commit", lambda target: (commit(target), kill()))


def among_removals(patch: pytest.MonkeyPatch) -> None:
    remove = shutil.rmtree
    patch.setattr(
        registry.shutil,  # type: ignore[attr-defined]
        "rmtree",
        lambda path, **how: (remove(Path(path) / "predictions"), kill()),
    )


@pytest.mark.parametrize("mode", ["new", "append", "replace"])
@pytest.mark.parametrize("point", [before_commit, after_commit, among_removals])
def test_a_second_half_that_was_killed_is_done_again_and_its_rows_are_there_once(
    place: Path, monkeypatch: pytest.MonkeyPatch, mode: str, point: Callable[[pytest.MonkeyPatch], None]
) -> None:
    text = PREDICT.format(mode=mode)
    if mode != "new":
        end(place, text, begun(place, text))
    half = begun(place, text.replace("number FROM", "number + 1000 AS number FROM"))
    with monkeypatch.context() as patch:
        point(patch)
        killed(lambda: end(place, text, half, "ffff"))
    answer = end(place, text, half, "ffff")["answer"]
    assert answer["columns"]["rows"] == [ROWS]
    with duckdb.connect(str(place / "data.db"), read_only=True) as database:
        counted = database.execute("SELECT count(*), count(DISTINCT number) FROM results").fetchall()
    assert counted == [(2 * ROWS, 2 * ROWS) if mode == "append" else (ROWS, ROWS)]
    assert end(place, text, half, "ffff")["answer"] == answer  # as if its log had been lost
    assert not list((place / "store/.work").iterdir())


def test_a_prediction_replaces_a_column_of_its_name_in_any_case(place: Path) -> None:
    text = "SELECT number, 1 AS Seen FROM numbers TO PREDICT results.SEEN USING doubles"
    end(place, text, begun(place, text))
    with duckdb.connect(str(place / "data.db"), read_only=True) as database:
        found = database.execute("FROM results WHERE number < 2 ORDER BY number")
        assert [column[0] for column in found.description] == ["number", "SEEN"]
        assert found.fetchall() == [(0, 0.0), (1, 1.0)]


def test_an_output_that_the_model_lacks_is_said_once_at_its_place(place: Path) -> None:
    text = PREDICT.format(mode="new").replace("WITH ", "WITH predict.extra_outputs=[nope], ")
    with pytest.raises(BadStatement) as caught:
        end(place, text, begun(place, text))
    mark = " " * text.index("predict.extra") + "^" * len("predict.extra_outputs")
    assert str(caught.value) == (f":1: the model has no output 'nope'; it has prediction\n  {text}\n  {mark}")


def test_a_first_half_stays_for_its_second_and_is_done_again_in_place_of_one_that_was_lost(
    place: Path,
) -> None:
    text = PREDICT.format(mode="new")
    lost = Path(begun(place, text)["state"]["work"])
    with Store(place / "store").work():
        assert (lost / "rows/training").is_dir()
    again = Path(begun(place, text)["state"]["work"])
    assert list((place / "store/.work").iterdir()) == [again]
    assert ask(place, Act.FORGET, why="the job failed") == {"kept": [str(again)]}
    assert (again / "rows/training").is_dir()
    begun(place, text)
    assert ask(place, Act.FORGET) == {"kept": []}
    assert list((place / "store/.work").iterdir()) == [again]


def test_a_training_that_is_never_ended_leaves_no_version(place: Path) -> None:
    text = "SELECT number, number AS double FROM numbers TO TRAIN table.custom_model LABEL double INTO twos"
    half = ask(place, Act.BEGIN, text=text)["half"]
    (version,) = (place / "store/twos").iterdir()
    assert half["made"]["audit"] == str(version / "audit")
    assert (half["state"]["training_rows"], half["state"]["validation_rows"]) == (ROWS - 30, 30)
    with Store(place / "store").begin("twos"):
        assert version.is_dir()  # another one does not sweep it away
    assert ask(place, Act.FORGET) == {"kept": []}
    assert not version.exists()


REFUSED = {
    "SELECT 1": "my.sql:1: this is the database's own; with --database_secret its rows stay in the cluster",
    "SELECT number FROM numbers TO PREDICT seen USING doubles": "my.sql:1: the answer to this is rows, and with --database_secret",
    "SELECT number FROM numbers TO EXPLAIN doubles USING integrated_gradients": "my.sql:1: the answer to this is rows",
    "SELECT number FROM numbers TO EXPLAIN doubles WITH explain.plot='a.svg'": "my.sql:1: explain.plot: the drawing would be a file",
    "SELECT nomber FROM numbers TO PREDICT a.b USING doubles": "my.sql:1: the database says: ",
    "SHOW MODELS; SELECT 1": "my.sql:1: this is the database's own",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_refused_is_an_answer_and_nothing_is_left(
    place: Path, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = Asked(Act.BEGIN, "3f2a", str(place / "store"), text, "my.sql")
    (place / "request.json").write_text(json.dumps(asked.to_json()))
    monkeypatch.setenv(URL_ENVIRONMENT, f"duckdb:///{place}/data.db")
    assert pod.main([str(place / "request.json")]) == 0
    assert URL_ENVIRONMENT not in os.environ
    (line,) = capsys.readouterr().out.splitlines()
    answer = json.loads(line.removeprefix(ANSWER))
    assert answer["error"].startswith(REFUSED[text])
    assert answer["is_input"]
    assert not (place / "store/.work").exists()


def test_what_a_pod_cannot_do(place: Path) -> None:
    asked = Asked(Act.BEGIN, "3f2a", str(place / "store"), PREDICT.format(mode="append"), "my.sql")
    sqlite3.connect(place / "data.sqlite").close()
    with pytest.raises(BadStatement, match="this database keeps no note with the rows"):
        pod.answered(asked, f"sqlite:///{place}/data.sqlite", [])
    with pytest.raises(BadSetting, match="the Secret's value is no URL of a database"):
        pod.answered(asked, "a password", [])
