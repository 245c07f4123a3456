"""A framework that is no part of elasticdl: a model is a first value and a function that returns loss and gradient of a batch."""

import hashlib
import json
import time
from pathlib import Path

import numpy as np

from elasticdl.checkpoint.stateimage import StateImage
from elasticdl.errors import BadModel, TransferFailed
from elasticdl.spec.framework import OutputFormat, Symbol
from elasticdl.worker.contract.allreduce import ChunkResult
from elasticdl.worker.modelfile import load


class Adapter:
    """One worker's value and sum of gradients."""

    dtype = np.float64
    writes = False

    def __init__(self, user, spec, metadata):
        self._user = user

    def prepare(self, sample):
        first, self._function = self._user.model(**self._user.params)
        self._rate = self._user.optimizer()
        self._value = np.array(first, np.float64)
        self._sum = np.zeros_like(self._value)
        self.size = self.gradient_size = self._value.size
        self.compute(self.convert(sample), 0, 0)
        self.zero()

    def convert(self, records):
        return self._user.feed(records, "training", None)

    def zero(self):
        self._sum[:] = 0

    def compute(self, batch, step, lane):
        try:
            loss, gradient = self._function(self._value, *batch)
        except Exception as error:
            raise BadModel(f"{self._user.path}: {error}") from error
        self._sum += gradient
        return ChunkResult(float(len(batch[0])), float(loss))

    def accumulator(self):
        return self._sum.data

    def apply(self, result, examples):
        if examples:
            self._value -= self._rate * result / examples
        self.zero()

    def logs(self, logs):
        time.sleep(0.02)  # the pace of a larger model

    def end_training(self, step):
        pass

    def image(self):
        return StateImage({"size": self.size}, self._value.copy().view(np.uint8))

    def describe_image(self):
        return {"size": self.size}, self._value.nbytes

    def image_part(self, first, end):
        return self._value.view(np.uint8)[first:end].copy()

    def load(self, image):
        if image.meta.get("size") != self.size or image.body.nbytes != self._value.nbytes:
            raise TransferFailed("the state is of another model")
        self._value[:] = np.frombuffer(image.body.tobytes(), np.float64)

    def digest(self):
        return hashlib.blake2b(self._value.tobytes(), digest_size=16).hexdigest()

    def export(self, path, kind, tables=None):
        if path:
            Path(path).write_text(json.dumps(self._value.tolist()))
        return self.digest()


class PlainSums:
    """The framework."""

    name = "plainsums"
    imports = ("plainsums",)
    symbols = (Symbol("feed", ("records", "mode", "metadata")), Symbol("optimizer"))
    formats = (OutputFormat("json", ".json"),)
    has_ps = False

    def check(self, spec, defined):
        pass

    def import_library(self, log=None):
        pass

    def start(self, threads):
        pass

    def unused_gpus(self, reserved):
        return ""

    def load(self, spec):
        return load(spec, self.symbols)

    def adapter(self, user, spec, metadata, process):
        return Adapter(user, spec, metadata)


FRAMEWORK = PlainSums()
