"""Write the iris flowers as CSV files: DIR/train/iris.csv and DIR/heldout/iris.csv, for `dnn_iris`.

They come with scikit-learn: 150 flowers of three classes, of which every fifth one is held out. Nothing is
downloaded.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
from pathlib import Path

COLUMNS = ("sepal_length", "sepal_width", "petal_length", "petal_width", "class")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Write the iris flowers as CSV files to DIR/train and DIR/heldout; every fifth flower is held out."
    )
    parser.add_argument("dir", type=Path, metavar="DIR", help="folder to write to; made if it is missing")
    options = parser.parse_args(arguments)
    try:
        from sklearn.datasets import load_iris
    except ImportError:
        print("make_data: the flowers come with scikit-learn: pip install 'elasticdl[zoo]'", file=sys.stderr)
        return 2
    data = load_iris()
    rows = [(*measures, int(label)) for measures, label in zip(data.data.tolist(), data.target, strict=True)]
    # the set is sorted by class; a step that sees one class alone learns little
    random.Random(0).shuffle(rows)
    splits = {"train": [row for i, row in enumerate(rows) if i % 5 != 4], "heldout": rows[4::5]}
    try:
        for split, flowers in splits.items():
            path = options.dir / split / "iris.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([COLUMNS, *flowers])
            print(f"{path}: {len(flowers)} flowers")
    except OSError as error:
        print(f"make_data: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
