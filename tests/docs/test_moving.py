"""The guides to PyTorch loops: in "Moving" what stands under "Before" is Python, and what stands under "After" trains."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="make setup-torch")

from elasticdl.torch import loop  # noqa: E402
from elasticdl.worker.shards import face  # noqa: E402
from tests.torch.loops import data, network  # noqa: E402

PAGES = Path(__file__).resolve().parents[2] / "docs" / "guides"
PAGE = (PAGES / "moving.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.+)\n((?:(?!## ).*\n)*)", PAGE, re.M))
LOOPS = {
    name: re.findall(r"^(Before|After):\n\n```python\n(.*?)^```", section, re.M | re.S)
    for name, section in SECTIONS.items()
    if "Before:" in section
}
RECORDS = 320


def test_each_library_has_a_loop_before_and_after() -> None:
    assert len(LOOPS) == 4
    for blocks in LOOPS.values():
        assert [kind for kind, _ in blocks] == ["Before", "After"]
        compile(blocks[0][1], "before", "exec")


@pytest.mark.parametrize("name", LOOPS)
def test_what_stands_after_trains(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loop, "_current", None)
    program: dict[str, Any] = {"__name__": "program", "dataset": data(RECORDS), "model": network()}
    before = torch.nn.utils.parameters_to_vector(program["model"].parameters()).clone()
    exec(LOOPS[name][1][1], program)
    job = program["job"]
    job.finish()
    assert job.epoch == 3
    assert not torch.equal(torch.nn.utils.parameters_to_vector(program["model"].parameters()), before)
    if (tmp_path / "model.pt").exists() or "job.result" in LOOPS[name][1][1]:
        network().load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))


def test_the_torchrun_loop_before_runs_where_there_is_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 0}.items():
        monkeypatch.setenv(name, str(value))
    program: dict[str, Any] = {"__name__": "program", "dataset": data(RECORDS), "model": network()}
    exec(LOOPS["torchrun and DDP"][0][1], program)
    network().load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))


def test_the_loops_of_the_guide_to_custom_loops_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one as it stands there; what it says of an average follows on the lines before `elastic`."""
    monkeypatch.chdir(tmp_path)
    page = (PAGES / "custom-loops.md").read_text(encoding="utf-8")
    first, average, _ = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    before = first.split("model, optimizer = edl.elastic(model, optimizer)\n")[0]
    for text in (first, before + average):
        monkeypatch.setattr(loop, "_current", None)
        model = network()
        program: dict[str, Any] = {
            "torch": torch,
            "dataset": data(RECORDS),
            "model": model,
            "optimizer": torch.optim.SGD(model.parameters(), 0.1),
            "criterion": torch.nn.functional.cross_entropy,
        }
        exec(text, program)
        program["job"].finish()
        assert program["job"].step == 50
    assert int(program["average"].n_averaged) == 50
    network().load_state_dict(torch.load("average.pt", weights_only=True))


def test_the_loop_over_tasks_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(face, "_alone", False)
    (block,) = re.findall(r"^```python\n(import elasticdl\n\nfor task.*?)^```", PAGE, re.M | re.S)
    used: list[Any] = []
    exec(block, {"dataset": list(range(100)), "use": used.append})
    assert used == list(range(100))
