"""Old names are found while a model file is loaded, and by nobody afterwards; what is gone is answered."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

import elasticdl
from elasticdl.compat.finder import importable
from elasticdl.data.readers.custom import open_custom_reader
from elasticdl.errors import BadModel
from elasticdl.spec.earliernames import SERVED
from elasticdl.spec.edge import build, from_arguments
from elasticdl.spec.framework import Symbol
from elasticdl.worker.modelfile import load

MODEL = """
from elasticdl.python.common.constants import Mode, MaxComputeConfig
from elasticdl.python.common import constants
import elasticdl.python.common.log_utils as logs
MODE, TABLE = Mode.TRAINING, MaxComputeConfig.ACCESS_ID
def custom_model(): ...
def optimizer(): ...
def feed(records, mode, metadata):
    return constants.JobType.TRAINING_ONLY, logs.default_logger.name
"""


def loaded(tmp_path: Path, source: str) -> object:
    (tmp_path / "earlier.py").write_text(source)
    spec = build(
        from_arguments(
            {"model_zoo": str(tmp_path), "model_def": "earlier.custom_model", "training_data": "x"}
        )
    )
    try:
        return load(spec, (Symbol("optimizer"), Symbol("feed", ("records", "mode", "metadata"))))
    finally:
        sys.modules.pop("earlier", None)


def test_a_model_file_has_them_and_nobody_else(tmp_path: Path) -> None:
    user = loaded(tmp_path, MODEL)
    assert user.feed(None, "training", None) == ("training_only", "elasticdl")  # type: ignore[attr-defined]
    assert not [name for name in sys.modules if f"{name}.".startswith("elasticdl.python.")]
    assert not hasattr(elasticdl, "python")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("elasticdl.python.common.constants")
    assert importlib.util.find_spec("elasticai_api") is None


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("import elasticdl.python.ps", r"elasticdl\.python\.ps was a part of ElasticDL 0\.2; "),
        ("from elasticdl.python.common.constants import Redis", r"constants\.Redis was a part .*; there are no such constants"),
        ("import elasticai_api", r"elasticai_api was a part .*moving\.md"),
    ],
)  # fmt: skip
def test_what_is_gone_is_answered(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(BadModel, match=said) as refused:
        loaded(tmp_path, line)
    assert "Coming from ElasticDL 0.2" in str(refused.value)


def test_a_file_that_can_do_without_is_told_so(tmp_path: Path) -> None:
    guarded = "try:\n    import elasticai_api\nexcept ImportError:\n    elasticai_api = None\n"
    loaded(tmp_path, guarded + MODEL)


def test_the_zoos_own_copy_is_found_first(tmp_path: Path) -> None:
    (tmp_path / "elasticdl_preprocessing").mkdir()
    (tmp_path / "elasticdl_preprocessing/layers.py").write_text("MINE = 3")
    user = loaded(tmp_path, "from elasticdl_preprocessing.layers import MINE\n" + MODEL)
    assert user is not None
    del sys.modules["elasticdl_preprocessing.layers"], sys.modules["elasticdl_preprocessing"]


def test_each_name_that_needs_no_framework_is_there() -> None:
    with importable():
        for module, names in SERVED.items():
            for name, place in names.items():
                if not place.startswith("elasticdl.keras"):
                    found = getattr(importlib.import_module(module), name)
                    assert found is getattr(importlib.import_module(place), name)


def test_a_reader_of_lines_is_one_of_todays(tmp_path: Path) -> None:
    with importable():
        kind = importlib.import_module("elasticdl.python.data.reader.text_reader").TextDataReader
    (tmp_path / "lines.csv").write_text("a\nb\nc\n")

    def custom_data_reader(data_origin: str, records_per_task: int | None = None) -> object:
        return kind(data_origin, records_per_task)

    reader = open_custom_reader(custom_data_reader, str(tmp_path / "lines.csv"), 2, {})
    assert reader.create_shards() == [
        (str(tmp_path / "lines.csv"), 0, 2),
        (str(tmp_path / "lines.csv"), 2, 1),
    ]
