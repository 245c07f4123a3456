"""Rows that count, as in `counted`, with the framework that starts at once.

Each record adds one to the row of its id and one to a sum of all. Whole numbers under plain SGD are exact in float32 whatever the order. A
chunk takes a moment, of PACE seconds, until the file GO exists.
"""

import os
import time
from pathlib import Path

import numpy as np

from elasticdl.reference import SGD, Adam, Computed, Evaluated, Model, Table

IDS, WIDTH = 3000, 2


class Tallies(Model):
    def parameters(self, random):
        return {"total": np.zeros(1, np.float32)}

    def tables(self):
        return {"rows": Table(IDS, WIDTH, scale=0.0)}

    def ids(self, features):
        return {"rows": features}

    def compute(self, values, rows, features, labels, random):
        self.look(float(values["total"][0]))
        if not Path(os.environ["GO"]).exists():
            time.sleep(float(os.environ.get("PACE", "0.02")))
        # Servers apply the mean of a chunk, and each of its records is to count whole.
        each = -np.float32(len(features))
        return Computed(
            each * values["total"][0],
            {"total": np.array([each * len(features)], np.float32)},
            {"rows": np.full((len(features), WIDTH), each, np.float32)},
        )

    def look(self, total):
        """See the sum of all as a chunk finds it."""

    def evaluate(self, values, rows, features, labels):
        return Evaluated(0.0, np.repeat(values["total"], len(features)))


class Spoilt(Tallies):
    """Computes no number from some records on."""

    def compute(self, values, rows, features, labels, random):
        found = super().compute(values, rows, features, labels, random)
        wrong = np.float32("nan") if values["total"][0] > 100 else np.float32(1)
        return Computed(
            found.loss * wrong,
            {name: value * wrong for name, value in found.gradients.items()},
            {name: value * wrong for name, value in found.rows.items()},
        )


class Drawn(Tallies):
    """Depends on all that was learned before, unlike a count: rows and sum are drawn to 3."""

    def compute(self, values, rows, features, labels, random):
        found = super().compute(values, rows, features, labels, random)
        total = len(features) * (values["total"] - np.float32(3))
        return Computed(found.loss, {"total": total}, {"rows": rows["rows"] - np.float32(3)})


class Noted(Tallies):
    """Writes down the sum of all as each chunk finds it, in a file of the worker's own in the directory NOTES."""

    def look(self, total):
        with (Path(os.environ["NOTES"]) / str(os.getpid())).open("a") as notes:
            notes.write(f"{total:.0f}\n")


def custom_model():
    return Tallies()


def spoilt():
    return Spoilt()


def drawn():
    return Drawn()


def noted():
    return Noted()


def optimizer():
    return SGD(1.0)


def gentle():
    return SGD(0.1)


def adam():
    return Adam(lambda step: 0.1 * 0.5 ** (step / 50))


def totals():
    """Judge by the sum of all, which is the number of records that were trained."""
    return {"total": lambda labels, outputs: outputs}


def feed(records, mode, metadata):
    ids = np.asarray([record[0] for record in records], np.int64)
    return ids, np.ones(len(ids), np.float32)
