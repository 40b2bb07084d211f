"""Distributions built from copies of the sources, and environments that hold nothing but what is installed there.

Installing torch takes half a minute and a network. So an environment here borrows what the one that runs the tests
has: the distributions that the wheels' requirements lead to, by symbolic links to their directories, or to their files
where several share a directory. An environment has what its requirements name and nothing else, as if an installer had
filled it.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from functools import cached_property
from importlib import metadata
from pathlib import Path, PurePath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent

# The directory of each distribution of this repository, relative to the root.
PROJECTS = {
    "sgljit-core": Path(),
    **{
        path.parent.name: path.parent.relative_to(ROOT)
        for place in ("tools", "engines", "plugins")
        for path in sorted(ROOT.glob(f"{place}/*/pyproject.toml"))
    },
}

_LEFTOVERS = shutil.ignore_patterns("__pycache__", ".git", ".venv*", ".*_cache", "*.egg-info", "dist")


def run(*command: str | os.PathLike[str], cwd: Path, env: dict[str, str] | None = None, seconds: float = 600) -> str:
    """Run a command; its output. A failure shows the command and all that it printed.

    One that outlasts ``seconds`` is killed with all its children.
    """
    merged = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, cwd=cwd, env=env, start_new_session=True, **merged) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
            ended = str(process.returncode)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            ended = f"killed after {seconds} s"
    assert ended == "0", f"{' '.join(map(str, command))} (in {cwd}): {ended}\n{output}"
    return output


def copy_sources(project: Path, into: Path) -> Path:
    """Copy a project's directory without what tools leave behind."""
    return Path(shutil.copytree(project, into / project.name, ignore=_LEFTOVERS))


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold a lock against the other processes of the run."""
    with file.open("w") as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True)
class Built:
    """A built distribution: where it was built from, and the two files."""

    project: Path
    sdist: Path
    wheel: Path

    @classmethod
    def found(cls, project: Path, directory: Path) -> Built:
        (sdist,) = directory.glob("*.tar.gz")
        (wheel,) = directory.glob("*.whl")
        return cls(project, sdist, wheel)

    @cached_property
    def wheel_files(self) -> set[str]:
        with zipfile.ZipFile(self.wheel) as wheel:
            return {name for name in wheel.namelist() if not name.endswith("/")}

    @cached_property
    def sdist_files(self) -> set[str]:
        """The sdist's files, without the directory that holds them all."""
        with tarfile.open(self.sdist) as sdist:
            return {member.name.partition("/")[2] for member in sdist if member.isfile()}

    @cached_property
    def metadata(self) -> Message:
        with zipfile.ZipFile(self.wheel) as wheel:
            (name,) = (name for name in self.wheel_files if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
            return Parser().parsestr(wheel.read(name).decode())

    @property
    def requirements(self) -> list[Requirement]:
        return [Requirement(line) for line in self.metadata.get_all("Requires-Dist", [])]


def build(project: Path, into: Path) -> Built:
    """Build an sdist, and a wheel from that sdist, with the installed backend."""
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", into, project, cwd=into)
    return Built.found(project, into)


def closure(requirements: Iterable[Requirement], without: set[str]) -> dict[str, metadata.Distribution]:
    """The installed distributions that requirements lead to, by normalised name, but for those in ``without``."""
    found: dict[str, metadata.Distribution] = {}
    seen: set[tuple[str, str]] = set()
    queue = [(requirement, "") for requirement in requirements]
    while queue:
        requirement, extra = queue.pop()
        name = canonicalize_name(requirement.name)
        if name in without or (requirement.marker and not requirement.marker.evaluate({"extra": extra})):
            continue
        if name not in found:
            found[name] = metadata.distribution(name)
        for wanted in {"", *requirement.extras}:
            if (name, wanted) not in seen:
                seen.add((name, wanted))
                queue += [(Requirement(line), wanted) for line in found[name].requires or ()]
    return found


def cuda_compilers() -> list[str]:
    """What an environment must borrow to have the CUDA compilers that this one has beside the system's."""
    installed = {canonicalize_name(distribution.metadata["Name"]) for distribution in metadata.distributions()}
    if "cuda-toolkit" not in installed:
        return []
    return ["cuda-toolkit[cccl,cudart,nvcc,nvrtc]" if "nvidia-cuda-nvcc" in installed else "cuda-toolkit[cudart,nvrtc]"]


@functools.cache
def _owners() -> Counter[str]:
    """How many of the installed distributions have files below each entry of site-packages."""
    everything = (distribution.files or () for distribution in metadata.distributions())
    return Counter(name for files in everything for name in {file.parts[0] for file in files})


class Environment:
    """A virtual environment with what some wheels require, but not yet the wheels, and no trace of the checkout."""

    def __init__(self, directory: Path, wheels: Sequence[Built], *, extra: Sequence[str] = ()) -> None:
        self.directory = directory
        self.bin = directory / "bin"
        self.python = self.bin / "python"
        self.home = directory / "home"
        self.site = Path(sysconfig.get_path("purelib", vars={"base": str(directory)}))
        if directory.exists():  # another process of the run has made it
            return
        venv.create(directory, with_pip=False)
        self.home.mkdir()
        required = [requirement for built in wheels for requirement in built.requirements]
        own = {canonicalize_name(built.metadata["Name"]) for built in wheels}
        for distribution in closure([*required, *map(Requirement, extra)], without=own).values():
            self._borrow(distribution)

    def _borrow(self, distribution: metadata.Distribution) -> None:
        assert distribution.files, f"{distribution.metadata['Name']} has no list of its files"
        own = [file for file in distribution.files if ".." not in file.parts]  # without its commands
        for file in {PurePath(file.parts[0]) if _owners()[file.parts[0]] == 1 else file for file in own}:
            link = self.site / file
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(Path(str(distribution.locate_file(file))).resolve())

    @cached_property
    def variables(self) -> dict[str, str]:
        """A command's environment: this interpreter first on PATH, a home of its own, nothing of the checkout."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SGLJIT_", "PIP_"))}
        return {
            **kept,
            "PATH": os.pathsep.join((str(self.bin), kept.get("PATH", os.defpath))),
            "VIRTUAL_ENV": str(self.directory),
            "HOME": str(self.home),
            "XDG_CACHE_HOME": str(self.home / ".cache"),
        }

    def pip(self, *arguments: str | os.PathLike[str]) -> str:
        """Run the testing environment's pip on this one, without any index."""
        pip = (
            sys.executable,
            "-m",
            "pip",
            "--python",
            self.python,
            "--isolated",
            "--no-cache-dir",
            "--disable-pip-version-check",
        )
        return run(*pip, *arguments, cwd=self.directory, env={**self.variables, "HOME": str(self.directory)})

    def install(self, *wheels: Built) -> None:
        """Install wheels; fails where something that they require is missing."""
        self.pip("install", "--no-index", *(built.wheel for built in wheels))

    def run(self, *command: str | os.PathLike[str]) -> str:
        """Run a command in this environment, outside the checkout."""
        return run(*command, cwd=self.home, env=self.variables)

    def run_code(self, code: str) -> str:
        """Run Python code in this environment, warnings being errors; its output."""
        # No requirement leads to numpy, and torch warns of that when it is imported.
        numpy = "ignore:Failed to initialize NumPy:UserWarning"
        return self.run(self.python, "-W", "error", "-W", numpy, "-c", code)
