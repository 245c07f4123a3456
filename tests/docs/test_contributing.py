"""The page for contributors: modules, targets and settings that it names exist; `test_links.py` is about its files and links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_each_command_exists() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    assert set(re.findall(r"(?:^|`)make ([\w-]+)", PAGE, re.M)) <= targets
    for module in re.findall(r"python -m ([\w.]+)", PAGE):
        path = ROOT.joinpath(*module.split("."))
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module


@pytest.mark.parametrize(
    ("file", "names"),
    [
        ("python/elasticdl/tools/faults.py", ["FaultKind", "FORMS", "MOMENTS"]),
        ("tests/chaos/__main__.py", ["MORE", "MORE_PS", "--servers", "--seed"]),
        ("benchmarks/__main__.py", ["PARTS", "FULL", "SMALLEST"]),
        ("python/elasticdl/control/protocol/codec.py", ["_FROM_MEMBER", "_TO_MEMBER"]),
        ("proto/elasticdl/v1/control.proto", ["FromMember", "ToMember"]),
        ("python/elasticdl/keras/optimizer.py", ["_RULES", "describe"]),
        ("rust/core/src/ps/memory/optimizer.rs", ["Rule", "state", "begin", "apply"]),
        ("rust/core/src/ps/client/local.rs", ["rules"]),
        ("tests/ps/test_optimizers.py", ["OPTIMIZERS"]),
        ("rust/core/src/ps/memory/optimizer.rs", ["Update"]),
        ("python/elasticdl/data/readers/files.py", ["Kind", "kind_by", "_MAGIC", "_SUFFIXES", "make_index"]),
        ("python/elasticdl/data/readers/recordfiles.py", ["FileReader", "open_reader"]),
        ("rust/core/src/records/index.rs", ["Kind", "code"]),
        ("rust/core/tests/readers/mod.rs", ["What", "ALL"]),
        ("python/elasticdl/spec/jobspec.py", ["JobSpec", "check"]),
        ("rust/core/tests/ps.rs", ["PS_SEEDS"]),
        ("tests/fuzz/__main__.py", ["--from", "--seconds"]),
        ("tests/simulation/__main__.py", ["--seed", "--trace", "--servers"]),
    ],
)
def test_what_is_to_be_changed_is_there(file: str, names: list[str]) -> None:
    source = (ROOT / file).read_text(encoding="utf-8")
    for name in names:
        assert name in PAGE
        assert re.search(rf"(?<![\w-]){name}\b", source), name
