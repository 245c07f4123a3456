"""States: copied out, put back, compared."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from elasticdl.checkpoint.stateimage import StateImage
from elasticdl.errors import TransferFailed
from elasticdl.keras.adapter import KerasAdapter
from tests.keras.conftest import records
from tests.keras.test_step import CONVOLUTION, DROPPING, NORMALIZED, train

Make = Callable[..., KerasAdapter]

ADAM = "\ndef optimizer():\n    return keras.optimizers.Adam(0.01, use_ema=True)\n"


@pytest.mark.parametrize("source", [CONVOLUTION + ADAM, NORMALIZED + ADAM, DROPPING])
def test_a_healed_member_goes_on_like_its_donor(adapter: Make, source: str) -> None:
    donor, joiner = adapter(source), adapter(source)
    assert donor.digest() == joiner.digest()
    train([donor], [records(8), records(3)], steps=3)
    assert donor.digest() != joiner.digest()
    image = donor.image()
    wire = StateImage(
        json.loads(json.dumps(image.meta)), np.frombuffer(b"-" + image.body.tobytes(), np.uint8)[1:]
    )
    joiner.load(wire)
    assert donor.digest() == joiner.digest()
    assert int(joiner.optimizer.iterations) == 3
    train([donor, joiner], [records(8, 4), records(8, 11)], steps=2)
    assert donor.digest() == joiner.digest()


def test_an_image_is_a_copy(adapter: Make) -> None:
    made = adapter(CONVOLUTION)
    image, digest = made.image(), made.digest()
    body = image.body.copy()
    train([made], [records(8)])
    np.testing.assert_array_equal(image.body, body)
    made.load(image)
    assert made.digest() == digest


def test_preparing_has_no_lasting_effect(adapter: Make) -> None:
    one, other = adapter(DROPPING, sample=records(8)), adapter(DROPPING, sample=records(3, 50))
    assert one.digest() == other.digest()
    assert int(one.optimizer.iterations) == 0


def test_states_of_other_models_are_refused(adapter: Make) -> None:
    made = adapter(CONVOLUTION)
    digest = made.digest()
    with pytest.raises(
        TransferFailed, match=r"does not fit this model and its optimizer: expected .*, received "
    ):
        made.load(adapter().image())
    image = made.image()
    with pytest.raises(TransferFailed, match=f"the state has {image.body.nbytes - 4} bytes"):
        made.load(StateImage(image.meta, image.body[:-4]))
    arrays = [dict(array) for array in image.meta["arrays"]]
    arrays[0]["shape"] = [1, 2]
    with pytest.raises(
        TransferFailed,
        match=r"expected conv1d/kernel float32 \[2, 1, 5\], received conv1d/kernel float32 \[1, 2\]",
    ):
        made.load(StateImage({**image.meta, "arrays": arrays}, image.body))
    with pytest.raises(TransferFailed, match="the state has no arrays"):
        made.load(StateImage({}, image.body))
    assert made.digest() == digest


def test_one_bit_changes_the_digest(adapter: Make) -> None:
    made = adapter()
    image, digest = made.image(), made.digest()
    image.body[0] ^= 1
    made.load(image)
    assert made.digest() != digest


def test_types_of_half_width_travel(adapter: Make) -> None:
    source = """
    def custom_model():
        inputs = keras.Input((3,))
        return keras.Model(inputs, keras.layers.Dense(1, dtype="bfloat16")(inputs))
    def loss(labels, predictions):
        return tf.reduce_mean(tf.square(labels - tf.cast(predictions, tf.float32)))
    """
    one, other = adapter(source), adapter(source)
    train([one], [records(8)], steps=2)
    assert one.digest() != other.digest()
    other.load(one.image())
    assert one.digest() == other.digest()
