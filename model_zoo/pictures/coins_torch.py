"""Where coins are, in PyTorch: the detector's head of `coins.py`, over the same directory of images with a COCO file.

Records: `image`, the bytes of an image of 128 × 128 pixels, and `boxes`, [n, 4]: left, top, right, bottom of each coin in pixels. Outputs
are those of `coins.py`, [n, 8, 8, 5]; its `boxes_of` makes boxes of them.
"""

import io

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

SIDE, CELL = 128, 16
CELLS = SIDE // CELL


class Coins(nn.Module):
    def __init__(self, filters):
        super().__init__()
        layers, before = [], 1
        for factor in (1, 2, 4, 4):
            layers += [nn.Conv2d(before, factor * filters, 3, stride=2, padding=1), nn.ReLU()]
            before = factor * filters
        self.body = nn.Sequential(*layers, nn.Conv2d(before, before, 3, padding=1), nn.ReLU())
        self.head = nn.Conv2d(before, 5, 1)

    def forward(self, images):
        return self.head(self.body(images)).permute(0, 2, 3, 1)


def custom_model(filters=16):
    return Coins(filters)


def loss(labels, outputs):
    there = labels[..., 0]
    seen = F.binary_cross_entropy_with_logits(outputs[..., 0], there)
    apart = (labels[..., 1:] - outputs[..., 1:]).abs().sum(-1)
    return seen + (there * apart).sum() / there.sum().clamp(min=1.0) / 4


def optimizer(parameters):
    return torch.optim.Adam(parameters, 3e-3)


def feed(records, mode, metadata):
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(one)).convert("L")) for one in records["image"]])
    images = torch.from_numpy(pixels[:, None].astype(np.float32) / 255)
    if mode == "prediction":
        return images
    return images, torch.from_numpy(np.stack([cells_of(np.asarray(boxes)) for boxes in records["boxes"]]))


def cells_of(boxes):
    """Return what cells say that are right, [8, 8, 5]: there or not, middle across and down in the cell, width and height in cells."""
    cells = np.zeros((CELLS, CELLS, 5), np.float32)
    middles, sizes = (boxes[:, :2] + boxes[:, 2:]) / (2 * CELL), (boxes[:, 2:] - boxes[:, :2]) / CELL
    places = np.minimum(middles.astype(int), CELLS - 1)
    values = np.concatenate([np.ones_like(middles[:, :1]), middles - places, sizes], axis=1)
    cells[places[:, 1], places[:, 0]] = values
    return cells


def eval_metrics_fn():
    return {
        "there": lambda labels, outputs: ((outputs[..., 0] > 0) == (labels[..., 0] > 0)).float().mean((1, 2))
    }
