"""Where does a link of a page lead on the site? Pages link to each other and to files of the repository, relatively."""

from __future__ import annotations

import os.path
import re
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def address() -> str:
    """The repository's public address, from the core's metadata (``project.urls``); empty while it has none."""
    urls = metadata.metadata("sgljit-core").get_all("Project-URL") or []
    return "".join(line.partition(", ")[2] for line in urls if line.startswith("Source, ")).rstrip("/")


def for_site(text: str, directory: Path, into: Path | None = None) -> str:
    """The links of a page of ``directory`` as a page of ``into`` has them.

    A file that is no page becomes a link to the repository, or only its path while there is no public address. A path
    that leads nowhere stays: the build refuses it.
    """
    into = into or directory

    def replaced(match: re.Match[str]) -> str:
        image, shown, path, anchor = match[1], match[2], match[3], match[4] or ""
        target = Path(os.path.normpath(directory / path))
        if target == ROOT / "README.md":
            return f"[{shown}]({os.path.relpath(DOCS / 'index.md', into)}{anchor})"
        if image or not target.exists() or (target.is_relative_to(DOCS) and target.suffix == ".md"):
            return f"{image}[{shown}]({os.path.relpath(target, into)}{anchor})"
        name = target.relative_to(ROOT).as_posix()
        if address():
            return f"[{shown}]({address()}/blob/main/{name}{anchor})"
        return shown if shown.strip("`") == name else f"{shown} (`{name}`)"

    return _LINK.sub(replaced, text)
