import tensorflow as tf
import tf_keras as keras

WRITTEN = []


def custom_model():
    inputs = keras.Input((4,))
    x = keras.layers.Dropout(0.3)(keras.layers.BatchNormalization()(inputs))
    return keras.Model(inputs, keras.layers.Dense(3)(x))


def lookups():
    inputs = keras.Input((2,), dtype="int64")
    x = keras.layers.Flatten()(keras.layers.Embedding(30, 4, name="embeddings")(inputs))
    return keras.Model(inputs, keras.layers.Dense(3)(x))


def loss(labels, predictions):
    return keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)


def optimizer():
    return keras.optimizers.legacy.Adam(0.05)


def feed(dataset, mode, metadata):
    return dataset.map(lambda row: (tf.strings.to_number(row[:4]), tf.strings.to_number(row[4], tf.int64)))


def feed_ids(dataset, mode, metadata):
    return dataset.map(
        lambda row: (tf.strings.to_number(row[:2], tf.int64), tf.strings.to_number(row[4], tf.int64))
    )


def eval_metrics_fn():
    return {
        "accuracy": keras.metrics.SparseCategoricalAccuracy(),
        "right": lambda labels, predictions: tf.equal(labels, tf.argmax(predictions, 1)),
    }


def callbacks():
    class Written(keras.callbacks.Callback):
        def on_train_end(self, logs=None):
            WRITTEN.append((self.params["global_step"], self.params["writes"]))

    return [Written()]
