"""What an adapter is given to convert."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Records = Sequence[Any]
"""Raw records of one chunk as a reader gives them: bytes each, or lists of strings (CSV)."""
