"""Write WordNet's glosses as Parquet files: DIR/train/glosses.parquet and DIR/heldout/glosses.parquet, for `topics`.

117,659 explanations of words, such as "breathe easily again, as after exertion or anxiety", with the number of the topic that the word is
filed under, from 0 to 44. Examples in quotes are left out, and every tenth gloss is held out.

With --files it takes WordNet's data.noun, data.verb, data.adj and data.adv, which you have; otherwise those of Debian's package
wordnet-base, which apt-get downloads once (6 MB) and does not install.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the model zoo: this file is run as a program

from archives.fetching import from_debian

TOPICS = 45
INSIDE = "./usr/share/wordnet"
DIGESTS = {
    f"{INSIDE}/data.noun": "fea17d2f9656611334eac790e5d69e47645fa180c4aa481fb4cd9b3520754ca2",
    f"{INSIDE}/data.verb": "adcf43e35b581e8036d8b5a52d63d9cd3d3b4870b2720d3c03c799df44777bc2",
    f"{INSIDE}/data.adj": "c89120dfc1f046ddff4a631bf9b7e9fa1a36b5e86565a23bf82dbe14f30b88a7",
    f"{INSIDE}/data.adv": "444a63bf3955080ab7524f5079cfc07ff9bc682cb98bdb1db73b0fb9829f1139",
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Write WordNet's glosses as Parquet files to DIR/train and DIR/heldout; every tenth one is held out.",
        epilog="Without --files: apt-get downloads the package wordnet-base (6 MB), of which only the data is used.",
    )
    parser.add_argument("dir", type=Path, metavar="DIR", help="folder to write to; made if it is missing")
    parser.add_argument(
        "--files",
        type=Path,
        metavar="FOLDER",
        help="take data.noun, data.verb, data.adj and data.adv from here",
    )
    options = parser.parse_args(arguments)
    try:
        folder = options.files or from_debian("wordnet-base", DIGESTS)
        rows = [row for path in DIGESTS for row in read(folder / Path(path).name)]
        # the files are sorted by topic
        random.Random(0).shuffle(rows)
        splits = {"train": [row for i, row in enumerate(rows) if i % 10 != 9], "heldout": rows[9::10]}
        for split, glosses in splits.items():
            path = options.dir / split / "glosses.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            columns = {"gloss": [gloss for gloss, _ in glosses], "topic": [topic for _, topic in glosses]}
            # a few row groups: one is read by one worker
            pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=8192)
            print(f"{path}: {len(glosses)} glosses of {len(set(columns['topic']))} topics")
    except (OSError, ValueError) as error:
        print(f"make_data: {error}", file=sys.stderr)
        return 2
    return 0


def read(path):
    """Yield gloss and topic of a file of WordNet (format: its manual page wndb(5)); its licence stands in lines that begin with spaces."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("  "):
            continue
        entry, bar, gloss = line.partition(" | ")
        fields = entry.split()
        if not bar or len(fields) < 4 or not fields[1].isdigit() or int(fields[1]) >= TOPICS:
            raise ValueError(f"{path}:{number} is no line of WordNet: expected PLACE TOPIC … | GLOSS")
        yield gloss.partition('"')[0].strip(" ;"), int(fields[1])


if __name__ == "__main__":
    sys.exit(main())
