"""Which compiled artifacts does a bundle have, beside sgljit's own, and where may each be used?

A part is a directory of another library, or what torch gives and takes as bytes. Its key says what it depends on: where
any value differs, it is not laid out. A distribution adds parts with an entry point of the group ``sgljit.bundles``: it
names a function without parameters, which returns an iterable of ``Directory``.

No key here has the driver's version: kernels of torch.compile and Triton are machine code, which Triton's own ptxas
made for the chip, and not PTX that a driver compiles. Libraries for the host need their C library.
"""

from __future__ import annotations

import hashlib
import platform
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from sgljit_core.config import settings
from sgljit_core.errors import SgljitError
from sgljit_core.plugins import discovery

from . import config

GROUP = "sgljit.bundles"


@dataclass(frozen=True)
class Directory:
    """A directory in which a library keeps files that it compiled.

    Attributes:
        name: the part's, a Python identifier.
        path: absolute. Where it is missing there is nothing to bundle.
        key: what its files depend on, such as versions, the chip, the driver. Compared value by value.
        may_move: whether another machine can use them. Else the key has the name of this one, too.
        patterns: which files, as ``Path.glob`` takes them.
        names_itself: a pattern of the names of JSON files that hold the directory's path, which is another elsewhere.
    """

    name: str
    path: Path
    key: Mapping[str, str] = field(default_factory=dict)
    may_move: bool = True
    patterns: tuple[str, ...] = ("**/*",)
    names_itself: str = ""

    @property
    def whole_key(self) -> dict[str, str]:
        """Its key, with this machine where it must not move."""
        return {**self.key, **({} if self.may_move else {"machine": platform.node()})}


def directories() -> dict[str, Directory]:
    """The directories of this machine by their names: Triton's, inductor's C++ libraries, and those of plugins.

    Raises SgljitError: a plugin's function does not give directories.
    """
    found = [_triton(), _inductor()]
    for plugin in discovery.entry_points(GROUP, settings().plugins):
        given = list(discovery.import_plugin(plugin)())
        for one in given:
            if not isinstance(one, Directory) or not one.name.isidentifier() or not one.path.is_absolute():
                raise SgljitError(
                    f"{plugin}: {plugin.module} gives {one!r}; expected a Directory with an absolute path"
                )
        found += given
    by_name = {one.name: one for one in found}
    if len(by_name) < len(found):
        raise SgljitError(f"two directories of bundles have one name: {', '.join(sorted(one.name for one in found))}")
    return by_name


def torch_key() -> dict[str, str]:
    """The versions and the chip that ``torch.compiler.save_cache_artifacts`` depends on."""
    return {"torch": _version("torch"), "python": _python(), "gpus": _gpus()}


def _triton() -> Directory:
    key = {"triton": _version("triton"), "python": _python(), "gpus": _gpus()}
    key |= {"machine": platform.machine(), "libc": _libc()}  # of its launchers, which are libraries for the host
    # A file that Triton still writes is one directory deeper.
    return Directory("triton", config.triton_cache(), key, patterns=("*/*",), names_itself="__grp__*.json")


def _inductor() -> Directory:
    """Libraries in C++ that inductor compiled for this very CPU: torch's own artifacts have their sources alone."""
    key = {"torch": _version("torch"), "python": _python(), "cpu": _cpu(), "libc": _libc()}
    return Directory("inductor", config.inductor_cache(), key, patterns=("??/*.cpp", "??/*.h", "??/*.so"))


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "none"


def _python() -> str:
    return str(sysconfig.get_config_var("SOABI"))


def _libc() -> str:
    return " ".join(platform.libc_ver())


def _gpus() -> str:
    """The kinds of GPUs of this machine, with their compute capabilities."""
    import torch

    if not torch.cuda.is_available():
        return "none"
    devices = range(torch.cuda.device_count())
    named = {(torch.cuda.get_device_name(one), torch.cuda.get_device_capability(one)) for one in devices}
    return ", ".join(f"{name} ({major}.{minor})" for name, (major, minor) in sorted(named))


def _cpu() -> str:
    """The machine and what its CPU can do, as ``-march=native`` asks for it."""
    with Path("/proc/cpuinfo").open(encoding="utf-8") as file:
        flags = next((line for line in file if line.startswith(("flags", "Features"))), "")
    known = " ".join(sorted(flags.partition(":")[2].split()))
    return f"{platform.machine()} with flags {hashlib.sha256(known.encode()).hexdigest()[:12]}"
