"""Write Fashion-MNIST as images in a directory for each class: DIR/train/CLASS/*.png and DIR/heldout/CLASS/*.png, for `resnet50_folders`.

70,000 pictures of clothes, 28 × 28 pixels of grey. With --idx it takes the four IDX files that you have; otherwise those of Debian's
package dataset-fashion-mnist, which apt-get downloads once (31 MB) and does not install. The directories of ImageNet are data as they are.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the model zoo: this file is run as a program

from archives.fetching import from_debian
from mnist.make_data import mnist
from pictures.make_data import save

CLASSES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")
INSIDE = "./usr/share/datasets/fashion-mnist"
DIGESTS = {
    f"{INSIDE}/train-images-idx3-ubyte.gz": "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
    f"{INSIDE}/train-labels-idx1-ubyte.gz": "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
    f"{INSIDE}/t10k-images-idx3-ubyte.gz": "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa",
    f"{INSIDE}/t10k-labels-idx1-ubyte.gz": "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05",
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Write Fashion-MNIST as images in a directory for each class, below DIR/train and DIR/heldout.",
        epilog="Without --idx: apt-get downloads the package dataset-fashion-mnist (31 MB), of which only the data is used.",
    )
    parser.add_argument("dir", type=Path, metavar="DIR", help="folder to write to; made if it is missing")
    parser.add_argument(
        "--idx", type=Path, metavar="FOLDER", help="take the IDX files from here, plain or .gz"
    )
    parser.add_argument(
        "--images", type=int, default=0, metavar="N", help="only so many of each split, 0 for all"
    )
    options = parser.parse_args(arguments)
    if options.images < 0:
        parser.error(f"--images must be at least 0; got {options.images}")
    try:
        splits = mnist(options.idx or from_debian("dataset-fashion-mnist", DIGESTS))
        for split, (images, labels) in splits.items():
            folder = options.dir / split
            shutil.rmtree(folder, ignore_errors=True)
            for name in CLASSES:
                (folder / name).mkdir(parents=True)
            count = options.images or len(labels)
            for number, (image, label) in enumerate(zip(images[:count], labels[:count], strict=True)):
                save(folder / CLASSES[label] / f"{number:05d}.png", image)
            print(f"{folder}: {min(count, len(labels))} images of {len(CLASSES)} classes")
    except (OSError, ValueError) as error:
        print(f"make_data: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
