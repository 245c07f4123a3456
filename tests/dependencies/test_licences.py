"""Which licences and sources pass: `make check` holds all dependencies against them."""

from __future__ import annotations

import json
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from .__main__ import ROOT, allowed_of, judge, manifests, of_crate, of_package
from .licences import is_allowed, of_metadata

ALLOWED = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "Unicode-3.0"]


@pytest.mark.parametrize(
    ("expression", "fits"),
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("GPL-3.0-only OR MIT", True),
        ("GPL-3.0-only AND MIT", False),
        ("GPL-2.0/MIT", True),
        ("Apache-2.0 WITH LLVM-exception OR GPL-2.0", True),
        ("GPL-2.0 WITH Classpath-exception-2.0", False),
        ("(MIT OR GPL-2.0) AND Unicode-3.0", True),
        ("(MIT OR GPL-2.0) AND AGPL-3.0-only", False),
        ("MIT AND Apache-2.0 OR GPL-2.0", True),
    ],
)
def test_expressions(expression: str, fits: bool) -> None:
    assert is_allowed(expression, ALLOWED) is fits


@pytest.mark.parametrize("expression", ["MIT OR", "(MIT", "MIT)", "", "MIT, BSD", "MIT MIT"])
def test_what_is_no_expression_is_no_permission(expression: str) -> None:
    with pytest.raises(ValueError, match="licence expression"):
        is_allowed(expression, ALLOWED)


@pytest.mark.parametrize(
    ("expression", "text", "classifiers", "licence"),
    [
        ("MIT-0", "something else", [], "MIT-0"),
        ("", "MPL-2.0", ["Mozilla Public License 2.0 (MPL 2.0)"], "MPL-2.0"),
        ("", "Apache 2.0", [], "Apache-2.0"),
        ("", "Copyright of somebody\nAll rights", ["BSD License"], "BSD-3-Clause"),
        ("", "", ["DFSG approved", "MIT License"], "MIT"),
        ("", "", ["GNU General Public License v3 (GPLv3)"], ""),
        ("", "UNKNOWN", ["ISC License (ISCL)"], "ISC"),
        ("", "as you like", [], ""),
    ],
)
def test_older_metadata(expression: str, text: str, classifiers: list[str], licence: str) -> None:
    assert of_metadata(expression, text, classifiers) == licence


def test_a_crate_comes_from_the_registry() -> None:
    sources = {None, "registry+https://example.com/index"}
    crate = {"license": "MIT", "source": "registry+https://example.com/index"}
    assert judge(of_crate(crate, sources), ALLOWED) == ""
    assert judge(of_crate({**crate, "source": None}, sources), ALLOWED) == ""
    fork = {**crate, "source": "git+https://example.com/fork"}
    assert judge(of_crate(fork, sources), ALLOWED) == "it comes from git+https://example.com/fork"
    assert judge(of_crate({**crate, "license": None}, sources), ALLOWED) == "it names no licence"
    assert judge("AGPL-3.0-only", ALLOWED) == "its licence is AGPL-3.0-only"


def test_an_exception_is_for_one_crate() -> None:
    licences = {"allow": ALLOWED, "exceptions": [{"crate": "fuzzer", "allow": ["NCSA"]}]}
    assert judge("MIT AND NCSA", allowed_of("crate fuzzer 0.4.13", licences)) == ""
    for other in ("crate fuzzers 0.4.13", "package x fuzzer"):
        assert judge("MIT AND NCSA", allowed_of(other, licences)) == "its licence is MIT AND NCSA"


def test_all_locked_crates_are_looked_at() -> None:
    found = manifests(ROOT / "rust")
    assert {one.relative_to(ROOT).as_posix() for one in found} == {"rust/Cargo.toml", "rust/fuzz/Cargo.toml"}


def test_a_package_comes_from_an_index(tmp_path: Path) -> None:
    info = tmp_path / "x-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.4\nName: x\nVersion: 1\nLicense-Expression: MIT\n")
    assert of_package(PathDistribution(info)) == "MIT"
    (info / "direct_url.json").write_text(json.dumps({"url": "https://example.com/x", "vcs_info": {}}))
    assert judge(of_package(PathDistribution(info)), ALLOWED) == "it comes from https://example.com/x"
