import tensorflow as tf
from elasticdl.python.common.constants import Mode


def custom_model():
    inputs = tf.keras.layers.Input(shape=(32, 32, 3), name="image")
    x = inputs
    for filters in (4, 8):
        x = tf.keras.layers.Conv2D(filters, 3, padding="same", use_bias=True)(x)
        x = tf.keras.layers.BatchNormalization(epsilon=1e-06, axis=-1, momentum=0.9)(x)
        x = tf.keras.layers.Activation("relu")(x)
        x = tf.keras.layers.MaxPooling2D(pool_size=(4, 4))(x)
        x = tf.keras.layers.Dropout(0.2)(x)
    x = tf.keras.layers.Flatten(name="flatten")(x)
    return tf.keras.Model(inputs=inputs, outputs=tf.keras.layers.Dense(10)(x), name="cifar10_model")


def loss(labels, predictions):
    # a value for each example
    return tf.nn.sparse_softmax_cross_entropy_with_logits(tf.reshape(labels, [-1]), predictions)


def optimizer(lr=0.1):
    return tf.keras.optimizers.legacy.SGD(lr, momentum=0.9)


def feed(dataset, mode, metadata):
    def parse(record):
        kinds = {"image": tf.io.FixedLenFeature([32, 32, 3], tf.float32)}
        if mode != Mode.PREDICTION:
            kinds["label"] = tf.io.FixedLenFeature([1], tf.int64)
        example = tf.io.parse_single_example(record, kinds)
        features = {"image": example["image"] / 255.0}
        return features if mode == Mode.PREDICTION else (features, example["label"])

    return dataset.map(parse)


def eval_metrics_fn():
    return {"accuracy": tf.keras.metrics.SparseCategoricalAccuracy()}
