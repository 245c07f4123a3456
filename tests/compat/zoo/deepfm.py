import tensorflow as tf
from elasticdl.python.common.constants import Mode
from elasticdl.python.elasticdl.layers.embedding import Embedding


def custom_model(input_dim=50, embedding_dim=4):
    ids = tf.keras.Input(shape=(3,), name="feature")
    embeddings = Embedding(embedding_dim, input_dim=input_dim)(ids)
    squared = tf.square(tf.reduce_sum(embeddings, 1)) - tf.reduce_sum(tf.square(embeddings), 1)
    first = tf.keras.layers.Flatten()(Embedding(1, input_dim=input_dim)(ids))
    deep = tf.keras.layers.Dense(8)(tf.keras.layers.Flatten()(embeddings))
    logits = (
        tf.reduce_sum(first, 1, keepdims=True)
        + 0.5 * tf.reduce_sum(squared, 1, keepdims=True)
        + tf.keras.layers.Dense(1)(deep)
    )
    outputs = {"logits": tf.reshape(logits, [-1]), "probs": tf.reshape(tf.sigmoid(logits), [-1])}
    return tf.keras.Model(inputs=ids, outputs=outputs)


def loss(labels, predictions):
    return tf.reduce_mean(
        tf.nn.sigmoid_cross_entropy_with_logits(
            tf.cast(tf.reshape(labels, [-1]), tf.float32), predictions["logits"]
        )
    )


def optimizer(lr=0.1):
    return tf.keras.optimizers.legacy.SGD(lr)


def feed(dataset, mode, metadata):
    def parse(row):
        features = {"feature": tf.strings.to_number(row[:3])}
        return features if mode == Mode.PREDICTION else (features, tf.strings.to_number(row[3], tf.int64))

    return dataset.map(parse)


def eval_metrics_fn():
    return {
        "logits": {
            "accuracy": lambda labels, predictions: tf.equal(
                tf.cast(predictions > 0, tf.int64), tf.reshape(labels, [-1])
            )
        },
        "probs": {"auc": tf.keras.metrics.AUC()},
    }
