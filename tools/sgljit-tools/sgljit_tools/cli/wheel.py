"""``sgljit wheel``: add compiled artifacts to a plugin's wheel.

It unpacks a pure wheel, builds what the calls of its families ask for beside their sources (``prebuilt/``), and packs
it for this platform. The artifacts are found by their keys, if the sources and the core's headers are unchanged.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path
from typing import Annotated

import typer

from sgljit_core import parallel_compile
from sgljit_core.errors import ParallelCompileError, SourceNotFoundError
from sgljit_core.families import loading
from sgljit_core.machine import private
from sgljit_core.machine.roots import TAG
from sgljit_core.paths import CARRIED, package_directory
from sgljit_core.plugins import discovery
from sgljit_tools.cache import admin as cache
from sgljit_tools.errors import WheelError
from sgljit_tools.recording.process import in_a_process

from .main import added
from .prepare import builds_ahead, target_of


def add_artifacts_to_wheel(
    wheel: Annotated[Path, typer.Argument(help="A plugin's wheel, as `pip wheel --no-deps` makes it.")],
    cuda_arch: Annotated[list[str] | None, typer.Option(help="Such as 9.0; by default the current device's.")] = None,
    samples: Annotated[bool, typer.Option("--samples", help="Add what samples of the ops ask for.")] = False,
    into: Annotated[Path, typer.Option(help="The directory to write to.")] = Path("dist"),
    platform: Annotated[str | None, typer.Option(help="The platform tag; by default this machine's.")] = None,
    sign: Annotated[Path | None, typer.Option(metavar="KEY", help="Sign what it carries with this key.")] = None,
) -> None:
    """Write a wheel that carries what the calls of its families ask for, so that its users need no compiler.

    It builds for the named architectures, without a GPU, and for this machine's CPU. To publish on an index that
    wants a manylinux tag, build on the oldest system that the tag stands for and name it with --platform.
    """
    if not wheel.name.endswith(".whl") or not wheel.is_file() or not zipfile.is_zipfile(wheel):
        raise WheelError(f"{wheel} is not a wheel; make one first: pip wheel --no-deps --wheel-dir dist PROJECT")
    here = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    platform = platform or here
    machine = here.partition("_")[2]
    if not re.fullmatch(rf"(linux|manylinux_2_\d+|musllinux_1_\d+)_{machine}", platform):
        raise WheelError(
            f"platform tag {platform!r}: a build on this machine serves linux_{machine}, manylinux_2_N_{machine} or "
            f"musllinux_1_N_{machine}"
        )
    if sign:
        added("sign", "--sign")([], sign)  # fails before anything is compiled, where the key cannot be used
    with tempfile.TemporaryDirectory(prefix="wheel-", dir=private.process_directory()) as scratch:
        unpacked, packed = Path(scratch, "unpacked"), Path(scratch, "packed")
        _wheel("unpack", str(wheel.absolute()), "--dest", str(unpacked), cwd=Path(scratch))
        (content,) = unpacked.iterdir()
        packed.mkdir()
        # In a process of its own the wheel's content hides an installed version of the plugin.
        in_a_process(
            functools.partial(prebuild, wheel.name, str(content), cuda_arch or [None], samples),
            PYTHONPATH=str(content),
            SGLJIT_CACHE_DIR="{scratch}/cache",
            SGLJIT_PREBUILT_PATH="",  # an artifact that is found elsewhere would not be in the wheel
            PYTHONDONTWRITEBYTECODE="1",  # the wheel is packed from there
            SGLJIT_JIT="on",  # the variable is about compiling on demand, not about this command
        )
        artifacts = [entry for carried in content.rglob(CARRIED) for entry in cache.entries(carried, vouched=True)]
        _check_c_library(content, platform)
        _wheel("pack", str(content), "--dest-dir", str(packed), cwd=Path(scratch))
        (pure,) = packed.iterdir()
        _wheel("tags", "--remove", "--platform-tag", platform, str(pure), cwd=Path(scratch))
        (tagged,) = packed.iterdir()
        if sign:
            added("sign", "--sign")([tagged], sign)
        into.mkdir(parents=True, exist_ok=True)
        # Nobody can put a link where a random name will be.
        made = Path(shutil.copy(tagged, into / f".{tagged.name}.{os.urandom(8).hex()}")).replace(into / tagged.name)
    targets = " and ".join(sorted({artifact.directory.parents[3].name for artifact in artifacts}))
    typer.echo(f"wrote {made}, which carries {len(artifacts)} artifacts for {targets}")


def prebuild(wheel: str, content: str, cuda_archs: list[str] | list[None], samples: bool) -> None:
    """Build what the calls of the families below ``content`` ask for, and put it beside their sources.

    Raises:
        WheelError: there is no such family, its package was imported from elsewhere, or nothing was built.
        SignatureError: a kernel does not take what the host part passes.
    """
    inside = Path(content).resolve()
    found = [name for name, claims in discovery.installed().items() if claims[0].location.is_relative_to(inside)]
    if not found:
        raise WheelError(f"{wheel} registers no kernel family: it has no entry point in the group sgljit.kernels")
    for name in found:
        family = loading.load(name)
        package, directory = family.package, package_directory(family.package)
        if not directory.is_relative_to(inside):
            raise WheelError(
                f"{wheel}: the package {package!r} of family {name!r} was imported from {directory}, not from the "
                f"wheel; its name in KernelFamily(package=...) must be that of a package in the wheel"
            )
        for cuda_arch in cuda_archs:
            try:
                with target_of(cuda_arch):
                    builders = builds_ahead([name], samples=samples)
                    parallel_compile(builders)
            except (SourceNotFoundError, ParallelCompileError) as error:
                lacking = [one for one in getattr(error, "failures", [error]) if isinstance(one, SourceNotFoundError)]
                if not lacking:
                    raise
                advice = _how_to_pack(inside, family.csrc.relative_to(inside))
                raise WheelError(f"{wheel} lacks a source: {str(lacking[0]).partition(';')[0]}. {advice}") from None
            if not builders:
                raise WheelError(
                    f"{wheel}: nothing is known to build for family {name!r}: no call of its ops asks for anything"
                )
        carried = family.csrc.parent / CARRIED  # where builds look, see BuildSpec
        carried.mkdir(mode=0o700, exist_ok=True)
        if cache.copy(carried, family=name) == 0:
            raise WheelError(
                f"{wheel}: nothing was built for family {name!r}, because a plugin's sgljit_prebuilt_dirs provides it"
            )
        (carried / TAG).unlink()  # what is installed is no cache, and backup programs must not leave it out


_PACKING = {
    "hatchling": 'hatchling leaves out what .gitignore names; add artifacts = ["/{where}/**"] below '
    "[tool.hatch.build.targets.wheel]",
    "setuptools": 'setuptools packs Python files alone; add {package} = ["{inside}/**"] below '
    "[tool.setuptools.package-data]",
    "poetry-core": 'poetry leaves out what .gitignore names; add include = [{{ path = "{where}/**", '
    'format = "wheel" }}] below [tool.poetry]',
    "flit": "flit packs all of the package, so {where} must lie inside of {package}",
    "uv": "uv packs all of the package but for wheel-exclude below [tool.uv.build-backend]; shorten that",
}


def _how_to_pack(content: Path, sources: Path) -> str:
    """How the build backend that made a wheel is told to pack its sources; the wheel says which that is."""
    (record,) = content.glob("*.dist-info/WHEEL")
    found = re.search(r"^Generator: ([\w-]+)", record.read_text(encoding="utf-8"), re.MULTILINE)
    backend = found[1].lower() if found else "unknown"
    package, *rest = sources.parts
    advice = _PACKING.get(backend, "let the build backend, {backend}, pack {where}")
    told = advice.format(where=sources, package=package, inside="/".join(rest), backend=backend)
    return f"In pyproject.toml: {told}; then build the wheel anew"


def _check_c_library(content: Path, platform: str) -> None:
    """Check a manylinux tag, which promises that the C library of its version is new enough."""
    promised = re.match(r"manylinux_2_(\d+)_", platform)
    libraries = content.rglob(f"{CARRIED}/**/*.so") if promised else ()
    versions = (int(n) for library in libraries for n in re.findall(rb"GLIBC_2\.(\d+)", library.read_bytes()))
    needed = max(versions, default=0)
    if promised and needed > int(promised[1]):
        raise WheelError(
            f"platform tag {platform!r}: a library compiled here needs glibc 2.{needed}; build on an older system, "
            f"such as the manylinux container, or name manylinux_2_{needed}"
        )


def _wheel(*arguments: str, cwd: Path) -> None:
    """Run the command line of the ``wheel`` package, its only interface."""
    if importlib.util.find_spec("wheel") is None:
        raise WheelError('this command needs the "wheel" package: pip install "sgljit-tools[wheel]"')
    command = [sys.executable, "-m", "wheel", *arguments]
    done = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise WheelError(done.stdout.strip())
