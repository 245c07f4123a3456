"""The data tools of the model zoo refuse files that are something else, and leave nothing."""

from __future__ import annotations

import csv
import importlib
from pathlib import Path

import pytest

from . import originals


@pytest.mark.parametrize(
    ("entry", "option", "damaged", "content", "message"),
    [
        ("census", "--files={}", "census-income.data", "1, 2, 3\n", "is no file of the census: CSV parse error: Expected 42"),
        (
            "census",
            "--files={}",
            "census-income.data",
            ", ".join(["7"] * 42),
            "is no file of the census: the last column has ['7']",
        ),
        ("census", "--files={}", "census-income.test", None, "census-income.test"),
        ("heart", "--file={}/processed.cleveland.data", "processed.cleveland.data", "1.0,2.0\n", ":1 has 2 fields; expected 14"),
        (
            "heart",
            "--file={}/processed.cleveland.data",
            "processed.cleveland.data",
            "63.0,1.0,9.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0\n",
            ":1 has a code that the data's notes do not: '9'",
        ),
        ("heart", "--file={}/processed.cleveland.data", "processed.cleveland.data", ",".join("x" * 14), "could not convert"),
        ("churn", "--file={}/telco.csv", "telco.csv", "customerID,gender\n1,Male\n", "it has no Churn, Contract, Dependents"),
        ("cifar10", "--files={}", "data_batch_3.bin", "x" * 100, "is no file of CIFAR-10: 100 bytes, no multiple of 3073"),
        ("resnet50", "--idx={}", "t10k-labels-idx1-ubyte", "x" * 100, "is no IDX file of bytes with 1 dimension"),
        ("glosses", "--files={}", "data.verb", "  1 licence\n00001740 45 v 04 breathe | draw air\n", "data.verb:2 is no line of WordNet"),
        ("glosses", "--files={}", "data.adv", "00001740 02 r 01 a_cappella 0 000\n", "data.adv:1 is no line of WordNet"),
    ],
)  # fmt: skip
def test_files_of_another_kind_are_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    entry: str,
    option: str,
    damaged: str,
    content: str | None,
    message: str,
) -> None:
    write = {"census": originals.census, "cifar10": originals.cifar, "resnet50": originals.fashion}
    write |= {"glosses": originals.wordnet}
    write.get(entry, originals.heart)(tmp_path)
    (tmp_path / damaged).unlink(missing_ok=True)
    (tmp_path / f"{damaged}.gz").unlink(missing_ok=True)
    if content is not None:
        (tmp_path / damaged).write_text(content)
    tool = importlib.import_module(f"model_zoo.{entry}.make_data")
    assert tool.main([str(tmp_path / "made"), option.format(tmp_path)]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


def test_codes_of_the_heart_data_become_words(tmp_path: Path) -> None:
    """They are those of the package, so both sources give the same table; what is unknown is empty."""
    first = "63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,?,6.0,0"
    originals.lines(tmp_path / "data", [first, *[first.replace("6.0,0", "7.0,3")] * 4])
    assert (
        importlib.import_module("model_zoo.heart.make_data").main(
            [str(tmp_path), f"--file={tmp_path / 'data'}"]
        )
        == 0
    )
    rows = [
        row
        for split in ("train", "heldout")
        for row in csv.DictReader((tmp_path / split / "heart.csv").read_text().splitlines())
    ]
    assert sorted(row["disease"] for row in rows) == ["0", "1", "1", "1", "1"]
    (healthy,) = (row for row in rows if row["disease"] == "0")
    assert list(healthy.values()) == [
        "63", "male", "typical ang", "145", "233", "1", "left vent hypertrophy", "150", "0", "2.3", "downsloping", "", "fixed defect", "0",
    ]  # fmt: skip


def test_pictures_stand_in_for_cifar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("skimage")
    tool = importlib.import_module("model_zoo.cifar10.make_data")
    assert tool.main([str(tmp_path), "--squares=5"]) == 0
    assert "train/cifar10.tfrecord: 50 pictures of 10 classes" in capsys.readouterr().out
    assert (tmp_path / "heldout" / "cifar10.tfrecord").stat().st_size > 10 * 3072
