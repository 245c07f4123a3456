import numpy as np
import torch

from elasticdl.torch import Callback

WRITTEN = []


def custom_model():
    return torch.nn.Sequential(
        torch.nn.Linear(4, 8),
        torch.nn.BatchNorm1d(8),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.3),
        torch.nn.Linear(8, 3),
    )


def loss(labels, outputs):
    return torch.nn.functional.cross_entropy(outputs, labels)


def optimizer(parameters):
    return torch.optim.Adam(parameters, 0.05)


def feed(records, mode, metadata):
    rows = np.asarray(records, np.float32)
    return torch.from_numpy(rows[:, :4]), torch.from_numpy(rows[:, 4].astype(np.int64))


class Written(Callback):
    def on_train_end(self, step, writes):
        WRITTEN.append((step, writes))


def eval_metrics_fn():
    def accuracy(labels, outputs):
        return labels == outputs.argmax(dim=1)

    return {"accuracy": accuracy, "right": lambda labels, outputs: accuracy(labels, outputs).float().mean()}


def callbacks():
    return [Written()]
