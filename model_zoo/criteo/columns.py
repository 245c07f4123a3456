"""The columns of Criteo's click logs as models take them: integers on a logarithmic scale, categories as ids, and the label.

A row is that of the Kaggle contest and of the terabyte logs: whether there was a click, 13 integers and 26 categories in hexadecimal,
separated by tabs, without a header. Any of the 39 may be empty.
"""

import tensorflow as tf

NUMBERS = 13
FIELDS = 26
IDS = (1 << 63) - 1
"""What names of columns and categories are hashed to: so many that no two of them share an id, as far as chance goes."""


def feed(dataset, mode, metadata):
    """Make ({"ids": …, "numbers": …}, labels) of chunks of a file's rows; an empty category is one of its own, an empty integer 0."""
    columns = [f"C{place}=" for place in range(1, 1 + FIELDS)]

    def parse(rows):
        numbers, categories = rows[:, 1 : 1 + NUMBERS], rows[:, 1 + NUMBERS : 1 + NUMBERS + FIELDS]
        numbers = tf.strings.to_number(tf.where(numbers == "", "0", numbers))
        names = tf.strings.join([tf.broadcast_to(columns, tf.shape(categories)), categories])
        features = {
            "ids": tf.ensure_shape(tf.strings.to_hash_bucket_fast(names, IDS), (None, FIELDS)),
            # few are negative, and mean little
            "numbers": tf.ensure_shape(tf.math.log1p(tf.maximum(numbers, 0.0)), (None, NUMBERS)),
        }
        return features if mode == "prediction" else (features, tf.strings.to_number(rows[:, 0]))

    return dataset.map(parse)


feed.whole_chunks = True
