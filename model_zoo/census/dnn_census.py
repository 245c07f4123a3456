"""A dense network on the KDD census: does a person earn more than 50,000 dollars?

One model, written in Keras' three styles: `functional`, `sequential` and `subclassed` are symbols for --model_def.
"""

import keras

from census.columns import FIELDS, IDS
from census.columns import feed as feed  # a model file's symbol


def layers(width, units):
    return [
        keras.layers.Embedding(IDS, width, name="vectors"),
        keras.layers.Flatten(),
        keras.layers.Dense(units, activation="relu"),
        keras.layers.Dense(units // 2, activation="relu"),
        keras.layers.Dense(1, activation="sigmoid"),
    ]


def functional(width=8, units=128):
    ids = keras.Input((FIELDS,), dtype="int64", name="ids")
    outputs = ids
    for layer in layers(width, units):
        outputs = layer(outputs)
    return keras.Model(ids, outputs, name="census")


def sequential(width=8, units=128):
    ids = keras.Input((FIELDS,), dtype="int64", name="ids")
    return keras.Sequential([ids, *layers(width, units)], name="census")


@keras.saving.register_keras_serializable(package="census")
class Census(keras.Model):
    def __init__(self, width, units, **kwargs):
        super().__init__(**kwargs)
        self.width, self.units = width, units
        self.parts = layers(width, units)

    def call(self, ids):
        outputs = ids
        for layer in self.parts:
            outputs = layer(outputs)
        return outputs

    def get_config(self):
        return {**super().get_config(), "width": self.width, "units": self.units}


def subclassed(width=8, units=128):
    return Census(width, units, name="census")


def loss(labels, predictions):
    return keras.ops.mean(keras.losses.binary_crossentropy(keras.ops.reshape(labels, (-1, 1)), predictions))


def optimizer(lr=1e-3):
    return keras.optimizers.Adam(lr)


def eval_metrics_fn():
    return {"auc": keras.metrics.AUC(num_thresholds=1000)}
