"""Write pictures of 32 × 32 pixels as TFRecord files: DIR/train and DIR/heldout, for the models here.

With --files it takes CIFAR-10's binary files, which you have: data_batch_1.bin to data_batch_5.bin and test_batch.bin. Otherwise it cuts
squares out of ten pictures that come with scikit-image: a class is a picture, training squares are of its left three quarters, those that
are held out of the rest. So the data has the right form, but which picture a square is of says nothing about CIFAR-10's figures. Nothing is
downloaded. Each record is a tf.train.Example with `image` (3,072 bytes, rows of pixels of red, green and blue) and `label`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the model zoo: this file is run as a program

from elasticdl.data.readers.writing import encode_example, write_tfrecord
from pictures.make_data import pictures, squares

SIDE = 32
PICTURES = (
    "astronaut", "brick", "chelsea", "coffee", "grass", "gravel", "hubble_deep_field", "immunohistochemistry", "retina", "rocket",
)  # fmt: skip
BATCHES = {"train": [f"data_batch_{number}.bin" for number in range(1, 6)], "heldout": ["test_batch.bin"]}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Write pictures of ten classes as TFRecord files to DIR/train and DIR/heldout.",
        epilog="Without --files: squares of pictures that come with scikit-image.",
    )
    parser.add_argument("dir", type=Path, metavar="DIR", help="folder to write to; made if it is missing")
    parser.add_argument(
        "--files",
        type=Path,
        metavar="FOLDER",
        help="take CIFAR-10 from here: data_batch_1.bin … test_batch.bin",
    )
    parser.add_argument(
        "--squares", type=int, default=500, metavar="N", help="training squares of each picture (500)"
    )
    options = parser.parse_args(arguments)
    if options.squares < 1:
        parser.error(f"--squares must be at least 1; got {options.squares}")
    try:
        splits = cifar(options.files) if options.files else cut(options.squares)
        for split, (images, labels) in splits.items():
            path = options.dir / split / "cifar10.tfrecord"
            path.parent.mkdir(parents=True, exist_ok=True)
            rows = zip(images, labels, strict=True)
            write_tfrecord(
                path,
                (encode_example({"image": image.tobytes(), "label": int(label)}) for image, label in rows),
            )
            print(f"{path}: {len(labels)} pictures of {len(set(labels.tolist()))} classes")
    except (OSError, ValueError, ImportError) as error:
        print(f"make_data: {error}", file=sys.stderr)
        return 2
    return 0


def cifar(folder):
    """Return CIFAR-10 from its binary files: records of a label and the planes of red, green and blue."""
    splits = {}
    for split, names in BATCHES.items():
        contents = [np.fromfile(folder / name, np.uint8) for name in names]
        for name, content in zip(names, contents, strict=True):
            if not content.size or content.size % (1 + 3 * SIDE**2):
                raise ValueError(
                    f"{folder / name} is no file of CIFAR-10: {content.size} bytes, no multiple of {1 + 3 * SIDE**2}"
                )
        records = np.concatenate(contents).reshape(-1, 1 + 3 * SIDE**2)
        planes = records[:, 1:].reshape(-1, 3, SIDE, SIDE)
        splits[split] = (np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), records[:, 0])
    return splits


def cut(count):
    """Return squares of pictures, `count` of each for training and a fifth of it held out; grey ones get three equal colours."""
    random = np.random.default_rng(3)
    splits = {}
    for split, many in (("train", count), ("heldout", count // 5 or 1)):
        images = []
        for name in PICTURES:
            picture = pictures(name)
            if picture.ndim == 2:
                picture = np.repeat(picture[..., None], 3, axis=2)
            images += [part for _, _, part in squares(picture, split, SIDE, many, random)]
        # a step that sees one class alone learns little
        order = random.permutation(len(images))
        splits[split] = (np.stack(images)[order], np.repeat(np.arange(len(PICTURES)), many)[order])
    return splits


if __name__ == "__main__":
    sys.exit(main())
