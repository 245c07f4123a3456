"""Image files: which files are some, and whether one is whole.

Nothing is decoded: that is the model's affair. What was cut while it was copied is found by the way in which each format ends.
"""

from __future__ import annotations

import struct
import zlib

_PNG = b"\x89PNG\r\n\x1a\n"


def wrong_with(content: bytes) -> str:
    """Return what is wrong with the content of an image file; empty if it is whole.

    Formats: ITU-T T.81 (JPEG), https://www.w3.org/TR/png-3/, https://www.w3.org/Graphics/GIF/spec-gif89a.txt, BITMAPFILEHEADER (BMP),
    RFC 9649 (WebP).
    """
    if not content:
        return "it is empty"
    if content.startswith(b"\xff\xd8"):
        return "" if _has_end_of_jpeg(content) else _CUT
    if content.startswith(_PNG):
        return _wrong_with_png(content)
    if content.startswith((b"GIF87a", b"GIF89a")):
        return "" if content.rstrip(b"\0").endswith(b"\x3b") else _CUT
    if content.startswith(b"BM") and len(content) >= 26:
        return "" if len(content) >= struct.unpack_from("<I", content, 2)[0] else _CUT
    if content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        return "" if len(content) >= struct.unpack_from("<I", content, 4)[0] + 8 else _CUT
    return "it is no image (JPEG, PNG, GIF, BMP or WebP)"


_CUT = "it ends too early; was it cut? Copy it again"


def _has_end_of_jpeg(content: bytes) -> bool:
    """Look for the end behind the first scan: what comes before it may hold a smaller image, which has an end of its own."""
    at = 2
    while at + 4 <= len(content) and content[at] == 0xFF:
        marker = content[at + 1]
        if marker == 0xFF:  # a byte that fills up
            at += 1
            continue
        at += 2 + struct.unpack_from(">H", content, at + 2)[0]
        if marker == 0xDA:
            return content.rfind(b"\xff\xd9", at) >= 0
    return False


def _wrong_with_png(content: bytes) -> str:
    at = len(_PNG)
    while at + 12 <= len(content):
        length, kind = struct.unpack_from(">I4s", content, at)
        end = at + 12 + length
        if end > len(content):
            return _CUT
        if zlib.crc32(content[at + 4 : end - 4]) != struct.unpack_from(">I", content, end - 4)[0]:
            return f"its chunk at byte {at} has another checksum; copy it again"
        if kind == b"IEND":
            return ""
        at = end
    return _CUT
