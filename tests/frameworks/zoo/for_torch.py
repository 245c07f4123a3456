import numpy as np
import torch

from elasticdl.torch import Callback, Embedding

WRITTEN = []


def custom_model():
    return torch.nn.Sequential(
        torch.nn.Linear(4, 8),
        torch.nn.BatchNorm1d(8),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.3),
        torch.nn.Linear(8, 3),
    )


class Lookups(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embeddings = Embedding(4, 30, feature="ids")
        self.dense = torch.nn.Linear(8, 3)

    def forward(self, ids):
        return self.dense(self.embeddings(ids).flatten(1))


def lookups():
    return Lookups()


def loss(labels, outputs):
    return torch.nn.functional.cross_entropy(outputs, labels)


def optimizer(parameters):
    return torch.optim.Adam(parameters, 0.05)


def feed(records, mode, metadata):
    rows = np.asarray(records, np.float32)
    return torch.from_numpy(rows[:, :4]), torch.from_numpy(rows[:, 4].astype(np.int64))


def feed_ids(records, mode, metadata):
    rows = np.asarray(records, np.float32).astype(np.int64)
    return {"ids": torch.from_numpy(rows[:, :2])}, torch.from_numpy(rows[:, 4])


class Written(Callback):
    def on_train_end(self, step, writes):
        WRITTEN.append((step, writes))


def eval_metrics_fn():
    def accuracy(labels, outputs):
        return labels == outputs.argmax(dim=1)

    return {"accuracy": accuracy, "right": lambda labels, outputs: accuracy(labels, outputs).float().mean()}


def callbacks():
    return [Written()]
