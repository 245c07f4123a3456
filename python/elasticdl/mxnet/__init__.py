"""MXNet as a framework: what model files import. Importing this package does not import MXNet."""

from elasticdl.worker.hooks import Callback

__all__ = ["Callback"]
