"""Writing a trained model: one .npz file, parameters, tables and statistics by name, which `numpy.load` reads."""

from __future__ import annotations

import io

import numpy as np

from elasticdl.files.output import made_beside
from elasticdl.reference.models import Arrays


def export(path: str, values: Arrays) -> None:
    """Write to exactly `path`; what was there is replaced at the end. Raises OSError with what was there intact."""
    written = io.BytesIO()
    np.savez(written, allow_pickle=False, **values)
    with made_beside(path, "model.npz") as target:
        target.write_bytes(written.getbuffer())
