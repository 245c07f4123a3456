"""The model zoo's models for PyTorch are trained, evaluated, exported, and predict with what was exported."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from elasticdl.control.protocol.metricstates import combine
from elasticdl.spec import framework

from . import LIFE, job

torch = pytest.importorskip("torch", reason="make setup-torch")

ROOT = Path(__file__).resolve().parents[2]
ZOO = ROOT / "model_zoo"
BATCH = 16


def part(records: dict[str, Any], places: Any) -> dict[str, Any]:
    return {name: column[places] for name, column in records.items()}


def smoke(model_def: str, train: dict[str, Any], heldout: dict[str, Any], steps: int, folder: Path) -> Any:
    """Train some steps; return the metrics of what is held out, before and after. What is exported predicts what the model does."""
    spec = job(model_zoo=str(ZOO), model_def=model_def, minibatch_size=BATCH)
    found = framework.find("torch")
    found.start(1)
    user = found.load(spec)
    adapter: Any = found.adapter(user, spec, None, LIFE)
    adapter.prepare(part(train, slice(BATCH)))

    def evaluated() -> Any:
        evaluator = adapter.evaluator(None)
        evaluator.prepare(part(heldout, slice(BATCH)))
        evaluator.begin_task(0)
        evaluator.evaluate(evaluator.convert(heldout))
        return evaluator.metric_values(combine(evaluator.catalog(), [evaluator.task_state()]))

    before, draw = evaluated(), np.random.default_rng(0)
    for step in range(1, steps + 1):
        chosen = draw.integers(0, len(next(iter(train.values()))), BATCH)
        result = adapter.compute(adapter.convert(part(train, chosen)), step, 0)
        adapter.apply(np.array(adapter.accumulator()), result.examples)
    outputs = adapter.model.eval()(user.feed(part(heldout, slice(3)), "prediction", None)).detach()
    for name, kind in (("model.pt", "state_dict"), ("model.pt2", "exported")):
        adapter.export(str(folder / name), kind)
        trained = found.trained(user, spec, None, folder / name)
        trained.prepare(part(heldout, slice(BATCH)))
        predicted = trained.predict(trained.convert(part(heldout, slice(3))), 0, 0)["prediction"]
        np.testing.assert_allclose(predicted, outputs.numpy(), atol=1e-5)
    return before, evaluated()


def test_a_transformer_on_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ZOO)
    assert importlib.import_module("text.make_data").main([str(tmp_path), str(ROOT / "docs" / "guides")]) == 0
    train, heldout = (
        {"text": pyarrow.parquet.read_table(tmp_path / name)["text"].to_numpy()}
        for name in ("train", "heldout")
    )
    heldout = part(heldout, slice(100))
    before, after = smoke("text.bytes_torch.custom_model", train, heldout, 60, tmp_path)
    assert before["val_loss"] > 5
    assert after["val_loss"] < 3.3
    assert after["val_accuracy"] > 0.15


def test_text_that_is_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(ZOO)
    assert importlib.import_module("text.make_data").main([str(tmp_path / "made"), str(tmp_path)]) == 2
    assert "has no .md and .txt files" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


def test_a_detectors_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("skimage")
    monkeypatch.syspath_prepend(ZOO)
    importlib.import_module("pictures.make_data").write_coins(tmp_path, 60)

    def coins(split: str) -> dict[str, Any]:
        content = json.loads((tmp_path / f"{split}.json").read_text())
        images = np.array(
            [(tmp_path / split / one["file_name"]).read_bytes() for one in content["images"]], object
        )
        boxes = np.empty(len(images), object)
        for place, image in enumerate(content["images"]):
            found = [one["bbox"] for one in content["annotations"] if one["image_id"] == image["id"]]
            edges = np.array(found, np.float32).reshape(-1, 4)
            boxes[place] = np.concatenate([edges[:, :2], edges[:, :2] + edges[:, 2:]], axis=1)
        return {"image": images, "boxes": boxes}

    before, after = smoke("pictures.coins_torch.custom_model", coins("train"), coins("heldout"), 40, tmp_path)
    assert after["val_loss"] < 0.7 * before["val_loss"]
    assert after["val_there"] > 0.8
