"""Pictures of ten classes with a convolutional network, written with Keras' functional API.

Records: TFRecord of tf.train.Example with `image` (one bytes value of 3,072 bytes, 32 × 32 × 3) and `label` (int64).
"""

import keras
import tensorflow as tf

SIDE, CLASSES = 32, 10


def custom_model(filters=32, dropout=0.4):
    inputs = keras.Input((SIDE, SIDE, 3), name="image")
    x = keras.layers.RandomFlip("horizontal")(inputs)
    for factor in (1, 2, 4):
        for _ in range(2):
            x = keras.layers.Conv2D(factor * filters, 3, padding="same", use_bias=False)(x)
            x = keras.layers.Activation("relu")(keras.layers.BatchNormalization()(x))
        x = keras.layers.MaxPooling2D()(x)
    x = keras.layers.Dropout(dropout)(keras.layers.Flatten()(x))
    return keras.Model(inputs, keras.layers.Dense(CLASSES)(x), name="cifar10")


def loss(labels, predictions):
    return keras.ops.mean(keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True))


def optimizer(lr=1e-3):
    return keras.optimizers.Adam(lr)


def feed(dataset, mode, metadata):
    features = {"image": tf.io.FixedLenFeature([], tf.string)}
    if mode != "prediction":
        features["label"] = tf.io.FixedLenFeature([], tf.int64)

    def parse(records):
        examples = tf.io.parse_example(records, features)
        pixels = tf.reshape(tf.io.decode_raw(examples["image"], tf.uint8), [-1, SIDE, SIDE, 3])
        images = tf.cast(pixels, tf.float32) / 255.0
        return images if mode == "prediction" else (images, examples["label"])

    return dataset.map(parse)


feed.whole_chunks = True


def eval_metrics_fn():
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}
