"""Evaluate an exported model on held-out digits with plain Keras: no import of ElasticDL, as anybody would who gets the file.

Usage: python evaluate.py MODEL DIRECTORY-OF-TFRECORDS [LEAST-ACCURACY], where MODEL is a .keras file or the directory of a SavedModel
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf


def main(model_path: str, directory: str, least: float = 0.0) -> int:
    """Print the accuracy; return 1 if it is below `least`."""
    files = sorted(str(path) for path in Path(directory).iterdir())
    features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
    images, labels = [], []
    for record in tf.data.TFRecordDataset(files):
        example = tf.io.parse_single_example(record, features)
        images.append(np.frombuffer(example["image"].numpy(), np.uint8).reshape(28, 28, 1) / np.float32(255))
        labels.append(int(example["label"]))
    given = np.asarray(images, np.float32)
    if Path(model_path).is_dir():
        loaded = tf.saved_model.load(model_path)  # kept: its function does not keep it
        predictions = np.asarray(loaded.serve(given))
    else:
        predictions = keras.models.load_model(model_path).predict(given, verbose=0)
    accuracy = float(np.mean(np.argmax(predictions, axis=-1) == np.asarray(labels)))
    print(f"held-out accuracy {accuracy:.4f} on {len(labels)} digits, by plain Keras {keras.__version__}")
    if accuracy < least:
        print(f"expected at least {least}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    if importlib.util.find_spec("elasticdl") is not None:
        sys.modules["elasticdl"] = None  # from here on importing it fails: the model must load without it
    arguments = sys.argv[1:]
    sys.exit(main(arguments[0], arguments[1], *(float(text) for text in arguments[2:3])))
