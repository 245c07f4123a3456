"""Write handwritten digits as TFRecord files: DIR/train and DIR/heldout, for `mnist_functional_api` and `mnist_subclass`; with --parquet
as Parquet files, for `mnist_torch`, `mnist_jax` and `mnist_mxnet`.

With --idx it takes the MNIST files that you have; otherwise the 1,797 real digits that come with
scikit-learn, 8 × 8 pixels enlarged to 28 × 28. Each record is a tf.train.Example, or a row, with `image`
(784 bytes) and `label`. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import struct
import sys
from pathlib import Path

import numpy as np

from elasticdl.data.readers.writing import encode_example, write_tfrecord

SIDE = 28


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Write handwritten digits as TFRecord or Parquet files to DIR/train and DIR/heldout.",
        epilog="Without --idx: scikit-learn's digits, of which every fifth one is held out.",
    )
    parser.add_argument("dir", type=Path, metavar="DIR", help="folder to write to; made if it is missing")
    parser.add_argument(
        "--idx",
        type=Path,
        metavar="FOLDER",
        help="take MNIST from here: train-images-idx3-ubyte, train-labels-idx1-ubyte and the same with t10k, "
        "plain or .gz; the t10k images are held out",
    )
    parser.add_argument("--files", type=int, default=4, metavar="N", help="number of training files (4)")
    parser.add_argument(
        "--parquet", action="store_true", help="write Parquet files, with columns `image` and `label`"
    )
    options = parser.parse_args(arguments)
    if options.files < 1:
        parser.error(f"--files must be at least 1; got {options.files}")
    try:
        splits = mnist(options.idx) if options.idx else digits()
        for split, (images, labels) in splits.items():
            files = options.files if split == "train" else 1
            write(options.dir / split, images, labels, files, "parquet" if options.parquet else "tfrecord")
            print(f"{options.dir / split}: {len(labels)} digits in {files} file{'s' * (files > 1)}")
    except (OSError, ValueError, ImportError) as error:
        print(f"make_data: {error}", file=sys.stderr)
        return 2
    return 0


def write(folder, images, labels, files, kind):
    """Write `files` files of about equal size, and remove those of an earlier run."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("digits-*-of-*.tfrecord"), *folder.glob("digits-*-of-*.parquet")):
        old.unlink()
    bounds = [len(labels) * i // files for i in range(files + 1)]
    for number, (begin, end) in enumerate(itertools.pairwise(bounds)):
        rows = [
            {"image": image.tobytes(), "label": int(label)}
            for image, label in zip(images[begin:end], labels[begin:end], strict=True)
        ]
        path = folder / f"digits-{number:02d}-of-{files:02d}.{kind}"
        if kind == "parquet":
            write_parquet(path, rows)
        else:
            write_tfrecord(path, map(encode_example, rows))


def write_parquet(path, rows):
    """Write a Parquet file with a few row groups: one is read by one worker."""
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=64)


def digits():
    """Return scikit-learn's digits; every fifth one, beginning with the fifth, is held out."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ImportError("the digits come with scikit-learn: pip install 'elasticdl[zoo]'") from None
    data = load_digits()
    images = enlarge(data.images * (255 / 16))
    held_out = np.arange(len(images)) % 5 == 4
    return {
        "train": (images[~held_out], data.target[~held_out]),
        "heldout": (images[held_out], data.target[held_out]),
    }


def enlarge(images):
    """Resize square images to 28 × 28 by bilinear interpolation; return uint8."""
    side = images.shape[1]
    centres = np.clip((np.arange(SIDE) + 0.5) * side / SIDE - 0.5, 0, side - 1)
    low = np.minimum(centres.astype(int), side - 2)
    part = centres - low
    weights = np.zeros((SIDE, side))
    weights[np.arange(SIDE), low] = 1 - part
    weights[np.arange(SIDE), low + 1] = part
    return np.rint(weights @ images @ weights.T).astype(np.uint8)


def mnist(folder):
    """Return MNIST from its IDX files."""
    splits = {}
    for split, prefix in (("train", "train"), ("heldout", "t10k")):
        images = read_idx(folder, f"{prefix}-images-idx3-ubyte", 3)
        labels = read_idx(folder, f"{prefix}-labels-idx1-ubyte", 1)
        if images.shape[1:] != (SIDE, SIDE) or len(images) != len(labels):
            raise ValueError(
                f"{folder}: {prefix} has images {images.shape} and {len(labels)} labels; expected N × 28 × 28 and N"
            )
        splits[split] = (images, labels)
    return splits


def read_idx(folder, name, dimensions):
    """Read an IDX file of bytes (format: the end of http://yann.lecun.com/exdb/mnist/)."""
    plain, packed = folder / name, folder / f"{name}.gz"
    if packed.exists() and not plain.exists():
        with gzip.open(packed) as file:
            content = file.read()
    else:
        content = plain.read_bytes()
    header = 4 + 4 * dimensions
    if content[:4] != bytes((0, 0, 8, dimensions)) or len(content) < header:
        raise ValueError(
            f"{plain} is no IDX file of bytes with {dimensions} dimension{'s' * (dimensions > 1)}"
        )
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    values = np.frombuffer(content, np.uint8, offset=header)
    if values.size != np.prod(shape):
        raise ValueError(f"{plain} should have {np.prod(shape)} values; it has {values.size}")
    return values.reshape(shape)


if __name__ == "__main__":
    sys.exit(main())
