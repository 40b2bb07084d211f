"""A distribution on disk, as an installer leaves it: what the plugin tests install and break."""

from __future__ import annotations

from pathlib import Path

_PLUGIN = """\
from sgljit_core import KernelFamily, hookimpl

FAMILY = KernelFamily(name="{family}", package="{package}")


@hookimpl
def sgljit_register_kernels(register):
    register(FAMILY)
"""

_OPS = """\
import torch

from .plugin import FAMILY


@FAMILY.op(fake=torch.empty_like)
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2
"""


def install(
    site: Path,
    distribution: str,
    family: str,
    *,
    plugin: str | None = None,
    package: str | None = None,
    group: str = "sgljit.kernels",
    requires: str = "sgljit-core",
    version: str = "1.2.3",
    attribute: str = "",
) -> Path:
    """Write a package and its metadata below ``site``.

    Args:
        plugin: replaces the text of plugin.py.
        attribute: follows the module in the entry point, such as ":FAMILY".
    """
    package = package or distribution.replace("-", "_")
    directory = site / package
    (directory / "csrc").mkdir(parents=True)
    (directory / "__init__.py").touch()
    (directory / "plugin.py").write_text(_PLUGIN.format(family=family, package=package) if plugin is None else plugin)
    (directory / "ops.py").write_text(_OPS)
    info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\nRequires-Dist: {requires}\n"
    )
    (info / "entry_points.txt").write_text(f"[{group}]\n{family} = {package}.plugin{attribute}\n")
    return directory
