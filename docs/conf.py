"""Settings of Sphinx for the site that `make docs` makes.

Its pages are those of the repository, where they are, so that one link works on a code host and in the site. The order of pages is that of
`docs/README.md`: a list of its own would be forgotten. `docs/site.py` runs Sphinx.
"""

from __future__ import annotations

import inspect
import re
import sys
from enum import Enum
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config
from sphinx.ext.napoleon.docstring import GoogleDocstring

_ROOT = Path(__file__).resolve().parent.parent
_INDEX = _ROOT / "docs" / "README.md"
_SECTIONS = Config(napoleon_use_ivar=True, napoleon_attr_annotations=False)
_NO_PYTHON = re.compile(r"= ?<(?:[^<>]|<[^<>]*>)*>")

# Importing TensorFlow takes longer than the site. Sphinx's `autodoc_mock_imports` imports it nevertheless for a class with a decorator.
_KERAS = MagicMock()
_KERAS.layers.Embedding = object
_KERAS.saving.register_keras_serializable = lambda package: lambda layer: layer
sys.modules |= {"keras": _KERAS, "tensorflow": MagicMock(), "elasticdl.keras.internals": MagicMock()}

project = "ElasticDL"
root_doc = "README"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
include_patterns = ["*.md", "docs/**.md"]
exclude_patterns = [path.name for path in _ROOT.iterdir() if path.is_dir() and path.name != "docs"]
myst_heading_anchors = 6

html_theme = "furo"
html_title = "ElasticDL"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False

highlight_language = "text"  # of blocks that name none
default_role = "literal"  # docstrings have `code` as the pages have it
autoclass_content = "both"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_type_aliases = {"Records": "Records"}
python_maximum_signature_line_length = 100
toc_object_entries_show_parents = "hide"


def setup(app: Sphinx) -> None:
    """Connect what is below."""
    app.connect("source-read", _add_navigation)
    app.connect("autodoc-process-docstring", _read_sections)
    app.connect("autodoc-process-signature", _show_signature)
    app.connect("autodoc-skip-member", _show_words)


def _add_navigation(app: Sphinx, docname: str, source: list[str]) -> None:
    if docname == root_doc:
        source[0] += navigation(_INDEX.read_text(encoding="utf-8"))


def navigation(index: str) -> str:
    """Return the navigation of the site: a list of pages for each heading of the index, of those that the list under it links to."""
    trees = [_tree("", ["README.md"])]
    for caption, text in re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", index, re.M | re.S):
        trees.append(_tree(caption, re.findall(r"^- \[[^]]+\]\((.+?\.md)\)", text, re.M)))
    return "".join(trees)


def _tree(caption: str, pages: list[str]) -> str:
    paths = [(_INDEX.parent / page).resolve().relative_to(_ROOT).with_suffix("") for page in pages]
    head = ["```{toctree}", ":hidden:", *([f":caption: {caption}"] if caption else []), ""]
    return "\n" + "\n".join([*head, *(f"/{path.as_posix()}" for path in paths), "```"]) + "\n"


def _read_sections(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Make lists of `Args:` and `Attributes:`; in an attribute's own docstring napoleon would take what is before a colon for a type."""
    if what not in ("attribute", "data", "property"):
        lines[:] = GoogleDocstring(lines, _SECTIONS, app, what, name, thing, options).lines()


def _show_signature(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str, str | None] | None:
    """Leave out how enumerations and Protocols are called, which nobody does, and defaults that are no Python."""
    if inspect.isclass(thing) and (issubclass(thing, Enum) or getattr(thing, "_is_protocol", False)):
        return "", ""
    return (_NO_PYTHON.sub("= ...", signature), returns) if signature else None


def _show_words(app: Sphinx, what: str, name: str, thing: Any, skip: bool, options: Any) -> bool | None:
    """Show the words of an enumeration, with docstrings or without."""
    return False if isinstance(thing, Enum) else None
