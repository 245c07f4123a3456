"""Keras model files on JAX and PyTorch. A process has one of them, so tests run in processes of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests import jax as jax_tests
from tests import torch as torch_tests

NEEDS: Mapping[str, Callable[[], None]] = {"jax": jax_tests.need_jax, "torch": torch_tests.need_torch}
"""Skips a test where the library is missing, by the name of the backend."""
