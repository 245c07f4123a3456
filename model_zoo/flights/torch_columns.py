"""The flights' columns as models of PyTorch take them: names as ids of one table, numbers scaled, and the label.

Names are hashed, so there is no vocabulary to build, and a name that training never saw has an id like any other.
"""

import zlib

import numpy as np
import torch

from flights.fields import IDS, NAMES, SCALES


def feed(records, mode, metadata):
    """Make ({"ids": …, "numbers": …}, labels) of rows of a CSV file written by `make_data.py`."""
    rows = np.asarray(records)
    place = {name: index for index, name in enumerate(metadata.column_names)}
    ids = [[zlib.crc32(f"{name}={value}".encode()) % IDS for value in rows[:, place[name]]] for name in NAMES]
    numbers = rows[:, [place[name] for name in SCALES]].astype(np.float32)
    features = {
        "ids": torch.tensor(ids).T.contiguous(),
        "numbers": torch.from_numpy(numbers / np.array(list(SCALES.values()), np.float32)),
    }
    if mode == "prediction":
        return features
    return features, torch.from_numpy(rows[:, place["late"]].astype(np.float32))
