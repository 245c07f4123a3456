"""Compare an exported DeepFM with the same model that plain Keras trains here, on held-out flights.

Usage: python compare.py MODEL.keras DATA MARGIN. Uses nothing but Keras, TensorFlow and the model file; the exit code is 0 if the area
under the curve is at most MARGIN lower.
"""

from __future__ import annotations

import csv
import os
import sys
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "model_zoo"))

import keras
import tensorflow as tf

from deepfm import deepfm_flights

BATCH = 256


def examples(path: Path, mode: str) -> tf.data.Dataset:
    """Return the examples of a CSV file in batches."""
    with path.open(encoding="utf-8", newline="") as file:
        names, *rows = csv.reader(file)
    chunks = tf.data.Dataset.from_tensor_slices(tf.constant(rows)).batch(BATCH)
    made: tf.data.Dataset = deepfm_flights.feed(chunks, mode, SimpleNamespace(column_names=names))
    return made


def main() -> int:
    """Train, evaluate both, and compare."""
    model, data, margin = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
    keras.utils.set_random_seed(0)
    own = deepfm_flights.custom_model()
    own.compile(deepfm_flights.optimizer(), deepfm_flights.loss)
    own.fit(examples(data / "train" / "flights.csv", "training"), verbose=0, shuffle=False)
    heldout = examples(data / "heldout" / "flights.csv", "evaluation").cache()
    areas = []
    for trained in (keras.models.load_model(model), own):
        trained.compile(loss=deepfm_flights.loss, metrics=[keras.metrics.AUC(2000, name="auc")])
        areas.append(trained.evaluate(heldout, verbose=0, return_dict=True)["auc"])
    print(f"area under the curve on held-out flights: {areas[0]:.4f}, by plain Keras {areas[1]:.4f}")
    if areas[0] < areas[1] - margin:
        print(f"that is more than {margin} lower", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
