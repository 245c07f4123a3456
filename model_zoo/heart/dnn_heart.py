"""Heart disease with a small dense network: is a vessel of the heart narrowed by more than half?

Records: rows of CSV files with a header, as `make_data.py` writes them.
"""

import keras

from hashed.columns import feed_of
from hashed.dense import dense, eval_metrics_fn, loss

__all__ = ["custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]

NAMES = ("sex", "chest_pain", "high_sugar", "rest_ecg", "exercise_angina", "slope", "vessels", "thal")
SCALES = {
    "age": 50.0,
    "blood_pressure": 130.0,
    "cholesterol": 250.0,
    "max_heart_rate": 150.0,
    "st_depression": 1.0,
}
IDS = 1 << 10

feed = feed_of(NAMES, SCALES, "disease", IDS)


def custom_model(width=4, units=16, dropout=0.3):
    return dense(len(NAMES), len(SCALES), IDS, width, units, dropout)


def optimizer(lr=5e-3):
    return keras.optimizers.Adam(lr)
