"""How is the site built? ``make docs`` runs Sphinx with this file."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS))

from generated import links  # noqa: E402

from sgljit_core import __version__  # noqa: E402

project = "sgljit"
author = "The sgljit authors"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["generated"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
add_module_names = False
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"sgljit {version}"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"

GENERATED = re.compile(r"^<!-- generated: (\w+)(.*?) -->$", re.MULTILINE)


def fill(app: Sphinx, page: str, source: list[str]) -> None:
    """Put what is made from the code into a page, and turn its links."""
    directory = (DOCS / page).parent
    text = links.for_site(source[0], directory)
    source[0] = GENERATED.sub(
        lambda match: importlib.import_module(f"generated.{match[1]}").markdown(*match[2].split()), text
    )


def hide_private(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, shown: str | None, returns: str | None
) -> Any:
    """Show a class without its parameters if some are private: users do not make such objects."""
    return ("", None) if what == "class" and shown and re.search(r"[(,\s]_[a-z]", shown) else None


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", fill)
    app.connect("autodoc-process-signature", hide_private)
