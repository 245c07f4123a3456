import tensorflow as tf
from elasticdl.python.common.constants import Mode
from elasticdl.python.common.log_utils import default_logger as logger
from elasticdl.python.elasticdl.callbacks import LearningRateScheduler
from elasticdl.python.worker.prediction_outputs_processor import BasePredictionOutputsProcessor


def custom_model():
    inputs = tf.keras.Input((28, 28), name="image")
    x = tf.keras.layers.Reshape((28, 28, 1))(inputs)
    x = tf.keras.layers.Conv2D(4, 3, activation="relu")(x)
    x = tf.keras.layers.BatchNormalization()(x)
    x = tf.keras.layers.MaxPooling2D(4)(x)
    x = tf.keras.layers.Dropout(0.25)(tf.keras.layers.Flatten()(x))
    return tf.keras.Model(inputs, tf.keras.layers.Dense(10)(x))


def loss(labels, predictions):
    labels = tf.reshape(labels, [-1])
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(logits=predictions, labels=labels))


def optimizer(lr=0.1):
    return tf.keras.optimizers.legacy.SGD(lr)


def callbacks():
    def schedule(step):
        return 0.1 if step < 5 else 0.05

    return [LearningRateScheduler(schedule)]


def feed(dataset, mode, _):
    def parse(record):
        kinds = {"image": tf.io.FixedLenFeature([28, 28], tf.float32)}
        if mode != Mode.PREDICTION:
            kinds["label"] = tf.io.FixedLenFeature([1], tf.int64)
        example = tf.io.parse_single_example(record, kinds)
        features = {"image": tf.math.divide(example["image"], 255.0)}
        return features if mode == Mode.PREDICTION else (features, tf.cast(example["label"], tf.int32))

    dataset = dataset.map(parse)
    return dataset.shuffle(buffer_size=64) if mode == Mode.TRAINING else dataset


def eval_metrics_fn():
    return {
        "accuracy": lambda labels, predictions: tf.equal(
            tf.argmax(predictions, 1, output_type=tf.int32), tf.cast(tf.reshape(labels, [-1]), tf.int32)
        )
    }


class PredictionOutputsProcessor(BasePredictionOutputsProcessor):
    def process(self, predictions, worker_id):
        logger.info("worker %d predicts %s", worker_id, predictions.numpy().shape)
