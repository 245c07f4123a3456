"""Small objects of the cluster that hold texts, changed by compare-and-set: the master's memory on Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from elasticdl.cluster.kubernetes.api import Api, ApiError, Object, Unreachable


class Stale(Exception):
    """The object has another version by now."""


class Item(Protocol):
    """Texts by name, with a version that changes with every update."""

    def read(self) -> tuple[dict[str, str], str]:
        """Return the texts and their version. Raises OSError if the cluster does not answer."""

    def replace(self, texts: Mapping[str, str], version: str) -> str:
        """Replace all texts if the object still has this version, and return the next.

        Raises Stale; OSError if the outcome is unknown.
        """


class ConfigMapItem:
    """An item in a ConfigMap, which exists."""

    def __init__(self, api: Api, name: str) -> None:
        self._api = api
        self._name = name
        self._metadata: Object = {}

    def read(self) -> tuple[dict[str, str], str]:
        """Return the texts and their version. Raises OSError."""
        try:
            body = self._api.get("ConfigMap", self._name)
        except ApiError as error:
            raise Unreachable(f"ConfigMap {self._name} can't be read: {error}") from error
        self._metadata = body["metadata"]
        return dict(body.get("data") or {}), self._metadata["resourceVersion"]

    def replace(self, texts: Mapping[str, str], version: str) -> str:
        """Replace all texts. Raises Stale, OSError."""
        if not self._metadata:
            self.read()
        metadata = {**self._metadata, "resourceVersion": version}
        metadata.pop("managedFields", None)
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(texts)}
        try:
            self._metadata = self._api.replace(body)["metadata"]
        except ApiError as error:
            if error.status == 409:
                raise Stale from None
            raise Unreachable(f"ConfigMap {self._name} can't be written: {error}") from error
        return str(self._metadata["resourceVersion"])
