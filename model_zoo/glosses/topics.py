"""What a dictionary's gloss speaks of: an animal, an act, a feeling, …, with the mean of embedded words.

Records: columns `gloss` and `topic`, one of WordNet's 45 files, as `make_data.py` writes them. Words are hashed, so there is no vocabulary
to build.
"""

import keras
import tensorflow as tf

TOPICS, LENGTH = 45, 40
IDS = 1 << 16
"""Of words; 0 is no word."""


def custom_model(width=64, dropout=0.3):
    words = keras.Input((LENGTH,), dtype="int64", name="words")
    vectors = keras.layers.Embedding(IDS, width, mask_zero=True, name="vectors")(words)
    x = keras.layers.GlobalAveragePooling1D()(vectors)
    x = keras.layers.Dropout(dropout)(x)
    return keras.Model(words, keras.layers.Dense(TOPICS)(x), name="topics")


def loss(labels, predictions):
    return keras.ops.mean(keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True))


def optimizer(lr=3e-3):
    return keras.optimizers.Adam(lr)


def feed(dataset, mode, metadata):
    def parse(columns):
        plain = tf.strings.regex_replace(tf.strings.lower(columns["gloss"]), "[^a-z]+", " ")
        words = tf.strings.split(plain)
        ids = 1 + tf.strings.to_hash_bucket_fast(words, IDS - 1)
        features = ids.to_tensor(0, shape=[None, LENGTH])
        return features if mode == "prediction" else (features, columns["topic"])

    return dataset.map(parse)


feed.whole_chunks = True


def eval_metrics_fn():
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}
