"""``sgljit new``: a distribution of kernels to begin with, complete and right.

Its templates lie below ``new_files/``: ``all`` for all roads, the others for one, whose files replace those of ``all``.
PACKAGE and OP in a path stand for names; no header of the system is called OP_kernel.h, which it would hide. A failure
leaves nothing behind: names are checked first, and the distribution is moved to its place whole.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
import tempfile
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from sgljit_core import __version__
from sgljit_core.compilers import arch
from sgljit_core.families import registry
from sgljit_core.plugins import discovery
from sgljit_core.plugins.origin import NAMES_OF_PYTORCH
from sgljit_tools.errors import NewDistributionError

from .clangd import configuration

TEMPLATES = Path(__file__).resolve().parent / "new_files"

# A function of such a name would hide what a file of the distribution means by it.
NAMES_OF_TEMPLATES = {"attributes", "bench", "cache_once", "csrc", "load_module", "make_cpp_args"}
NAMES_OF_TEMPLATES |= {"kernels", "ops", "plugin", "reference", "tests", "tl", "torch", "triton"}


class Road(str, Enum):
    """How the kernels are compiled; architecture.md says when to take which."""

    VARIANTS = "variants"
    LOAD_JIT = "load_jit"
    TRITON = "triton"


def new_distribution(
    project: Annotated[str, typer.Argument(help="The name to pip install by, such as acme-kernels.")],
    family: Annotated[str, typer.Option(help='The family: users write ops["FAMILY"].')],
    op: Annotated[str, typer.Option(help="The first op: users write ops[...].OP.")],
    road: Annotated[Road, typer.Option(help="NVRTC at a kernel's first launch, a module by nvcc, or Triton.")] = (
        Road.VARIANTS
    ),
) -> None:
    """Write a distribution with one op into a new directory: a start that passes `sgljit test` as it is.

    tutorial.md goes on from there; `sgljit doctor` shows where the docs are.
    """
    _check(project, family, op)
    into = Path(project)
    try:
        _write(into, files(project, family, op, road))
    except OSError as error:
        raise NewDistributionError(f"{into.absolute()} cannot be written, and is not there: {error}") from error
    typer.echo(
        f"wrote {into}/, with the family {family} and its op {op}. Next:\n"
        f'  pip install --editable "./{into}[test]"\n'
        f"  sgljit test {family}"
    )


def files(project: str, family: str, op: str, road: Road) -> dict[str, str]:
    """The files of a distribution by their place in it. Writes nothing, and checks no name."""
    package = _package(project)
    major, minor = map(int, __version__.split(".")[:2])
    names = {
        "project": project,
        "package": package,
        "family": family,
        "op": op,
        "functor": "".join(map(str.capitalize, op.split("_"))),
        "namespace": f"{family}_kernels",  # as no name of the C library, nor a word of C++
        "oldest": f"{major}.{minor}",
        "next": f"{major}.{minor + 1}",
    }
    triton, bounds = road is Road.TRITON, f">={names['oldest']},<{names['next']}"
    names["compilers"] = '"sgljit-triton[compiler]"' if triton else '"sgljit-core[cuda]"'
    names["requires"] = f'"sgljit-triton{bounds}", ' if triton else ""
    names["test_requires"] = f', "numpy>=1.26", "sgljit-triton[compiler]{bounds}"' if triton else ""
    found = {}
    for root in (TEMPLATES / "all", TEMPLATES / road.value):
        for file in root.rglob("*.in"):
            place = file.relative_to(root).as_posix().removesuffix(".in").replace("PACKAGE", package).replace("OP", op)
            found[place] = Template(file.read_text(encoding="utf-8")).substitute(names)
    return found


def _package(project: str) -> str:
    """The package of a project, by its name."""
    return re.sub(r"[-_.]+", "_", project).lower()


def _check(project: str, family: str, op: str) -> None:
    """Refuse names that are invalid, and names that are taken."""
    package = _package(project)
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", project):
        form = "letters, digits, '-', '_' and '.', the first and last a letter or digit, such as acme-kernels"
        raise NewDistributionError(f"project name {project!r}: expected {form}")
    if not package.isidentifier() or keyword.iskeyword(package) or package in sys.stdlib_module_names:
        raise NewDistributionError(
            f"project name {project!r}: its package would be {package!r}, which cannot be imported or is Python's own; "
            f"choose another, such as acme-kernels"
        )
    for kind, name in (("family", family), ("op", op)):
        if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or keyword.iskeyword(name):
            form = "lower-case words with '_' between them, such as row_sum, and no keyword of Python"
            raise NewDistributionError(f"{kind} name {name!r}: expected {form}")
    for taken, why in (
        (NAMES_OF_TEMPLATES, "is used in the files of the distribution itself"),
        (NAMES_OF_PYTORCH, f"is an attribute of PyTorch's own in torch.ops.sgljit_{family}"),
    ):
        if op in taken:
            raise NewDistributionError(f"op name {op!r} {why}; choose another, such as {op}_rows")
    claims = discovery.installed().get(family)
    if provider := claims[0] if claims else registry.first_party(family):
        raise NewDistributionError(
            f"family name {family!r} is that of {provider}; two distributions of one family cannot be used together, "
            f"so choose another"
        )
    if (found := importlib.util.find_spec(package)) is not None:
        place = found.origin or ", ".join(found.submodule_search_locations or ())
        raise NewDistributionError(
            f"project name {project!r}: its package {package!r} is there already, in {place}; choose another"
        )
    if Path(project).exists():
        raise NewDistributionError(
            f"{Path(project).absolute()} exists, and is kept; choose another name or another working directory"
        )


def _write(into: Path, texts: Mapping[str, str]) -> None:
    """Make a directory with these files, and for C++ a ``.clangd`` with this machine's paths; whole or not at all."""
    if any("/csrc/" in place for place in texts):
        # A question for the device would take the import of torch: seconds, in a command that takes none.
        texts = {**texts, ".clangd": configuration(arch.parse_cuda_target("9.0", "the editor's"))}
    with tempfile.TemporaryDirectory(prefix=".sgljit-new-", dir=Path.cwd()) as beside:
        whole = Path(beside, into.name)
        for place, text in texts.items():
            file = whole / place
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        whole.rename(into)
