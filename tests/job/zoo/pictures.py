"""Images whose content is checked against their paths, with a label or boxes. A chunk takes a moment until the file GO exists."""

import numpy as np
from table import Paced, optimizer

__all__ = ["custom_model", "feed", "feed_boxes", "optimizer"]


def custom_model():
    return Paced(1)


def feed(records, mode, metadata):
    assert metadata.class_names == ("even", "odd")
    numbers = checked(records)
    assert all(numbers % 2 == records["label"])
    return numbers[:, None] / np.float32(1000), (records["label"] / 1000).astype(np.float32)


def feed_boxes(records, mode, metadata):
    numbers = checked(records)
    assert [len(boxes) for boxes in records["boxes"]] == [number % 3 for number in numbers]
    assert all(
        boxes.shape == (len(classes), 4)
        for boxes, classes in zip(records["boxes"], records["classes"], strict=True)
    )
    return numbers[:, None] / np.float32(1000), (numbers / 1000).astype(np.float32)


def checked(records):
    """Return the number of each image: its name, and its last bytes."""
    for path, image in zip(records["path"], records["image"], strict=True):
        assert image.startswith(b"GIF89a")
        assert image.endswith(path.rpartition("/")[2].encode() + b";")
    return np.array([int(path.rpartition("/")[2].removesuffix(".gif")) for path in records["path"]])
