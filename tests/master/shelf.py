"""Stand-ins for an object of the cluster, and for the ways in which a request to it can go wrong."""

from __future__ import annotations

import random
from collections.abc import Mapping

from elasticdl.cluster.kubernetes.items import Stale


class Shelf:
    """An object with a version, and the ways in which a request to it can go wrong."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.version = 0

    def read(self) -> tuple[dict[str, str], str]:
        return dict(self.texts), str(self.version)

    def replace(self, texts: Mapping[str, str], version: str) -> str:
        if version != str(self.version):
            raise Stale
        self.texts, self.version = dict(texts), self.version + 1
        return str(self.version)


class Wire:
    """One client's way to a shelf: requests and answers may be lost."""

    def __init__(self, shelf: Shelf, seed: int) -> None:
        self.shelf = shelf
        self.draw = random.Random(seed)

    def read(self) -> tuple[dict[str, str], str]:
        if self.draw.random() < 0.2:
            raise OSError("no answer")
        return self.shelf.read()

    def replace(self, texts: Mapping[str, str], version: str) -> str:
        fate = self.draw.random()
        if fate < 0.2:
            raise OSError("the request was lost")
        after = self.shelf.replace(texts, version)
        if fate < 0.4:
            raise OSError("the answer was lost")
        return after
