"""What a column becomes if nothing else is asked for: the first rule that fits its type and statistics, with the reason.

Pure. What is missing is an empty text, or no number: categories have a row for it and one for what training never saw, and numbers are
their mean, with a flag if training had missing ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from elasticdl.spec.databases import quoted
from elasticdl.tabular.features import IdFeature, IdSource, Input, NumberFeature, Reason, Transform
from elasticdl.tabular.kinds import Kind
from elasticdl.tabular.spread import Moments, Values
from elasticdl.tabular.statistics import VOCABULARY, Column

FEW = 32
"""Integers of at most so many values are categories."""
BUCKETS = 32
"""Of numbers, besides the numbers themselves, where there are rows enough."""
_ROWS_OF_A_BUCKET = 100
"""At least: what fewer rows say of a bucket is chance, and is learnt all the same."""
LONGEST = 100
"""Elements of a list, or words of a text, that count."""
_SKEWED = 100
"""A greatest value that is so many times the mean gets a logarithm."""
_SHORT = 30
"""Characters up to which a text with many values is a name or a key."""
_WORDS = 3.0
_CHARACTERS = 12.0
"""Characters on average, from which on a text of ideographs is more than a name."""
_MOST_HASHED = 1 << 24
BLURRED = "integers beyond 2⁵³, of which floats are the same for neighbours"


@dataclass(frozen=True, slots=True)
class Became:
    """What a column became.

    Attributes:
        inputs: none if it is left out.
        reason: why.
    """

    reason: Reason
    inputs: tuple[Input, ...] = ()
    numbers: tuple[NumberFeature, ...] = ()
    ids: tuple[IdFeature, ...] = ()


def width_of(size: int) -> int:
    """Return the width of an embedding of so many ids."""
    return min(32, math.ceil(1.6 * math.pow(size, 0.56)))


def input_name(column: str) -> str:
    """Return the name of a column's input in Keras, where a slash parts names of scopes."""
    return column.replace("/", "_")


def becomes(name: str, kind: Kind, inner: Kind | None, column: Column) -> Became:
    """Return what a column becomes; `inner`: the kind of a list's elements."""
    if kind is Kind.LIST:
        assert inner is not None, "lists have elements"
        return _list(name, inner, column)
    if column.nulls == column.rows:
        return Became(Reason(name, "left out", "it has no value in any row"))
    if kind is Kind.TEXT:
        return _text(name, column)
    if kind in (Kind.DATE, Kind.TIMESTAMP):
        return _time(name, kind, column)
    if kind is Kind.BOOLEAN:
        if _is_constant(column):
            return _constant(name)
        plain = NumberFeature(name, fill=_numbers(column).mean)
        return Became(
            Reason(name, "0 or 1", "it is boolean"), (plain_input(name),), (plain, *missing(name, column))
        )
    return _number(name, kind, column)


def plain_input(name: str, is_text: bool = False, length: int = 0) -> Input:
    """Return a column's input."""
    return Input(name, input_name(name), is_text, length)


def missing(name: str, column: Column) -> tuple[NumberFeature, ...]:
    """Return the flag of a column in which values are missing."""
    return (NumberFeature(name, Transform.MISSING),) if column.nulls else ()


def standardised(name: str, moments: Moments, transform: Transform = Transform.NONE) -> NumberFeature:
    """Return a number less its mean, by its deviation; missing ones are the mean."""
    return NumberFeature(name, transform, moments.mean, moments.deviation or 1.0)


def buckets_of(rows: int) -> int:
    """Return how many buckets numbers of so many rows have besides themselves; 0: none, as one bucket says nothing."""
    many = min(BUCKETS, rows // _ROWS_OF_A_BUCKET)
    return many if many > 1 else 0


def bounds_of(column: Column, buckets: int) -> tuple[float, ...]:
    """Return the bounds of buckets with about as many rows each; fewer where a value is frequent."""
    assert column.numbers is not None, "a column of numbers"
    points = column.numbers.quantiles
    if not points:
        return ()
    chosen = {points[round(place * (len(points) - 1) / buckets)] for place in range(1, buckets)}
    return tuple(sorted(chosen - {points[0]}))


def buckets(name: str, bounds: Sequence[float], width: int = 0) -> IdFeature:
    """Return the category of the bucket that a number is in."""
    size = len(bounds) + 2
    return IdFeature(
        f"{name} in buckets", (name,), IdSource.BUCKETS, size, width or width_of(size), tuple(bounds)
    )


def looked_up(name: str, source: IdSource, values: Sequence[str | int | float], length: int = 0) -> IdFeature:
    """Return the category of a value of a vocabulary, or of one that is not in it."""
    size = len(values) + 2
    return IdFeature(name, (name,), source, size, width_of(size), tuple(values), length)


def hashed(name: str, size: int, length: int = 0) -> IdFeature:
    """Return the category of a value's hash."""
    return IdFeature(name, (name,), IdSource.HASH, size, width_of(size), length=length)


def power_of_two(count: int) -> int:
    """Return the next power of two, at most 2²⁴."""
    return int(min(_MOST_HASHED, 1 << max(0, count - 1).bit_length()))


def instead_of_blurred(name: str) -> str:
    """Say what to select in place of a column of integers beyond 2⁵³."""
    return f"select categories of it, CAST({quoted(name)} AS VARCHAR), or a number, CAST({quoted(name)} AS DOUBLE)"


def integers(values: Values) -> tuple[int, ...]:
    """Return the values of a column of integers, sorted."""
    return tuple(sorted(int(value) for value, _ in values.counts))


# ------------------------------------------------------------------ numbers


def _numbers(column: Column) -> Moments:
    assert column.numbers is not None, "a column of numbers"
    return column.numbers.moments


def _is_constant(column: Column) -> bool:
    """Tell whether all rows have the same, so that nothing can be learnt of it."""
    numbers = column.numbers
    return numbers is not None and numbers.low == numbers.high and not column.nulls


def _constant(name: str) -> Became:
    return Became(Reason(name, "left out", "it has the same value in all rows"))


def _number(name: str, kind: Kind, column: Column) -> Became:
    numbers, values = column.numbers, column.values
    assert numbers is not None, "a column of numbers"
    if kind is Kind.INTEGER and column.is_blurred:
        return Became(Reason(name, "left out", f"it has {BLURRED}; {instead_of_blurred(name)}"))
    if _is_constant(column):
        return _constant(name)
    if kind is Kind.INTEGER and values is not None and values.is_complete and values.distinct <= FEW:
        feature = looked_up(name, IdSource.INTEGERS, integers(values))
        why = f"integers of {values.distinct} values, {FEW} or fewer"
        return Became(Reason(name, "category", why), (plain_input(name),), ids=(feature,))
    features = [standardised(name, numbers.moments)]
    parts, why = ["standardised"], "integers of many values" if kind is Kind.INTEGER else "numbers"
    if numbers.low >= 0 and numbers.high > _SKEWED * numbers.moments.mean and numbers.logs.deviation:
        features.append(standardised(name, numbers.logs, Transform.LOG))
        parts.append("logarithm")
        why += f"; the greatest is {numbers.high / numbers.moments.mean:,.0f} times the mean"
    bounds = bounds_of(column, buckets_of(column.rows))
    ids = (buckets(name, bounds),) if bounds else ()
    if ids:
        parts.append(f"{len(bounds) + 1} buckets")
    flags = missing(name, column)
    if flags:
        parts.append("flag")
        why += f"; {column.nulls:,} of {column.rows:,} are missing"
    return Became(Reason(name, " + ".join(parts), why), (plain_input(name),), (*features, *flags), ids)


def _time(name: str, kind: Kind, column: Column) -> Became:
    numbers = column.numbers
    assert numbers is not None, "a column of numbers"
    if _is_constant(column):
        return _constant(name)
    features = (
        standardised(name, numbers.moments),
        NumberFeature(name, Transform.SINE),
        NumberFeature(name, Transform.COSINE),
        *missing(name, column),
    )
    of_day = [(IdSource.HOUR, 24)] if kind is Kind.TIMESTAMP else []
    ids = tuple(
        IdFeature(f"{name} {source}", (name,), source, size + 1, width_of(size + 1))
        for source, size in (*of_day, (IdSource.WEEKDAY, 7))
    )
    what = (
        "standardised + hour + weekday + time of the year"
        if of_day
        else "standardised + weekday + time of the year"
    )
    return Became(Reason(name, what, f"a {kind}, as seconds since 1970"), (plain_input(name),), features, ids)


# ------------------------------------------------------------------ text


def _text(name: str, column: Column) -> Became:
    texts, values = column.texts, column.values
    assert texts is not None, "a column of text"
    assert values is not None, "a column of text"
    there = column.rows - column.nulls
    length, words = texts.characters / there, texts.words / there
    if values.distinct > column.rows / 2 and length <= _SHORT:
        why = f"{values.distinct:,} different texts in {column.rows:,} rows, of {length:.0f} characters: names or keys"
        return Became(Reason(name, "left out", why))
    if (feature := words_of(name, column)) is not None:
        what = "characters" if feature.source is IdSource.CHARACTERS else "words"
        of = f"{length:.0f} characters" if what == "characters" else f"{words:.1f} words"
        return Became(
            Reason(name, f"mean of embeddings of {what}", f"text of {of} on average"),
            (plain_input(name, is_text=True),),
            ids=(feature,),
        )
    given = (plain_input(name, is_text=True),)
    if values.distinct <= VOCABULARY:
        seen = vocabulary(values)
        if not seen:
            return Became(Reason(name, "left out", "no value is there twice"))
        if values.distinct == 1 and not column.nulls:
            return _constant(name)
        rare = values.distinct - len(seen)
        why = f"text of {values.distinct:,} values" + (f", of which {rare:,} are there once" if rare else "")
        return Became(Reason(name, "category", why), given, ids=(looked_up(name, IdSource.TEXTS, seen),))
    size = power_of_two(values.distinct)
    why = f"text of about {values.distinct:,} values, more than {VOCABULARY:,}"
    return Became(Reason(name, f"hashed to {size:,}", why), given, ids=(hashed(name, size),))


def vocabulary(values: Values, least: int = 2) -> tuple[str, ...]:
    """Return the texts that are there as often, sorted."""
    return tuple(sorted(str(value) for value, count in values.counts if count >= least and value != ""))


def words_of(name: str, column: Column, asked: bool = False) -> IdFeature | None:
    """Return the words or characters of a text as ids; None if it has few, unless that is asked for."""
    texts = column.texts
    assert texts is not None, "a column of text"
    there = max(1, column.rows - column.nulls)
    if column.words is None:
        return None
    has_ideographs = 2 * texts.ideographs > there
    enough = texts.characters >= _CHARACTERS * there if has_ideographs else texts.words >= _WORDS * there
    known = vocabulary_of_words(column.words)
    if not known or not (enough or asked):
        return None
    source = IdSource.CHARACTERS if has_ideographs else IdSource.WORDS
    length = max(1, min(LONGEST, texts.longest))
    return replace(looked_up(name, source, known, length), name=f"{name} {source}")


def vocabulary_of_words(words: Values) -> tuple[str, ...]:
    """Return the words that are there twice, the most frequent first, as `keras.layers.TextVectorization` has them."""
    return tuple(str(word) for word, count in words.counts if count >= 2)


# ------------------------------------------------------------------ lists


def _list(name: str, inner: Kind, column: Column) -> Became:
    low, high = column.lengths or (0, 0)
    elements = column.elements
    if not high or elements is None or elements.rows == elements.nulls:
        return Became(Reason(name, "left out", "its lists are empty"))
    length = min(high, LONGEST)
    if inner is not Kind.TEXT and low == high:
        assert elements.numbers is not None, "numbers"
        if _is_constant(elements):
            return _constant(name)
        feature = standardised(name, elements.numbers.moments)
        why = f"lists of {high} numbers each"
        return Became(Reason(name, "vector", why), (Input(name, input_name(name), False, high),), (feature,))
    ids = listed(name, inner, elements, length)
    if ids is None:
        return Became(Reason(name, "left out", "no value is there twice"))
    why = f"lists of {low} to {high} values" + (f", the first {length} count" if high > length else "")
    given = Input(name, input_name(name), inner is Kind.TEXT, length)
    return Became(Reason(name, "mean of embeddings", why), (given,), ids=(ids,))


def listed(name: str, inner: Kind, elements: Column, length: int) -> IdFeature | None:
    """Return the ids of a list's elements; None if no value is there twice."""
    values = elements.values
    if inner is Kind.TEXT:
        assert values is not None, "texts"
        if values.distinct > VOCABULARY:
            return hashed(name, power_of_two(values.distinct), length)
        seen = vocabulary(values)
        return looked_up(name, IdSource.TEXTS, seen, length) if seen else None
    if inner is not Kind.NUMBER:
        if values is not None and values.is_complete and not elements.is_blurred:
            return looked_up(name, IdSource.INTEGERS, integers(values), length)
        assert elements.numbers is not None, "numbers"
        return hashed(name, power_of_two(max(1, elements.numbers.moments.count)), length)
    bounds = bounds_of(elements, max(2, buckets_of(elements.rows)))  # of a list nothing else is used
    return replace(buckets(name, bounds), length=length) if bounds else None


def strictly_rising(bounds: Sequence[float]) -> bool:
    """Tell whether bounds are in order, none twice."""
    return all(one < other for one, other in pairwise(bounds))
