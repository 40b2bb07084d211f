"""The front page: the README, behind its title."""

from __future__ import annotations

from . import links


def markdown() -> str:
    """The README without its first heading."""
    text = (links.ROOT / "README.md").read_text(encoding="utf-8").partition("\n")[2]
    return links.for_site(text, links.ROOT, links.DOCS)
