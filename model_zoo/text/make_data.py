"""Write pieces of text as Parquet files, DIR/train and DIR/heldout, for `bytes_torch`: rows with `text`, 65 bytes each.

python model_zoo/text/make_data.py text docs

The text is that of all .md and .txt files of a folder, here of this project's documentation. Every tenth piece is held out.
Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Write pieces of text as Parquet files to DIR/train and DIR/heldout."
    )
    parser.add_argument("dir", type=Path, metavar="DIR", help="folder to write to; made if it is missing")
    parser.add_argument("source", type=Path, metavar="FOLDER", help="folder with .md and .txt files")
    parser.add_argument("--length", type=int, default=64, metavar="N", help="bytes that the model sees (64)")
    options = parser.parse_args(arguments)
    if options.length < 1:
        parser.error(f"--length must be at least 1; got {options.length}")
    pieces = list(pieces_of(options.source, options.length + 1))
    if len(pieces) < 10:
        print(f"make_data: {options.source} has no .md and .txt files of some length", file=sys.stderr)
        return 2
    held_out = pieces[9::10]
    for split, rows in (
        ("train", [piece for number, piece in enumerate(pieces) if number % 10 != 9]),
        ("heldout", held_out),
    ):
        folder = options.dir / split
        folder.mkdir(parents=True, exist_ok=True)
        # a few row groups: one is read by one worker
        pyarrow.parquet.write_table(
            pyarrow.table({"text": rows}), folder / "text.parquet", row_group_size=512
        )
        print(f"{folder}: {len(rows)} pieces of {options.length + 1} bytes")
    return 0


def pieces_of(folder, length):
    """Yield pieces of all files in order of their paths, without what is left at the end of a file."""
    for path in sorted(one for one in folder.rglob("*") if one.suffix in (".md", ".txt")):
        content = path.read_bytes()
        for start in range(0, len(content) - length + 1, length):
            yield content[start : start + length]


if __name__ == "__main__":
    sys.exit(main())
