import tensorflow as tf
from elasticdl.python.common.constants import Mode
from elasticdl.python.elasticdl.feature_column import feature_column as elastic

NUMBERS, WORDS = ("age", "hours_per_week"), ("work_class", "education")


def custom_model():
    columns = [tf.feature_column.numeric_column(name) for name in NUMBERS]
    hashed = [tf.feature_column.categorical_column_with_hash_bucket(name, 16) for name in WORDS]
    embedded = [elastic.embedding_column(one, 4) for one in hashed]
    inputs = {name: tf.keras.layers.Input(name=name, shape=(1,), dtype=tf.float32) for name in NUMBERS}
    inputs.update({name: tf.keras.layers.Input(name=name, shape=(1,), dtype=tf.string) for name in WORDS})
    wide = tf.keras.layers.DenseFeatures([tf.feature_column.indicator_column(one) for one in hashed])(inputs)
    deep = tf.keras.layers.DenseFeatures(columns + embedded)(inputs)
    deep = tf.keras.layers.Dense(8, activation="relu")(deep)
    both = tf.keras.layers.concatenate([wide, deep])
    return tf.keras.Model(inputs=inputs, outputs=tf.keras.layers.Dense(1, activation="sigmoid")(both))


def loss(labels, predictions):
    return tf.reduce_mean(tf.keras.losses.binary_crossentropy(tf.expand_dims(labels, 1), predictions))


def optimizer(lr=0.01):
    return tf.keras.optimizers.legacy.Adam(learning_rate=lr)


def feed(dataset, mode, metadata):
    def parse(row):
        names = [*NUMBERS, *WORDS]
        features = {name: tf.expand_dims(row[place], 0) for place, name in enumerate(names)}
        for name in NUMBERS:
            features[name] = tf.strings.to_number(features[name])
        return features if mode == Mode.PREDICTION else (features, tf.strings.to_number(row[len(names)]))

    return dataset.map(parse)


def eval_metrics_fn():
    return {"auc": tf.keras.metrics.AUC()}
