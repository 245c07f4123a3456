"""What is written is read by plain PyTorch, and by the commands that evaluate and predict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl.errors import BadModel
from elasticdl.spec import framework
from elasticdl.worker.contract.trained import GroupState, TrainedModel

from . import FULL, adapter_of, commit, job, made_of, records

torch = pytest.importorskip("torch", reason="make setup-torch")


def normed() -> Any:
    return torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3)
    )


def lazy() -> Any:
    return torch.nn.Sequential(
        torch.nn.LazyLinear(8), torch.nn.LazyBatchNorm1d(), torch.nn.ReLU(), torch.nn.LazyLinear(3)
    )


def trained_adapter(user: Any) -> Any:
    made = adapter_of(user)
    for step in (1, 2, 3):
        commit([made], [records(FULL, step), records(3, 9 * step)], step)
    return made


def predict(user: Any, weights: Any, raw: Any) -> Any:
    made: TrainedModel = framework.find("torch").trained(user, job(), None, weights)
    made.prepare(records(FULL))
    return made.predict(made.convert(raw), 0, 0)["prediction"]


@pytest.mark.parametrize("model", [normed, lazy])
def test_both_files_give_plain_pytorch_what_the_job_had(model: Any, tmp_path: Path) -> None:
    user = made_of(model)
    made = trained_adapter(user)
    state, program = tmp_path / "m.pt", tmp_path / "m.pt2"
    digest = made.digest()
    assert made.export(str(state), "state_dict") == made.export(str(program), "exported") == digest
    raw = records(5, 77)
    features, _ = user.feed(raw, "training", None)
    plain = user.model().eval()
    plain.load_state_dict(torch.load(state, weights_only=True))
    expected = plain(features)
    assert torch.equal(made.model.eval()(features), expected)
    # of any number of examples
    torch.testing.assert_close(torch.export.load(program).module()(features), expected)
    for weights in (state, program):
        np.testing.assert_array_equal(predict(user, weights, raw), expected.detach().numpy())


@pytest.mark.parametrize("model", [normed, lazy])
def test_a_groups_state_is_written_without_data_and_predicts(model: Any, tmp_path: Path) -> None:
    user = made_of(model)
    made = trained_adapter(user)
    group = GroupState(tmp_path, made.image())
    found = framework.find("torch")
    found.export_state(user, job(), group, str(tmp_path / "m.pt"), "state_dict")
    made.export(str(tmp_path / "job.pt"), "state_dict")
    ours, theirs = (torch.load(tmp_path / name, weights_only=True) for name in ("m.pt", "job.pt"))
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    np.testing.assert_array_equal(
        predict(user, group, records(5, 77)), predict(user, tmp_path / "job.pt", records(5, 77))
    )
    with pytest.raises(BadModel, match="there is no data here; use --output_format=state_dict"):
        found.export_state(user, job(), group, str(tmp_path / "m.pt2"), "exported")
    with pytest.raises(BadModel, match=r"is of another model than that of m.py: .*; give the --model_def"):
        found.export_state(
            made_of(lambda: torch.nn.Linear(4, 3)), job(), group, str(tmp_path / "x.pt"), "state_dict"
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.pt", "m.pt"]


def test_a_model_that_can_not_be_exported_says_so_and_leaves_what_was_there(tmp_path: Path) -> None:
    class Choosing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = torch.nn.Linear(4, 3)

        def forward(self, rows: Any) -> Any:
            return self.last(rows) if rows.sum() > 0 else -self.last(rows)

    made, target = adapter_of(made_of(Choosing)), tmp_path / "m.pt2"
    target.write_bytes(b"earlier")
    with pytest.raises(
        BadModel, match=r"m.py: torch.export can't take the model: .*; use --output_format=state_dict"
    ):
        made.export(str(target), "exported")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"earlier"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"no file of PyTorch", "m.pt can't be read as what --output_format=state_dict or exported writes: "),
        (b"", "m.pt can't be read as .*: EOFError"),
        ([1, 2], "m.pt is of another model than that of m.py: .*it has a list"),
        ({"weight": None}, "m.pt is of another model than that of m.py: .*; give the --model_def"),
    ],
)
def test_a_file_that_is_no_state_of_the_model_is_refused(content: Any, said: str, tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    with pytest.raises(BadModel, match=f"--trained_model: .*{said}"):
        predict(made_of(normed), path, records(5))


def test_nothing_of_a_file_is_run(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "run",)

    torch.save({"0.weight": Hostile()}, tmp_path / "m.pt")
    with pytest.raises(BadModel, match=r"--trained_model: .*m.pt can't be read as "):
        predict(made_of(normed), tmp_path / "m.pt", records(5))
    assert not (tmp_path / "run").exists()
