"""``sgljit wheel``: make a plugin's wheel carry what its users would have to compile.

A pure wheel is unpacked, what its families declare is built beside their sources (``prebuilt/``), and it is packed
again for this platform. What is carried is found by its key like any artifact: it serves where the sources and the
core's headers are those that it was built from, and is passed over where they are not.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from sgljit_core.builds.parallel import parallel_compile
from sgljit_core.cache import admin as cache
from sgljit_core.cache import store
from sgljit_core.compilers.arch import override_target
from sgljit_core.config import inherited_environment
from sgljit_core.errors import SgljitError, WheelError
from sgljit_core.families import discovery, registry
from sgljit_core.paths import CARRIED, package_directory


def add_artifacts_to_wheel(
    wheel: Annotated[Path, typer.Argument(help="A plugin's wheel, as `pip wheel --no-deps` makes it.")],
    cuda_arch: Annotated[list[str], typer.Option(help="An architecture to build for, such as 9.0; may be repeated.")],
    into: Annotated[Path, typer.Option("--into", help="The directory to write to.")] = Path("dist"),
    platform: Annotated[str | None, typer.Option(help="The platform tag; by default this machine's.")] = None,
) -> None:
    """Write a wheel that carries the declared variants of its families, so that its users need no compiler."""
    made = add_artifacts(wheel, cuda_arch, into, platform)
    typer.echo(f"wrote {made.path}, which carries {made.artifacts} artifacts for {' and '.join(made.targets)}")


@dataclass(frozen=True)
class PlatformWheel:
    """A wheel that carries artifacts: how many, and the targets that they are for."""

    path: Path
    artifacts: int
    targets: tuple[str, ...]


def add_artifacts(wheel: Path, cuda_archs: Sequence[str], into: Path, platform: str | None = None) -> PlatformWheel:
    """Write the wheel that carries what ``wheel`` declares, built for some architectures and this machine's CPU.

    Args:
        wheel: a plugin's wheel, as any build backend makes it.
        cuda_archs: such as "9.0"; at least one. Needs no GPU.
        into: the directory to write to.
        platform: the platform tag of the wheel; this machine's by default. To publish on an index that wants a
            manylinux tag, build on the oldest system that the tag stands for and name it here.

    Raises:
        WheelError: the file is no wheel of a plugin whose families declare variants, or nothing came into it.
        CompileError, ToolchainNotFoundError: something cannot be built.
    """
    if not wheel.name.endswith(".whl") or not wheel.is_file():
        raise WheelError(f"{wheel} is not a wheel; make one first: pip wheel --no-deps --wheel-dir dist PROJECT")
    here = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    platform = platform or here
    machine = here.partition("_")[2]
    if not re.fullmatch(rf"(linux|manylinux_2_\d+|musllinux_1_\d+)_{machine}", platform):
        raise WheelError(
            f"platform tag {platform!r}: what is built here serves linux_{machine} or manylinux_2_N_{machine}"
        )
    with tempfile.TemporaryDirectory(prefix="sgljit-wheel-") as scratch:
        unpacked, packed = Path(scratch, "unpacked"), Path(scratch, "packed")
        _wheel("unpack", str(wheel.absolute()), "--dest", str(unpacked), cwd=Path(scratch))
        (content,) = unpacked.iterdir()
        packed.mkdir()
        # A process of its own, in which the wheel's content is what is installed, whatever else there may be. It runs
        # there, since Python imports from the current directory first, and the caller's may hold the plugin's sources.
        code = f"import sys; from {__name__} import main; sys.exit(main(*sys.argv[1:]))"
        environment = inherited_environment(
            PYTHONPATH=os.pathsep.join((str(content), *map(os.path.abspath, sys.path))),
            SGLJIT_CACHE_DIR=str(Path(scratch, "cache")),
            SGLJIT_PREBUILT_PATH="",  # what is found elsewhere would not be in the wheel
            PYTHONDONTWRITEBYTECODE="1",  # the wheel is packed from there
            SGLJIT_JIT="on",  # it is asked for, whatever the environment says of compiling on demand
        )
        _run([sys.executable, "-c", code, wheel.name, str(content), *cuda_archs], cwd=content, environment=environment)
        artifacts = [
            place.relative_to(carried)
            for carried in content.rglob(CARRIED)
            for place in store.artifact_directories(carried)
        ]
        if not artifacts:
            raise WheelError(f"{wheel.name}: nothing was added to it")
        _check_c_library(content, platform)
        _wheel("pack", str(content), "--dest-dir", str(packed), cwd=Path(scratch))
        (pure,) = packed.iterdir()
        _wheel("tags", "--remove", "--platform-tag", platform, str(pure), cwd=Path(scratch))
        (tagged,) = packed.iterdir()
        into.mkdir(parents=True, exist_ok=True)
        targets = sorted({place.parts[0] for place in artifacts})
        return PlatformWheel(Path(shutil.copy(tagged, into)), len(artifacts), tuple(targets))


def prebuild(wheel: str, content: str, *cuda_archs: str) -> None:
    """Build what the families below ``content`` declare, and put it beside their sources.

    Raises:
        WheelError: there is no such family, its package was imported from elsewhere, or nothing was built.
        InvalidFamilyError: it declares no variants.
    """
    inside = Path(content).resolve()
    found = {
        name: claims for name, claims in discovery.installed().items() if claims[0].location.is_relative_to(inside)
    }
    if not found:
        raise WheelError(f"{wheel} registers no kernel family: it has no entry point in the group sgljit.kernels")
    for name, claims in found.items():
        package = discovery.load(name, claims).package
        directory = package_directory(package)
        if not directory.is_relative_to(inside):
            raise WheelError(
                f"{wheel}: the package {package!r} of family {name!r} was imported from {directory}, not from the "
                f"wheel; its name in KernelFamily(package=...) must be that of a package in the wheel"
            )
        for cuda_arch in cuda_archs:
            with override_target(cuda_arch, "--cuda-arch"):
                parallel_compile(registry.declared_variants(name))
        carried = directory / CARRIED
        carried.mkdir(mode=0o700, exist_ok=True)
        if cache.copy(carried, family=name) == 0:
            raise WheelError(f"{wheel}: nothing was built for family {name!r}; a plugin's sgljit_prebuilt_dirs has it")


def _check_c_library(content: Path, platform: str) -> None:
    """A manylinux tag promises that the C library of that version is enough."""
    promised = re.match(r"manylinux_2_(\d+)_", platform)
    if promised is None:
        return
    for library in content.rglob(f"{CARRIED}/**/*.so"):
        needed = max((int(n) for n in re.findall(rb"GLIBC_2\.(\d+)", library.read_bytes())), default=0)
        if needed > int(promised[1]):
            raise WheelError(
                f"platform tag {platform!r}: what was compiled here needs glibc 2.{needed}; build on a system of that "
                f"age, such as the manylinux container, or name manylinux_2_{needed}"
            )


def main(*arguments: str) -> str | None:
    """``prebuild``, whose error becomes the text that a process exits with."""
    try:
        prebuild(*arguments)
    except SgljitError as error:
        return str(error)
    return None


def _wheel(*arguments: str, cwd: Path) -> None:
    """Run the command line of the ``wheel`` package, which is all the interface that it has."""
    if importlib.util.find_spec("wheel") is None:
        raise WheelError('the "wheel" package is needed: pip install "sgljit-core[wheel]"')
    _run([sys.executable, "-m", "wheel", *arguments], cwd=cwd)


def _run(command: list[str], *, cwd: Path, environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        raise WheelError(done.stdout.strip())
