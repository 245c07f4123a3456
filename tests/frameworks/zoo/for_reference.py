import numpy as np

from elasticdl.reference import Adam, Callback, EmbeddingSum, Softmax

WRITTEN = []


def custom_model():
    return Softmax(4, 3, dropout=0.3)


def lookups():
    return EmbeddingSum(30)


def optimizer():
    return Adam(0.05)


def feed(records, mode, metadata):
    rows = np.asarray(records, np.float32)
    return rows[:, :4], rows[:, 4].astype(np.int64)


def feed_ids(records, mode, metadata):
    rows = np.asarray(records, np.float32)
    return rows[:, :2].astype(np.int64), (rows[:, 4] > 0).astype(np.float32)


class Written(Callback):
    def on_train_end(self, step, writes):
        WRITTEN.append((step, writes))


def eval_metrics_fn():
    def accuracy(labels, outputs):
        return labels == (outputs.argmax(axis=1) if outputs.ndim > 1 else outputs > 0.5)

    return {"accuracy": accuracy, "right": lambda labels, outputs: accuracy(labels, outputs).mean()}


def callbacks():
    return [Written()]
