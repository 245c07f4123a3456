"""Statistics of columns for a model file: from environment variables, or from what `elasticdl.analyze` has written.

`_NAME_min` and the like, of the earlier generation, come first; else `ELASTICDL_STATISTICS` names a JSON file of `analyze`, or has its
text. A column that neither knows has the default. Nothing here needs Keras.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from elasticdl.errors import BadSetting

VARIABLE = "ELASTICDL_STATISTICS"
_BUCKETS = 32
T = TypeVar("T")


def get_min(feature: str, default: T) -> float | T:
    """Return the least number of a column."""
    return _number(feature, "min", default, lambda numbers: numbers["low"])


def get_max(feature: str, default: T) -> float | T:
    """Return the greatest number of a column."""
    return _number(feature, "max", default, lambda numbers: numbers["high"])


def get_avg(feature: str, default: T) -> float | T:
    """Return the mean of a column."""
    return _number(feature, "avg", default, lambda numbers: numbers["moments"]["mean"])


def get_stddev(feature: str, default: T) -> float | T:
    """Return the standard deviation of a column, of the population."""
    return _number(feature, "stddev", default, _deviation)


def get_bucket_boundaries(feature: str, default: T) -> list[float] | T:
    """Return bounds of buckets, ascending: with about as many rows in each of 32."""
    given = os.environ.get(_name(feature, "boundaries"))
    if given is not None:
        return sorted({_float(feature, "boundaries", one) for one in given.split(",")})
    points = (_column(feature).get("numbers") or {}).get("quantiles")
    if not points:
        return default
    chosen = {points[round(place * (len(points) - 1) / _BUCKETS)] for place in range(1, _BUCKETS)}
    return sorted(chosen - {points[0]})


def get_distinct_count(feature: str, default: T) -> int | T:
    """Return how many different values a column has."""
    given = os.environ.get(_name(feature, "distinct_count"))
    if given is not None:
        return int(_float(feature, "distinct_count", given))
    values = _column(feature).get("values")
    return default if values is None else int(values["distinct"])


def get_vocabulary(feature: str, default: T) -> str | list[str] | T:
    """Return the values of a column of text, the most frequent first; of a variable the path of a file that has them."""
    given = os.environ.get(_name(feature, "vocab"))
    if given is not None:
        return given
    values = _column(feature).get("values")
    return default if values is None else [str(value) for value, _ in values["counts"]]


def _number(feature: str, what: str, default: T, of: Any) -> float | T:
    given = os.environ.get(_name(feature, what))
    if given is not None:
        return _float(feature, what, given)
    numbers = _column(feature).get("numbers")
    return default if numbers is None or not numbers["moments"]["count"] else float(of(numbers))


def _deviation(numbers: Mapping[str, Any]) -> float:
    moments = numbers["moments"]
    return math.sqrt(max(0.0, moments["squares"] / moments["count"]))


def _name(feature: str, what: str) -> str:
    return f"_{feature}_{what}"


def _float(feature: str, what: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadSetting(
            f"the environment variable {_name(feature, what)} is {text!r}; expected a number"
        ) from None


def _column(feature: str) -> Mapping[str, Any]:
    given = os.environ.get(VARIABLE)
    found: Mapping[str, Any] = {} if given is None else _statistics(given).get(feature, {})
    return found


@lru_cache(maxsize=1)
def _statistics(given: str) -> Mapping[str, Any]:
    """Return the columns that a JSON text has, or a file of it. Raises BadSetting."""
    try:
        text = given if given.lstrip().startswith("{") else Path(given).read_text()
        columns: Mapping[str, Any] = json.loads(text)["columns"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadSetting(
            f"the environment variable {VARIABLE} names no statistics: {error}; write them with elasticdl.analyze(...).to_json()"
        ) from None
    return columns


__all__: Sequence[str] = [
    "get_avg",
    "get_bucket_boundaries",
    "get_distinct_count",
    "get_max",
    "get_min",
    "get_stddev",
    "get_vocabulary",
]
