"""The magic of notebooks: a cell is a script, its data frames are tables, and mistakes are one message."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from IPython.core.interactiveshell import InteractiveShell


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InteractiveShell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    shell = InteractiveShell()
    shell.run_line_magic("load_ext", "elasticdl")
    return shell


def test_frames_of_the_notebook_are_tables(shell: InteractiveShell) -> None:
    shell.user_ns["people"] = pa.table({"age": [3, 4]})
    answer = shell.run_cell_magic("elasticdl", "--store=models", "SELECT sum(age) AS years FROM people")
    assert answer.table.to_pylist() == [{"years": 7}]
    assert shell.run_line_magic("elasticdl", "--store=models SHOW MODELS").table.num_rows == 0


def test_a_mistake_is_a_message(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.run_cell_magic("elasticdl", "--num_wokers=2", "SELECT 1") is None
    assert shell.run_cell_magic("elasticdl", "", "SELECT 1;\nSELECT 'a") is None
    assert capsys.readouterr().err.splitlines() == [
        "error: --num_wokers is not a setting; did you mean num_workers?",
        "error: cell:2: what begins here does not end; close it with '",
        "  SELECT 'a",
        "         ^",
    ]
