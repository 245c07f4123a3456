"""The census' columns as models take them: every column is an id of one table, and the label.

Categories, codes, ages and weeks are hashed with their column's name, so there is no vocabulary to build. Money is a category, too: on a
logarithmic scale, four to a doubling.
"""

import tensorflow as tf

from census.fields import CATEGORIES, IDS, LABEL, MONEY
from census.fields import FIELDS as FIELDS


def feed(dataset, mode, metadata):
    """Make (ids [n, FIELDS], labels [n]) of chunks of rows of `make_data.py`."""

    def parse(columns):
        steps = [
            tf.floor(4 * tf.math.log1p(tf.cast(columns[name], tf.float32)) / tf.math.log(2.0))
            for name in MONEY
        ]
        values = [columns[name] for name in CATEGORIES] + [tf.cast(step, tf.int64) for step in steps]
        texts = [one if one.dtype == tf.string else tf.strings.as_string(one) for one in values]
        rows = tf.stack(texts, axis=1)
        names = tf.strings.join([tf.broadcast_to([*CATEGORIES, *MONEY], tf.shape(rows)), rows], "=")
        ids = tf.ensure_shape(tf.strings.to_hash_bucket_fast(names, IDS), [None, FIELDS])
        return ids if mode == "prediction" else (ids, tf.cast(columns[LABEL], tf.float32))

    return dataset.map(parse)


feed.whole_chunks = True
