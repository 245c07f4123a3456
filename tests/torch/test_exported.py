"""A .pt2 file is read for its weights: the bits of the state_dict, nothing of it is run, and what does not fit says what it is."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl.errors import BadModel
from elasticdl.spec import framework
from elasticdl.worker.contract.trained import TrainedModel

from . import FULL, adapter_of, commit, job, made_of, records

torch = pytest.importorskip("torch", reason="make setup-torch")

PROGRAM, CONFIG = "models/model.json", "data/weights/model_weights_config.json"


class Mixed(torch.nn.Module):
    """Weights that are tied, transposed, of other types, of no number, and a part of a larger tensor; takes and gives several tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.again.weight = self.first.weight
        self.last = torch.nn.Linear(4, 3, dtype=torch.bfloat16)
        self.turned = torch.nn.Parameter(torch.randn(3, 4).t())
        self.norm = torch.nn.BatchNorm1d(4, affine=False)
        self.register_buffer("part", torch.arange(8, dtype=torch.float64)[3:7])
        self.register_buffer("none", torch.zeros(0, dtype=torch.int32))

    def forward(self, rows: Any, sizes: Any) -> Any:
        hidden = self.norm(self.again(self.first(rows))) * sizes[:, None]
        outputs = self.last(hidden.bfloat16()).float() + hidden @ self.turned
        return {"kind": outputs, "sum": (outputs.sum(1).double() + self.part.sum())}


def mixed() -> Any:
    def feed(raw: Any, mode: str, metadata: Any) -> Any:
        rows = torch.tensor([[float(value) for value in record] for record in raw])
        return {"rows": rows[:, :4], "sizes": rows[:, 0].abs()}, rows[:, 4].long()

    return made_of(
        Mixed,
        loss=lambda labels, outputs: torch.nn.functional.cross_entropy(outputs["kind"], labels),
        feed=feed,
    )


def dense(units: int = 8, outputs: int = 3) -> Any:
    return torch.nn.Sequential(
        torch.nn.Linear(4, units), torch.nn.BatchNorm1d(units), torch.nn.Linear(units, outputs)
    )


def trained(user: Any, weights: Path) -> TrainedModel:
    made: TrainedModel = framework.find("torch").trained(user, job(), None, weights)
    made.prepare(records(FULL))
    return made


def predict(user: Any, weights: Path) -> Mapping[str, Any]:
    made = trained(user, weights)
    return made.predict(made.convert(records(5, 77)), 0, 0)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a job of `dense` writes."""
    path = tmp_path_factory.mktemp("exported") / "m.pt2"
    made = adapter_of(made_of(dense))
    commit([made], [records(FULL, 1)], 1)
    made.export(str(path), "exported")
    return path


def changed(program: Path, target: Path, parts: Mapping[str, bytes | None], how: int = 0) -> Path:
    """Write an archive with other parts; None leaves one out. `how`: compress them, as zipfile names it."""
    with zipfile.ZipFile(program) as archive, zipfile.ZipFile(target, "w", how) as written:
        root = archive.namelist()[0].split("/")[0]
        kept = {one.removeprefix(f"{root}/"): archive.read(one) for one in archive.namelist()}
        for name, content in {**kept, **parts}.items():
            if content is not None:
                written.writestr(f"{root}/{name}", content)
    return target


def edited(program: Path, part: str, edit: Callable[[Any], Any]) -> dict[str, bytes | None]:
    """Return a part of JSON after an edit."""
    with zipfile.ZipFile(program) as archive:
        body = json.loads(archive.read(next(one for one in archive.namelist() if one.endswith(part))))
    edit(body)
    return {part: json.dumps(body).encode()}


def test_both_files_of_a_training_predict_the_same_bits_whatever_they_are_called(tmp_path: Path) -> None:
    user = mixed()
    made = adapter_of(user)
    for step in (1, 2):
        commit([made], [records(FULL, step), records(3, 9 * step)], step)
    made.export(str(tmp_path / "state.pt2"), "state_dict")
    made.export(str(tmp_path / "program.pt"), "exported")
    state, program = (predict(user, tmp_path / name) for name in ("state.pt2", "program.pt"))
    assert list(state) == list(program) == ["kind", "sum"]
    for name, value in state.items():
        np.testing.assert_array_equal(value, program[name])
    theirs = torch.export.load(tmp_path / "program.pt").state_dict
    ours = trained(user, tmp_path / "program.pt")._model.state_dict()  # type: ignore[attr-defined]
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_a_model_function_may_begin_with_the_weights_of_a_file(program: Path) -> None:
    def begun() -> Any:
        model = dense()
        model.load_state_dict(torch.export.load(program).state_dict)
        return model

    adapter = adapter_of(made_of(begun))
    weights = trained(made_of(dense), program)._model.state_dict()  # type: ignore[attr-defined]
    assert all(torch.equal(value, weights[name]) for name, value in adapter.model.state_dict().items())


def test_the_archive_is_described_as_pytorch_itself_describes_it() -> None:
    """Private names of PyTorch: if this fails after an update, look whether archives are still read, and change what is said of them."""
    from torch._export.serde import schema, serialize
    from torch.export.pt2_archive import constants

    from elasticdl.torch import exported

    where = f"PyTorch {torch.__version__}"
    theirs = {int(number): kind for kind, number in serialize._TORCH_TO_SERIALIZE_DTYPE.items()}
    assert {number: theirs[number] for number in exported.TYPES} == exported.TYPES, where
    assert schema.SCHEMA_VERSION[0] == exported.SCHEMA_MAJOR, where
    assert constants.ARCHIVE_VERSION_VALUE.encode() == exported.ARCHIVE_VERSION, where


class Hostile:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_nothing_of_an_archive_is_run(program: Path, tmp_path: Path) -> None:
    """Neither its inputs nor its objects, nor the texts that PyTorch evaluates; a pickled weight is refused."""
    run, target = tmp_path / "run", tmp_path / "m.pt2"
    pickled = pickle.dumps(Hostile(run))

    def opaque(body: Any) -> None:
        body["config"]["it"] = {
            "path_name": "opaque_obj_0",
            "is_param": False,
            "use_pickle": True,
            "tensor_meta": None,
        }

    def evaluated(body: Any) -> None:
        for one in body["graph_module"]["graph"]["tensor_values"].values():
            for size in one["sizes"]:
                if "as_expr" in size:
                    size["as_expr"]["expr_str"] = f"open({str(run)!r}, 'w')"

    torch.save(Hostile(run), tmp_path / "inputs")
    parts = {
        "data/sample_inputs/model.pt": (tmp_path / "inputs").read_bytes(),
        "data/constants/opaque_obj_0": pickled,
        **edited(program, "data/constants/model_constants_config.json", opaque),
        **edited(program, PROGRAM, evaluated),
    }
    user = made_of(dense)
    changed(program, target, parts)
    np.testing.assert_array_equal(predict(user, target)["prediction"], predict(user, program)["prediction"])
    assert not run.exists()
    with pytest.raises(Exception, match=r".*"):
        torch.export.load(target)
    assert run.exists(), "PyTorch's own function runs it, or this test shows nothing"
    run.unlink()

    def pickles(body: Any) -> None:
        body["config"]["0.weight"]["use_pickle"] = True

    parts = {**edited(program, CONFIG, pickles), "data/weights/weight_0": pickled}
    with pytest.raises(
        BadModel, match=r"has the weight '0.weight' as a pickled object, .*: nothing is unpickled"
    ):
        predict(user, changed(program, target, parts))
    assert not run.exists()


def no(*names: str) -> Callable[[Path], dict[str, bytes | None]]:
    return lambda program: dict.fromkeys(names)


def major(number: object) -> Callable[[Path], dict[str, bytes | None]]:
    return lambda program: edited(program, PROGRAM, lambda body: body["schema_version"].update(major=number))


def weight(**change: object) -> Callable[[Path], dict[str, bytes | None]]:
    return lambda program: edited(
        program, CONFIG, lambda body: body["config"]["0.weight"]["tensor_meta"].update(change)
    )


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (lambda program: {"archive_version": b"1"}, r"has version '1' of the archive, and this elasticdl reads '0'; export it again"),
        (major(9), r"has version 9 of exported programs \(of PyTorch '2.*'\), and this elasticdl reads 8; export it again"),
        (major({}), r"has version {} of exported programs"),
        (lambda program: {"data/weights/model.pt": b""}, "has the format of an earlier PyTorch, with pickled weights; export it again"),
        (lambda program: {"serialized_exported_program.json": b"{}"}, "has the format of an earlier PyTorch"),
        (no(PROGRAM), "has no program called 'model', .*; it has none"),
        (lambda program: {PROGRAM: None, "data/aotinductor/model/x.so": b""}, "has no program .*; it has data/aotinductor/model/x.so"),
        (no("archive_version"), "is damaged, or was not written by --output_format=exported .there is no 'archive_version'."),
        (no(CONFIG), "is damaged, .*there is no 'data/weights/model_weights_config.json'"),
        (no("data/weights/weight_0"), "is damaged, .*there is no 'data/weights/weight_0'"),
        (lambda program: {PROGRAM: b"{"}, "is damaged, "),
        (lambda program: {PROGRAM: b"[" * 100_000}, "is damaged, .*nested too deeply"),
        (lambda program: {PROGRAM: b"[]"}, "is damaged, "),
        (lambda program: {"data/weights/weight_0": b"123"}, "is damaged, "),
        (weight(dtype=99), "is damaged, "),
        (weight(sizes=[{"as_int": 10**6}, {"as_int": 4}]), "is damaged, "),
        (weight(sizes=[{"as_int": 2**80}]), "is damaged, "),
        (weight(sizes=[{"as_expr": "2"}, {"as_int": 4}]), "is damaged, "),
        (weight(strides=[{"as_int": -1}, {"as_int": 1}]), "is damaged, "),
        (weight(sizes=[{"as_int": 4}, {"as_int": 8}]), "is of another model than that of m.py: .*size mismatch for 0.weight"),
    ],
)  # fmt: skip
def test_an_archive_that_can_not_be_used_says_why(
    parts: Callable[[Path], dict[str, bytes | None]], said: str, program: Path, tmp_path: Path
) -> None:
    target = changed(program, tmp_path / "m.pt2", parts(program))
    with pytest.raises(BadModel, match=rf"^--trained_model: \S*m.pt2 {said}"):
        predict(made_of(dense), target)


def test_a_damaged_archive_is_refused_wherever_the_damage_is(program: Path, tmp_path: Path) -> None:
    target, content = tmp_path / "m.pt2", program.read_bytes()
    with zipfile.ZipFile(program) as archive:
        numbers = archive.read(next(one for one in archive.namelist() if one.endswith("weight_0")))
    offset = content.index(numbers) + 5
    for damaged, said in (
        (content[:offset] + bytes([content[offset] ^ 1]) + content[offset + 1 :], "is damaged, .*Bad CRC-32"),
        (
            content[: len(content) // 2],
            "can't be read as what --output_format=state_dict or exported writes: ",
        ),
        (b"", "can't be read as what --output_format=state_dict or exported writes: EOFError"),
    ):
        target.write_bytes(damaged)
        with pytest.raises(BadModel, match=f"--trained_model: .*m.pt2 {said}"):
            predict(made_of(dense), target)
    changed(program, target, {}, zipfile.ZIP_DEFLATED)
    with pytest.raises(BadModel, match=r"is damaged, .* is compressed, which PyTorch never does"):
        predict(made_of(dense), target)


def wide(raw: Any, mode: str, metadata: Any) -> Any:
    return torch.zeros(len(raw), 5), torch.zeros(len(raw)).long()


def double(raw: Any, mode: str, metadata: Any) -> Any:
    return torch.zeros(len(raw), 4, dtype=torch.float64), torch.zeros(len(raw)).long()


class Given(torch.nn.Sequential):
    """`dense` with the same weights, and other outputs."""

    def __init__(self, change: Callable[[Any], Any]) -> None:
        super().__init__(*dense())
        self.change = change

    def forward(self, rows: Any) -> Any:
        return self.change(super().forward(rows))


@pytest.mark.parametrize(
    ("user", "said"),
    [
        (lambda: made_of(dense, feed=wide), r"its program takes float32 \[\*, 4\], and feed gives float32 \[8, 5\]; give the --model_def"),
        (lambda: made_of(dense, feed=double), r"its program takes float32 \[\*, 4\], and feed gives float64 \[8, 4\]"),
        (mixed, r"its program takes float32 \[\*, 4\], and feed gives {rows: float32 \[8, 4\], sizes: float32 \[8\]}"),
        (lambda: made_of(lambda: Given(lambda one: one[:, :2])), r"its program gives float32 \[\*, 3\], and the model gives .*\[8, 2\]"),
        (lambda: made_of(lambda: Given(lambda one: (one, one))), r"its program gives float32 \[\*, 3\], and the model gives \(float32"),
        (lambda: made_of(lambda: Given(lambda one: one.double())), r"its program gives .*, and the model gives float64 \[8, 3\]"),
        (lambda: made_of(lambda: dense(9)), "size mismatch for 0.weight"),
        (lambda: made_of(lambda: torch.nn.Linear(4, 3)), "Unexpected key"),
    ],
)  # fmt: skip
def test_an_archive_of_another_model_is_refused(user: Callable[[], Any], said: str, program: Path) -> None:
    with pytest.raises(
        BadModel, match=rf"(?s)--trained_model: .*m.pt2 is of another model than that of m.py: .*{said}"
    ):
        predict(user(), program)


def test_a_model_that_fails_on_the_first_records_says_what_it_got(program: Path) -> None:
    with pytest.raises(
        BadModel, match=r"m.py: the model failed on the first records: .*\nfeed gave float32 \[8, 4\]"
    ):
        predict(made_of(lambda: Given(lambda one: one[:, 7])), program)
