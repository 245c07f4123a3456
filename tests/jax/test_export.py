"""What is written is read by plain Flax, and by the commands that evaluate and predict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl.errors import BadModel
from elasticdl.spec import framework
from elasticdl.worker.contract.trained import GroupState, TrainedModel

from . import FULL, adapter_of, commit, job, made_of, records
from .test_step import Bridged

jax = pytest.importorskip("jax", reason="make setup-jax")
from flax import nnx  # noqa: E402


class Normed(nnx.Module):
    def __init__(self, rngs: Any) -> None:
        self.layers = nnx.List([nnx.Linear(4, 8, rngs=rngs), nnx.BatchNorm(8, rngs=rngs)])
        self.dropout, self.last = nnx.Dropout(0.5, rngs=rngs), nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, found: Any) -> Any:
        for layer in self.layers:
            found = layer(found)
        return self.last(self.dropout(found))


def trained_adapter(user: Any) -> Any:
    made = adapter_of(user)
    for step in (1, 2, 3):
        commit([made], [records(FULL, step), records(3, 9 * step)], step)
    return made


def predict(user: Any, weights: Any, raw: Any) -> Any:
    made: TrainedModel = framework.find("jax").trained(user, job(), None, weights)
    made.prepare(records(FULL))
    return made.predict(made.convert(raw), 0, 0)["prediction"]


def test_the_file_gives_plain_flax_what_the_job_had_and_a_groups_state_makes_the_same(tmp_path: Path) -> None:
    user = made_of(Normed)
    made, path = trained_adapter(user), tmp_path / "m.npz"
    assert made.export(str(path), "npz") == made.digest()
    raw = records(5, 77)
    features, _ = user.feed(raw, "training", None)

    model = Normed(nnx.Rngs(3))
    with np.load(path) as file:
        assert {"layers/0/kernel", "layers/1/mean", "last/bias"} <= set(file.files)
        for keys, variable in nnx.to_flat_state(nnx.state(model, nnx.Not(nnx.RngState))):
            variable.set_value(jax.numpy.array(file["/".join(map(str, keys))]))
    model.eval()
    np.testing.assert_allclose(predict(user, path, raw), model(features), rtol=1e-5, atol=1e-6)

    group = GroupState(tmp_path, made.image())
    framework.find("jax").export_state(user, job(), group, str(tmp_path / "group.npz"), "npz")
    with np.load(path) as ours, np.load(tmp_path / "group.npz") as theirs:
        assert ours.files == theirs.files
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    np.testing.assert_array_equal(predict(user, group, raw), predict(user, path, raw))

    other = made_of(lambda rngs: nnx.Linear(4, 3, rngs=rngs))
    for weights, what in ((path, f"--trained_model: {path}"), (group, str(tmp_path))):
        with pytest.raises(
            BadModel, match=rf"{what} is of another model than that of m.py: .*; give the --model_def"
        ):
            predict(other, weights, raw)
    with pytest.raises(BadModel, match="another model"):
        framework.find("jax").export_state(other, job(), group, str(tmp_path / "x.npz"), "npz")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["group.npz", "m.npz"]


def test_a_linen_module_gets_its_shapes_from_data(tmp_path: Path) -> None:
    user = made_of(Bridged)
    made, path = trained_adapter(user), tmp_path / "m.npz"
    made.export(str(path), "npz")
    group = GroupState(tmp_path, made.image())
    raw = records(5, 77)
    np.testing.assert_array_equal(predict(user, group, raw), predict(user, path, raw))
    with pytest.raises(
        BadModel, match=r"the shapes of a linen module are those of its first batch, .*; call lazy_init"
    ):
        framework.find("jax").export_state(user, job(), group, str(tmp_path / "x.npz"), "npz")
