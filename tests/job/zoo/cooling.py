"""The score of `weighed.py` with callbacks: the learning rate follows from all metrics so far, and the second epoch is the last."""

from weighed import custom_model, eval_metrics_fn, feed, optimizer

from elasticdl.reference import Callback

__all__ = ["custom_model", "eval_metrics_fn", "feed", "optimizer"]

LAST_EPOCH = 1


class Cooling(Callback):
    def on_evaluated(self, logs):
        self.optimizer.learning_rate *= 1.0 - 0.5 * logs.metrics["val_loss"]


class Enough(Callback):
    def on_epoch_end(self, logs):
        return logs.epoch == LAST_EPOCH


def callbacks():
    return [Cooling(), Enough()]
