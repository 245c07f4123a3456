"""Compiled models: a chunk has the same bits in every worker, and what is written is the plain model's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl.spec import framework

from . import FULL, LIFE, adapter_of, job, made_of, records

torch = pytest.importorskip("torch", reason="make setup-torch")


def dense() -> Any:
    return torch.nn.Sequential(
        torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Dropout(0.3), torch.nn.Linear(16, 3)
    )


def test_code_is_made_for_each_number_of_examples_whichever_came_before() -> None:
    """Code for any number would have other bits, and be there in those workers only that have seen two: a backend sees which it is."""
    kinds: list[set[type]] = []

    def backend(graph: Any, inputs: Any) -> Any:
        kinds.append({type(one) for one in inputs})
        return graph.forward

    user, plain = made_of(lambda: torch.compile(dense(), backend=backend)), adapter_of(made_of(dense))
    chunks = [records(FULL, 1), records(5, 2), records(3, 3)]
    for order in ([0, 1, 2, 0], [2, 1, 0]):
        torch._dynamo.reset()  # as in a process of its own
        kinds.clear()
        made = framework.find("torch").adapter(user, job(), None, LIFE)
        made.prepare(chunks[order[0]])
        for slot in order:
            for one in (made, plain):
                one.zero()
                one.compute(one.convert(chunks[slot]), 1, slot)
            assert bytes(made.accumulator()) == bytes(plain.accumulator())
        assert kinds == [{torch.nn.Parameter, torch.Tensor}] * len(chunks), (
            "a graph for each, and none has a number as an input"
        )


def test_what_is_written_is_the_plain_model(tmp_path: Path) -> None:
    user, plain = made_of(lambda: torch.compile(dense(), backend="eager")), made_of(dense)
    made, other = adapter_of(user), adapter_of(plain)
    assert made.digest() == other.digest()
    for kind, name in (("state_dict", "m.pt"), ("exported", "m.pt2")):
        made.export(str(tmp_path / name), kind)
    model = dense().eval()
    model.load_state_dict(torch.load(tmp_path / "m.pt", weights_only=True))
    features, _ = user.feed(records(5), "training", None)
    torch.testing.assert_close(torch.export.load(tmp_path / "m.pt2").module()(features), model(features))
    other.load(made.image())
    trained = framework.find("torch").trained(user, job(), None, tmp_path / "m.pt")
    trained.prepare(records(FULL))
    given = trained.predict(trained.convert(records(5)), 0, 0)["prediction"]
    np.testing.assert_allclose(given, model(features).detach().numpy(), rtol=1e-6)
