"""Property tests are bounded by pytest's time limit, not by the clock of a machine that may be busy."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("data", deadline=None)
settings.load_profile("data")
