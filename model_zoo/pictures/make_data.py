"""Write images cut out of scikit-image's pictures: a directory for each class of textures, and coins with their boxes as a COCO file.

    DIR/textures/train/brick/….png, grass/…, gravel/…      and DIR/textures/heldout
    DIR/coins/train/….png, DIR/coins/train.json            and DIR/coins/heldout, DIR/coins/heldout.json

The right part of each picture is held out. Where the coins are is found by their brightness. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

import numpy as np

TEXTURES = ("brick", "grass", "gravel")
TEXTURE = 64
"""Pixels of a side of a texture."""
COINS = 128
"""Pixels of a side of a picture of coins."""
SMALLEST = 200
"""Pixels of what is a coin at least."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write images of textures and of coins to DIR.")
    parser.add_argument("dir", type=Path, metavar="DIR", help="folder to write to; made if it is missing")
    parser.add_argument(
        "--textures", type=int, default=200, metavar="N", help="training images of each texture (200)"
    )
    parser.add_argument("--coins", type=int, default=600, metavar="N", help="training images of coins (600)")
    options = parser.parse_args(arguments)
    if min(options.textures, options.coins) < 1:
        parser.error("--textures and --coins must be at least 1")
    try:
        for folder in ("textures", "coins"):
            shutil.rmtree(options.dir / folder, ignore_errors=True)
        write_textures(options.dir / "textures", options.textures)
        write_coins(options.dir / "coins", options.coins)
    except (OSError, ImportError) as error:
        print(f"make_data: {error}", file=sys.stderr)
        return 2
    return 0


def pictures(name):
    try:
        import skimage
    except ImportError:
        raise ImportError("the pictures come with scikit-image: pip install 'elasticdl[zoo]'") from None
    return getattr(skimage.data, name)()


def write_textures(folder, count):
    """Write squares of each texture: of its left three quarters for training, of the rest those that are held out."""
    random = np.random.default_rng(1)
    for split, many in (("train", count), ("heldout", count // 5 or 1)):
        for name in TEXTURES:
            target = folder / split / name
            target.mkdir(parents=True)
            for number, (_, _, part) in enumerate(squares(pictures(name), split, TEXTURE, many, random)):
                save(target / f"{number:04d}.png", part)
        print(f"{folder / split}: {many * len(TEXTURES)} images of {len(TEXTURES)} textures")


def write_coins(folder, count):
    """Write squares of a picture of coins, and the boxes of the coins of which most is in them."""
    picture, random = pictures("coins"), np.random.default_rng(2)
    found = coins_of(picture)
    for split, many in (("train", count), ("heldout", count // 5 or 1)):
        (folder / split).mkdir(parents=True)
        images, annotations = [], []
        for number, (top, left, part) in enumerate(squares(picture, split, COINS, many, random)):
            name = f"{number:04d}.png"
            save(folder / split / name, part)
            images.append({"id": number, "file_name": name, "width": COINS, "height": COINS})
            for box in inside(found - [left, top, left, top]):
                edges = [*box[:2], *(box[2:] - box[:2])]
                entry = {"id": len(annotations), "image_id": number, "category_id": 1, "iscrowd": 0}
                annotations.append({**entry, "bbox": [int(edge) for edge in edges]})
        content = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "coin"}]}
        (folder / f"{split}.json").write_text(json.dumps(content))
        print(f"{folder / split}: {many} images with {len(annotations)} coins")


def squares(picture, split, side, count, random):
    """Yield top, left and content of random squares of a picture's part that belongs to a split."""
    height, width = picture.shape[:2]
    border = width - max(side + 32, width // 4)
    first, last = (0, border - side) if split == "train" else (border, width - side)
    for _ in range(count):
        top, left = random.integers(0, height - side + 1), random.integers(first, last + 1)
        yield top, left, picture[top : top + side, left : left + side]


def coins_of(picture):
    """Return the boxes of the coins as left, top, right, bottom, an array [n, 4]."""
    from skimage import filters, measure, morphology

    blurred = filters.gaussian(picture, 1)
    # The background is brighter at the top left: a threshold for each neighbourhood.
    bright = blurred > filters.threshold_local(blurred, 121, offset=-0.05)
    whole = morphology.closing(bright, morphology.disk(2))
    boxes = [region.bbox for region in measure.regionprops(measure.label(whole)) if region.area >= SMALLEST]
    return np.array([[left, top, right, bottom] for top, left, bottom, right in boxes])


def inside(boxes):
    """Return what is seen of boxes of which at least three quarters are in a square."""
    cut = np.clip(boxes, 0, COINS)
    areas, seen = (np.maximum(one[:, 2:] - one[:, :2], 0).prod(axis=1) for one in (boxes, cut))
    return cut[seen >= 0.75 * areas]


def save(path, pixels):
    from PIL import Image

    Image.fromarray(pixels).save(path)


if __name__ == "__main__":
    sys.exit(main())
