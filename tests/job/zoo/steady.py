"""The flowers of `judged`, with steps of as many seconds as the environment variable STEP says."""

import os
import time

from judged import Told, custom_model, eval_metrics_fn, feed, optimizer

from elasticdl.reference import Callback

__all__ = ["callbacks", "custom_model", "eval_metrics_fn", "feed", "optimizer"]


class Wait(Callback):
    def on_step_end(self, logs):
        time.sleep(float(os.environ["STEP"]))


def callbacks():
    return [Told(), Wait()]
