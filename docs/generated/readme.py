"""The front page: parts of the README."""

from __future__ import annotations

from . import links


def markdown(part: str) -> str:
    """The text before the first section, named "opening", or the section of a name."""
    text = (links.ROOT / "README.md").read_text(encoding="utf-8").partition("\n")[2]
    opening, *sections = text.split("\n## ")
    (found,) = [opening] if part == "opening" else [f"## {text}" for text in sections if text.startswith(f"{part}\n")]
    return links.for_site(found, links.ROOT, links.DOCS)
