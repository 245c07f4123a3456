import tensorflow as tf
from mnist_functional import eval_metrics_fn, feed, loss  # noqa: F401


def optimizer(lr=0.001):
    return tf.keras.optimizers.legacy.SGD(lr)


class CustomModel(tf.keras.Model):
    def __init__(self):
        super().__init__(name="mnist_model")
        self._conv = tf.keras.layers.Conv2D(4, kernel_size=(3, 3), activation="relu")
        self._norm = tf.keras.layers.BatchNormalization()
        self._flatten = tf.keras.layers.Flatten()
        self._dense = tf.keras.layers.Dense(10)

    def call(self, inputs, training=False):
        x = tf.expand_dims(inputs["image"], -1)
        x = self._norm(self._conv(x), training=training)
        return self._dense(self._flatten(x))
