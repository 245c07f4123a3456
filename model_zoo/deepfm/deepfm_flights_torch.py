"""DeepFM on the flights of New York in PyTorch: does a flight arrive more than 15 minutes late?

A factorization machine and a deep network over the same embeddings (Guo and others, "DeepFM: a factorization-machine based neural network
for CTR prediction", 2017).
"""

from functools import partial

import torch
from torch import nn

from elasticdl.torch import Embedding
from flights.fields import FIELDS, IDS, SCALES
from flights.torch_columns import feed as feed  # a model file's symbol


class DeepFM(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        begin = partial(nn.init.uniform_, a=-0.05, b=0.05)
        self.vectors = Embedding(width, IDS, feature="ids", initializer=begin)
        self.weights = Embedding(1, IDS, feature="ids", initializer=nn.init.zeros_, combiner="sum")
        self.deep = nn.Sequential(
            nn.Linear(FIELDS * width + len(SCALES), units),
            nn.ReLU(),
            nn.Linear(units, units // 2),
            nn.ReLU(),
        )
        self.score = nn.Linear(1 + width + units // 2, 1)

    def forward(self, ids, numbers):
        vectors = self.vectors(ids)
        # Half of (the square of the sum, less the sum of the squares) is the sum over all pairs.
        pairs = 0.5 * (vectors.sum(1).square() - vectors.square().sum(1))
        deep = self.deep(torch.cat([vectors.flatten(1), numbers], 1))
        return self.score(torch.cat([self.weights(ids), pairs, deep], 1)).squeeze(1)


def custom_model(width=16, units=64):
    return DeepFM(width, units)


def loss(labels, outputs):
    return nn.functional.binary_cross_entropy_with_logits(outputs, labels)


def optimizer(parameters, lr=0.02):
    return torch.optim.Adagrad(parameters, lr, initial_accumulator_value=0.1)


def eval_metrics_fn():
    return {"accuracy": lambda labels, outputs: (outputs > 0) == (labels > 0.5)}
