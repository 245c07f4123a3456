"""The crosses of the wide part of a wide & deep model: ids of combinations of a row's columns."""

from functools import reduce

import keras


def cross(ids, crosses, count):
    """Return the ids [n, crosses] of combinations of columns of `ids`, below `count`; each of the crosses has the places of its columns."""
    layer = keras.layers.HashedCrossing(count)
    return keras.layers.Concatenate()(
        [reduce(lambda *both: layer(both), [ids[:, one : one + 1] for one in places]) for places in crosses]
    )
