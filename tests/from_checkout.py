"""Run Python from a plain checkout, installing nothing: ``python tests/from_checkout.py -m pytest tests``.

Plugins are found by the metadata of their distributions, which a checkout does not have. So this writes, for
each pyproject.toml of the repository, what an installer would have written (name, version, requirements, entry
points) into a temporary directory, and runs the interpreter it was started with, the directory, the sources and
the caller's own PYTHONPATH on its path.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement  # pytest brings it; what it prints is what hatchling writes

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it

ROOT = Path(__file__).resolve().parent.parent


def projects() -> list[Path]:
    """The directories of the core, the tools, the adapters with what they share, and the plugins."""
    places = ("tools", "engines", "plugins", "examples")
    return [ROOT, *sorted(path.parent for place in places for path in ROOT.glob(f"{place}/*/pyproject.toml"))]


def version_of(directory: Path, pyproject: dict[str, Any]) -> str:
    """The version: from the pyproject, or from the file that hatchling is told to read it from."""
    project = pyproject["project"]
    if "version" in project:
        return project["version"]
    text = (directory / pyproject["tool"]["hatch"]["version"]["path"]).read_text(encoding="utf-8")
    match = re.search(r"""^(?:__version__|VERSION)\s*=\s*["'](.+?)["']""", text, re.MULTILINE)
    if match is None:
        message = f"{directory}: no version in {pyproject['tool']['hatch']['version']['path']}"
        raise SystemExit(message)
    return match[1]


def write_metadata(directory: Path, into: Path) -> None:
    """Write the ``.dist-info`` of the project in ``directory``."""
    pyproject = tomllib.loads((directory / "pyproject.toml").read_text(encoding="utf-8"))
    project = pyproject["project"]
    version = version_of(directory, pyproject)
    info = into / f"{re.sub(r'[-_.]+', '_', project['name'])}-{version}.dist-info"
    info.mkdir()
    metadata = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {version}"]
    metadata += [f"Requires-Dist: {Requirement(text)}" for text in project.get("dependencies", ())]
    (info / "METADATA").write_text("\n".join(metadata) + "\n", encoding="utf-8")
    groups = {"console_scripts": project.get("scripts", {}), **project.get("entry-points", {})}
    lines = []
    for group, points in groups.items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items()), ""]
    (info / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")


def main() -> int:
    """Run the interpreter with this script's arguments; its exit status is returned."""
    with tempfile.TemporaryDirectory(prefix="sgljit-checkout-") as temporary:
        directories = projects()
        for directory in directories:
            write_metadata(directory, Path(temporary))
        path = [temporary, *map(str, directories), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run([sys.executable, *sys.argv[1:]], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
