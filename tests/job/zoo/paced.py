"""Iris flowers at the pace of a larger model."""

import os
import time
from pathlib import Path

import numpy as np
from pace import Pace

from elasticdl.reference import SGD, Softmax


class PaceAndEnd(Pace):
    def on_train_end(self, step, writes):
        # what is done at the end takes as long as with a larger model: faults have their moments in the final view
        while "HOLD" in os.environ and Path(os.environ["HOLD"]).exists():
            time.sleep(0.05)


def custom_model():
    return Softmax(4, 3)


def optimizer(lr=0.05):
    return SGD(lr)


def feed(records, mode, metadata):
    rows = np.asarray(records, np.float32)
    return rows[:, :4], rows[:, 4].astype(np.int64)


def callbacks():
    return [PaceAndEnd()]
