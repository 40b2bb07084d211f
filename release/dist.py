"""The files of a release, in ``dist/``: sdists and wheels of all distributions, their hashes, and a bill of materials.

They are built from the files of a commit, not from the working tree, and with the commit's time as the time of
every file (``SOURCE_DATE_EPOCH``): whoever builds the same commit with the same backend has the same bytes.

Run it by ``make dist``: it uses what the tests use to build distributions and environments (``tests/isolated.py``).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import isolated

HASHES = "SHA256SUMS"
MATERIALS = "sgljit.cdx.json"


def commit_time(commit: str) -> str:
    """The time of a commit, in seconds since 1970."""
    command = ["git", "-C", isolated.ROOT, "log", "-1", "--format=%ct", commit]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def export(commit: str, into: Path) -> None:
    """Write the files of a commit into a directory."""
    archive = subprocess.run(["git", "-C", isolated.ROOT, "archive", commit], check=True, stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x", "-C", into], input=archive.stdout, check=True)


def build(sources: Path, into: Path, epoch: str) -> list[Path]:
    """Build every distribution of the exported sources; the files, sdists and wheels."""
    into.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch}

    def build_one(place: Path) -> None:
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", into, sources / place]
        isolated.run(*command, cwd=into, env=environment)

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        list(pool.map(build_one, isolated.PROJECTS.values()))
    return sorted([*into.glob("*.tar.gz"), *into.glob("*.whl")])


def hashes(files: list[Path]) -> str:
    """Lines as ``sha256sum`` writes them, and ``sha256sum --check`` reads them."""
    return "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)


def write_materials(sources: Path, files: list[Path], output: Path) -> None:
    """Write the bill of materials (CycloneDX) of an environment with all distributions and what they require."""
    with tempfile.TemporaryDirectory() as directory:
        built = [isolated.Built(sources, file, file) for file in files if file.suffix == ".whl"]
        environment = isolated.Environment(Path(directory, "environment"), built)
        # By name: what is installed from a path has that in its metadata, and is no package of an index.
        environment.pip("install", "--no-index", "--find-links", files[0].parent, *isolated.PROJECTS)
        tool = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", "--output-format", "JSON"]
        command = [*tool, "--pyproject", sources / "pyproject.toml", "--output-file", output, environment.python]
        isolated.run(*command, cwd=Path(directory))


def main() -> None:
    """Build everything, and check what an index shows of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--commit", default="HEAD", help="what is released")
    parser.add_argument("--into", type=Path, default=isolated.ROOT / "dist", help="a directory, which is emptied")
    arguments = parser.parse_args()
    into: Path = arguments.into.absolute()
    shutil.rmtree(into, ignore_errors=True)
    with tempfile.TemporaryDirectory() as directory:
        sources = Path(directory)
        export(arguments.commit, sources)
        files = build(sources, into, commit_time(arguments.commit))
        (into / HASHES).write_text(hashes(files), encoding="ascii")
        isolated.run(sys.executable, "-m", "twine", "check", "--strict", *files, cwd=into)
        write_materials(sources, files, into / MATERIALS)
    print(f"{len(files)} files, {HASHES} and {MATERIALS} are in {into}")


if __name__ == "__main__":
    main()
