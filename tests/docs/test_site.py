"""The site of the documentation: it has every page, in an order, and what people import; what is wrong with a page is an error."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sphinx.util.inventory import InventoryFile

import elasticdl
from docs.links import ROOT, Repository
from elasticdl import errors, keras, reference

CONTRACT = ROOT / "python" / "elasticdl" / "worker" / "contract"


def make(site: Path, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "docs.site", str(site)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=600)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    done = make(folder)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return folder


def test_every_page_is_there_and_found_by_the_search(site: Path) -> None:
    pages = [page.relative_to(ROOT).with_suffix("").as_posix() for page in Repository(ROOT).pages()]
    assert [page for page in pages if not (site / f"{page}.html").is_file()] == []
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    assert sorted(re.findall(r'"([^"]+)"', index.partition('"docnames":[')[2].partition("]")[0])) == sorted(
        pages
    )


def test_the_navigation_has_the_order_of_the_index(site: Path) -> None:
    first = (site / "index.html").read_text(encoding="utf-8")
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    captions = re.findall(r'<p class="caption"[^>]*><span class="caption-text">([^<]+)</span>', first)
    assert captions == re.findall(r"^## (.+)$", index, re.M)
    assert captions[:2] == ["Tutorials", "Guides"]
    pages = re.findall(r'<li class="toctree-l1"><a [^>]*href="([^"]+)\.html">', first)
    assert pages[:2] == ["docs/README", "docs/tutorials/laptop"]
    assert len(pages) == len(set(pages)) == len(Repository(ROOT).pages()) - 1


def test_the_reference_has_what_people_import_and_the_contracts(site: Path) -> None:
    found = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    names = {name for kind, items in found.data.items() if kind.startswith("py:") for name in items}
    wanted = {
        f"{package.__name__}.{name}" for package in (elasticdl, keras, reference) for name in package.__all__
    }
    wanted |= {f"elasticdl.errors.{name}" for name, thing in vars(errors).items() if isinstance(thing, type)}
    wanted |= {f"elasticdl.worker.contract.{path.stem}" for path in CONTRACT.glob("[!_]*.py")}
    wanted |= {"elasticdl.data.readers.custom.UserReader.read_records", "elasticdl.spec.jobspec.JobSpec"}
    assert wanted - names == set()


def test_docstrings_are_rendered(site: Path) -> None:
    contracts = (site / "docs" / "reference" / "contracts.html").read_text(encoding="utf-8")
    text = re.sub(r"<[^>]+>", "", contracts)
    # `Attributes:` and `Args:` are lists
    assert "<strong>examples</strong> – n, the number of examples" in contracts
    assert "<strong>memory</strong> – bytes that it may use" in contracts
    # words before a colon are no type
    assert "Elements of the flat accumulator: gradients of all trainables" in text
    # code is code, whatever is in it
    assert '<span class="pre">~</span></code> is the home directory' in contracts
    # nothing of this process is shown
    assert "&lt;function" not in contracts
    assert " object at 0x" not in contracts


def test_what_is_wrong_with_a_page_is_an_error(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs" / "static", tmp_path / "docs" / "static")
    for name in ("conf.py", "site.py"):
        (tmp_path / "docs" / name).write_bytes((ROOT / "docs" / name).read_bytes())
    (tmp_path / "README.md").write_text("# Project\n\n[a page](docs/page.md#nowhere)\n")
    (tmp_path / "docs" / "README.md").write_text("# Documentation\n\n## Guides\n\n- [A page](page.md)\n")
    (tmp_path / "docs" / "page.md").write_text(
        "# A page\n\n```{eval-rst}\n.. autofunction:: elasticdl.none\n```\n"
    )
    (tmp_path / "docs" / "orphan.md").write_text("# Not in the index\n")
    done = make(tmp_path / "site", tmp_path)
    assert done.returncode != 0
    assert re.search(r"README\.md:3: WARNING: .*nowhere", done.stderr)
    assert "WARNING: autodoc: failed to import 'none' from module 'elasticdl'" in done.stderr
    assert re.search(r"orphan\.md: WARNING: .*toctree", done.stderr)
    assert done.stderr.count("WARNING: ") == 3
    assert not (tmp_path / "site" / "index.html").exists()
