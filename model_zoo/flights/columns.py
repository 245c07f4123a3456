"""The flights' columns as models take them: names as ids of one table, numbers scaled, and the label.

Names are hashed, so there is no vocabulary to build, and a name that training never saw has an id like any other.
"""

import tensorflow as tf

from flights.fields import FIELDS as FIELDS
from flights.fields import IDS, NAMES, SCALES


def feed(dataset, mode, metadata):
    """Make ({"ids": …, "numbers": …}, labels) of chunks of rows of a CSV file written by `make_data.py`."""
    place = {name: index for index, name in enumerate(metadata.column_names)}
    # One operation for all names and one for all numbers: each costs more than its few bytes.
    named, numbered = [place[name] for name in NAMES], [place[name] for name in SCALES]

    def parse(rows):
        values = tf.gather(rows, named, axis=1)
        names = tf.strings.join([tf.broadcast_to(NAMES, tf.shape(values)), values], "=")
        numbers = tf.strings.to_number(tf.gather(rows, numbered, axis=1)) / list(SCALES.values())
        features = {"ids": tf.strings.to_hash_bucket_fast(names, IDS), "numbers": numbers}
        return features if mode == "prediction" else (features, tf.strings.to_number(rows[:, place["late"]]))

    return dataset.map(parse)


feed.whole_chunks = True
