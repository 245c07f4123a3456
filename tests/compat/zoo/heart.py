import tensorflow as tf
from elasticdl.python.common.constants import Mode
from elasticdl_preprocessing.feature_column import feature_column


def custom_model():
    age = tf.feature_column.numeric_column("age")
    buckets = tf.feature_column.bucketized_column(age, boundaries=[20, 40, 60])
    kind = tf.feature_column.categorical_column_with_vocabulary_list(
        "thal", ["fixed", "normal", "reversible"]
    )
    both = feature_column.concatenated_categorical_column([buckets, kind])
    columns = [age, buckets, tf.feature_column.indicator_column(both)]
    inputs = {
        "age": tf.keras.layers.Input(name="age", shape=(1,), dtype=tf.float32),
        "thal": tf.keras.layers.Input(name="thal", shape=(1,), dtype=tf.string),
    }
    x = tf.keras.layers.DenseFeatures(columns)(inputs)
    x = tf.keras.layers.Dense(8, activation="relu")(x)
    return tf.keras.Model(inputs=inputs, outputs=tf.keras.layers.Dense(1, activation="sigmoid")(x))


def loss(labels, predictions):
    return tf.keras.losses.binary_crossentropy(tf.reshape(labels, [-1, 1]), predictions)


def optimizer(lr=0.001):
    return tf.keras.optimizers.Adam(lr)


def feed(dataset, mode, metadata):
    def parse(row):
        features = {"age": tf.strings.to_number(row[0:1]), "thal": row[1:2]}
        return features if mode == Mode.PREDICTION else (features, tf.strings.to_number(row[2]))

    return dataset.map(parse)


def eval_metrics_fn():
    return {"accuracy": lambda labels, outputs: tf.equal(tf.reshape(outputs > 0.5, [-1]), labels > 0.5)}
