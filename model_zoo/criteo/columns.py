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
    """Make ({"ids": …, "numbers": …}, label) of the rows of a file; an empty category is one of its own, an empty integer 0."""

    def parse(row):
        numbers, categories = row[1 : 1 + NUMBERS], row[1 + NUMBERS : 1 + NUMBERS + FIELDS]
        numbers = tf.strings.to_number(tf.where(numbers == "", "0", numbers))
        names = tf.strings.join([[f"C{place}=" for place in range(1, 1 + FIELDS)], categories])
        features = {
            "ids": tf.ensure_shape(tf.strings.to_hash_bucket_fast(names, IDS), (FIELDS,)),
            # few are negative, and mean little
            "numbers": tf.ensure_shape(tf.math.log1p(tf.maximum(numbers, 0.0)), (NUMBERS,)),
        }
        return features if mode == "prediction" else (features, tf.strings.to_number(row[0]))

    return dataset.map(parse)
