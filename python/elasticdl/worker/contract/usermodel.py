"""The symbols of a model file, as a worker hands them to the framework's adapter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class UserModel:
    """What a model file defines. What the functions take and return is the framework's affair.

    Attributes:
        path: the file.
        model: the model function.
        params: its keyword arguments.
        loss: None with frameworks whose models have it.
        optimizer: returns an optimizer.
        feed: turns raw records into what the model takes.
        callbacks: returns callbacks, if defined.
        custom_data_reader: returns a reader, if defined.
        eval_metrics_fn: returns the metrics of an evaluation, if defined.
        prediction_outputs_processor: class of what gets the predictions, if defined.
        serving_model: returns what is written in place of a trained model, if defined.
        lr_scheduler: returns a learning-rate scheduler of an optimizer, if defined.
    """

    path: Path
    model: Callable[..., Any]
    params: Mapping[str, Any]
    loss: Any
    optimizer: Callable[..., Any]
    feed: Callable[..., Any]
    callbacks: Callable[[], Any] | None
    custom_data_reader: Callable[..., Any] | None
    eval_metrics_fn: Callable[[], Any] | None = None
    prediction_outputs_processor: Callable[[], Any] | None = None
    lr_scheduler: Callable[..., Any] | None = None
    serving_model: Callable[[Any], Any] | None = None
