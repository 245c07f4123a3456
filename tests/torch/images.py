"""Images of states that somebody has changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from elasticdl.checkpoint.stateimage import StateImage
from elasticdl.worker import tree


def changed_image(change: Callable[[dict[str, Any]], None], image: StateImage) -> StateImage:
    """Return an image whose trees were changed before they were described."""
    nodes = image.meta["arrays"]
    arrays = iter(tree.split(image.body, [one for node in nodes.values() for one in tree.sizes(node)]))
    trees = {name: tree.build(node, arrays) for name, node in nodes.items()}
    change(trees)
    found: list[np.ndarray] = []
    meta = {"arrays": {name: tree.describe(value, found) for name, value in trees.items()}}
    return replace(image, meta=meta, body=np.frombuffer(b"".join(one.tobytes() for one in found), np.uint8))
