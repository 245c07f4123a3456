"""Rows of a CSV file with a header as models take them: categories as ids of one table, numbers scaled, and the label.

Categories are hashed with their column's name, so there is no vocabulary to build, and one that training never saw has an id like any
other.
"""

import tensorflow as tf


def feed_of(names, scales, label, ids):
    """Return a `feed` that makes ({"ids": …, "numbers": …}, labels); `scales`: a column of numbers → what it is divided by."""

    def feed(dataset, mode, metadata):
        place = {name: index for index, name in enumerate(metadata.column_names)}
        # One operation for all names and one for all numbers: each costs more than its few bytes.
        named, numbered = [place[name] for name in names], [place[name] for name in scales]

        def parse(rows):
            values = tf.gather(rows, named, axis=1)
            texts = tf.strings.join([tf.broadcast_to(names, tf.shape(values)), values], "=")
            numbers = tf.strings.to_number(tf.gather(rows, numbered, axis=1)) / list(scales.values())
            features = {"ids": tf.strings.to_hash_bucket_fast(texts, ids), "numbers": numbers}
            return (
                features if mode == "prediction" else (features, tf.strings.to_number(rows[:, place[label]]))
            )

        return dataset.map(parse)

    feed.whole_chunks = True
    return feed
