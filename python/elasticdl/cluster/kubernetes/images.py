"""Names of container images, checked before a tool or a cluster is asked for one."""

from __future__ import annotations

import re

from elasticdl.errors import BadSetting

_PATH = (
    r"([A-Za-z0-9.-]+(:[0-9]+)?/)?[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?"
)
_DIGEST = r"@[a-z0-9]+([.+_-][a-z0-9]+)*:[0-9a-fA-F]{32,}"
_TO_USE, _TO_BUILD = re.compile(rf"{_PATH}({_DIGEST})?"), re.compile(_PATH)


def check_image(flag: str, image: str) -> None:
    """Check the name of an image that is there; a digest pins its content. Raises BadSetting."""
    if not _TO_USE.fullmatch(image):
        raise BadSetting(
            f"--{flag}: expected the name of an image, [HOST/]PATH[:TAG] or [HOST/]PATH[:TAG]@sha256:DIGEST, received {image!r}"
        )


def check_new_image(flag: str, image: str) -> None:
    """Check the name of an image that is to be built; it has no digest before it is. Raises BadSetting."""
    if not _TO_BUILD.fullmatch(image):
        raise BadSetting(
            f"--{flag}: expected a name for the new image, [HOST/]PATH[:TAG] without a digest, received {image!r}"
        )
