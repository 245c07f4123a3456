"""Statistics for model files: of environment variables, of what `analyze` counted, or the default."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from elasticdl.errors import BadSetting
from elasticdl.preprocessing import analyzer
from elasticdl.tabular.statistics import finished, of_table


@pytest.fixture
def text() -> str:
    """Return statistics as `analyze` gives them."""
    table = pa.table({"age": [20.0, 30.0, 40.0, 30.0], "city": ["b", "a", "b", "b"]})
    return finished(of_table(table)).to_json()


def test_variables_come_first(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("ELASTICDL_STATISTICS", text)
    given = {
        "min": "1",
        "max": "9",
        "avg": "4.5",
        "stddev": "2",
        "boundaries": "3,1,3",
        "distinct_count": "7",
        "vocab": "/v",
    }
    for name, value in given.items():
        monkeypatch.setenv(f"_age_{name}", value)
    assert analyzer.get_min("age", 0) == 1.0
    assert analyzer.get_max("age", 0) == 9.0
    assert analyzer.get_avg("age", 0) == 4.5
    assert analyzer.get_stddev("age", 0) == 2.0
    assert analyzer.get_bucket_boundaries("age", []) == [1.0, 3.0]
    assert analyzer.get_distinct_count("age", 0) == 7
    assert analyzer.get_vocabulary("age", None) == "/v"
    monkeypatch.setenv("_age_min", "low")
    with pytest.raises(BadSetting, match="the environment variable _age_min is 'low'; expected a number"):
        analyzer.get_min("age", 0)


@pytest.mark.parametrize("in_file", [False, True])
def test_then_what_was_counted(
    monkeypatch: pytest.MonkeyPatch, text: str, tmp_path: Path, in_file: bool
) -> None:
    (tmp_path / "counted.json").write_text(text)
    monkeypatch.setenv("ELASTICDL_STATISTICS", str(tmp_path / "counted.json") if in_file else text)
    assert (analyzer.get_min("age", 0), analyzer.get_max("age", 0)) == (20.0, 40.0)
    assert analyzer.get_avg("age", 0) == 30.0
    assert analyzer.get_stddev("age", 0) == pytest.approx(50**0.5, rel=1e-6)
    assert analyzer.get_bucket_boundaries("age", []) == [30.0, 40.0]
    assert analyzer.get_distinct_count("city", 0) == 2
    assert analyzer.get_vocabulary("city", []) == ["b", "a"]
    assert analyzer.get_avg("city", 5) == 5


def test_else_the_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert analyzer.get_min("age", None) is None
    assert analyzer.get_bucket_boundaries("age", [1.0]) == [1.0]
    assert analyzer.get_vocabulary("age", "words.txt") == "words.txt"
    monkeypatch.setenv("ELASTICDL_STATISTICS", str(tmp_path / "nothing.json"))
    with pytest.raises(
        BadSetting, match=r"ELASTICDL_STATISTICS names no statistics.*write them with elasticdl.analyze"
    ):
        analyzer.get_min("age", 0)
