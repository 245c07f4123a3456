"""Iris flowers at the pace of a larger model, with everything that a model file for PyTorch may have."""

import os
import time
from pathlib import Path

import numpy as np
import torch

from elasticdl.torch import Callback

SECONDS = 0.3
"""Of a step, while the file in the environment variable GO is missing: faults have their moments."""


class Pace(Callback):
    def on_step_end(self, logs):
        if not Path(os.environ["GO"]).exists():
            time.sleep(SECONDS)

    def on_train_end(self, step, writes):
        # what is done at the end takes as long as with a larger model: faults have their moments in the final view
        while "HOLD" in os.environ and Path(os.environ["HOLD"]).exists():
            time.sleep(0.05)


def custom_model(units=16):
    return torch.nn.Sequential(
        torch.nn.Linear(4, units),
        torch.nn.BatchNorm1d(units),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(units, 3),
    )


def loss(labels, outputs):
    return torch.nn.functional.cross_entropy(outputs, labels)


def optimizer(parameters):
    return torch.optim.AdamW(parameters, 0.02)


def lr_scheduler(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 10, gamma=0.7), "epoch"


def feed(records, mode, metadata):
    rows = np.asarray([row[:4] for row in records], np.float32)
    features = torch.from_numpy(rows)
    if mode == "prediction":
        return features
    return features, torch.tensor([int(row[4]) for row in records])


def eval_metrics_fn():
    return {"accuracy": lambda labels, outputs: labels == outputs.argmax(1)}


def callbacks():
    return [Pace()]
