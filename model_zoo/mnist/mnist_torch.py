"""Handwritten digits with a small convolutional network in PyTorch.

Records: columns `image` (784 bytes, 28 × 28) and `label`, as `make_data.py --parquet` writes them.
"""

import numpy as np
import torch
from torch import nn


def custom_model(filters=16, dropout=0.5):
    return nn.Sequential(
        nn.Conv2d(1, filters, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(filters, 2 * filters, 3),
        nn.BatchNorm2d(2 * filters),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(2 * filters * 25, 10),
    )


def loss(labels, outputs):
    return nn.functional.cross_entropy(outputs, labels)


def optimizer(parameters):
    return torch.optim.AdamW(parameters, 2e-3)


def lr_scheduler(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.7), "epoch"


def feed(records, mode, metadata):
    pixels = np.frombuffer(b"".join(records["image"]), np.uint8).reshape(-1, 1, 28, 28)
    images = torch.from_numpy(pixels.astype(np.float32) / 255)
    return images if mode == "prediction" else (images, torch.tensor(records["label"]))


def eval_metrics_fn():
    return {"accuracy": lambda labels, outputs: labels == outputs.argmax(1)}
