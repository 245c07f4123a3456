"""A manifest that is used in both ways: as a dictionary, and with the attributes that the objects of Kubernetes' Python client have.

`pod["spec"]["hostNetwork"]` and `pod.spec.host_network` are the same. It is no model of the API: whether a key exists is checked later,
with what was made of it. Objects of that client may be put into it; this module knows them by their form and does not import them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LETTERS = {
    "api": "API", "fqdn": "FQDN", "id": "ID", "io": "IO", "ip": "IP", "ipc": "IPC", "ips": "IPs", "pid": "PID", "uri": "URI",
    "uuid": "UUID", "wwns": "WWNs",
}  # fmt: skip
"""Words that keys write in capitals, unless they come first."""


class Manifest(dict[str, Any]):
    """One mapping of a manifest; its attributes are its keys, and a key that is not there is None, as in Kubernetes' client.

    The methods of a dictionary come first: a key called `items` or `values` is read as a key.
    """

    def __getattr__(self, name: str) -> Any:
        """Return the value of the key that is meant."""
        if name.startswith("_"):
            raise AttributeError(f"a manifest has no attribute {name!r}")
        return self.get(key_of(name))

    def __setattr__(self, name: str, value: Any) -> None:
        """Set the key that is meant; None removes it."""
        if value is None:
            self.pop(key_of(name), None)
        else:
            self[key_of(name)] = value

    def __delattr__(self, name: str) -> None:
        """Remove the key that is meant."""
        self.pop(key_of(name), None)


def key_of(attribute: str) -> str:
    """Return the key of an attribute: `hostNetwork` of `host_network`, `hostIPC` of `host_ipc`."""
    first, *words = attribute.split("_")
    return first + "".join(_LETTERS.get(word, word[:1].upper() + word[1:]) for word in words)


def with_attributes(value: Any) -> Any:
    """Return a copy of a manifest with attributes at every level."""
    if isinstance(value, Mapping):
        return Manifest({key: with_attributes(one) for key, one in value.items()})
    if isinstance(value, list):
        return [with_attributes(one) for one in value]
    return value


def plain(value: Any) -> Any:
    """Return a copy of a manifest without attributes; objects of Kubernetes' client become what they stand for."""
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    keys = getattr(type(value), "attribute_map", None)
    if isinstance(keys, Mapping):
        found = ((key, getattr(value, attribute)) for attribute, key in keys.items())
        return {key: plain(one) for key, one in found if one is not None}
    return value
