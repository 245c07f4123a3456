"""Which customers of a telephone company leave, with a small dense network.

Records: rows of CSV files with a header, as `make_data.py` writes them.
"""

import keras

from hashed.columns import feed_of
from hashed.dense import dense, eval_metrics_fn, loss

__all__ = ["custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]

NAMES = (
    "female", "senior_citizen", "partner", "dependents", "phone_service", "multiple_lines", "internet_service", "online_security",
    "online_backup", "device_protection", "tech_support", "streaming_tv", "streaming_movies", "contract", "paperless_billing",
    "payment_method",
)  # fmt: skip
SCALES = {"tenure": 30.0, "monthly_charges": 60.0, "total_charges": 2000.0}
IDS = 1 << 10

feed = feed_of(NAMES, SCALES, "churn", IDS)


def custom_model(width=4, units=32, dropout=0.3):
    return dense(len(NAMES), len(SCALES), IDS, width, units, dropout)


def optimizer(lr=2e-3):
    return keras.optimizers.Adam(lr)
