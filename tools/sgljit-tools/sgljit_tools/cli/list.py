"""``sgljit list``: which kernel families are installed, and which ops has one of them?"""

from __future__ import annotations

import inspect
import json
import re
from typing import Annotated

import typer

from sgljit_core import __version__, ops
from sgljit_core.families import loading
from sgljit_core.plugins import discovery
from sgljit_tools import installation

_COLUMNS = ("family", "distribution", "version", "module")


def list_families(
    family: Annotated[str | None, typer.Argument(help="List the ops of this family, which is imported.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit status 1 if there is a problem.")] = False,
) -> None:
    """List the installed kernel families, with distribution and version, and the plugins' problems."""
    if family is not None:
        _list_ops(family, as_json=as_json)
        return
    found = [(name, one) for name, claims in discovery.installed().items() for one in claims]
    rows = [dict(zip(_COLUMNS, (n, p.distribution, p.version, p.module), strict=True)) for n, p in found]
    problems = installation.problems()
    if as_json:
        typer.echo(json.dumps({"core": __version__, "families": rows, "problems": problems}, indent=2))
    else:
        from rich.console import Console
        from rich.table import Table

        table, console = Table(*_COLUMNS, title=f"sgljit-core {__version__}"), Console()
        for row in rows:
            table.add_row(*row.values())
        console.print(table)
        for problem in problems:
            console.print(f"problem: {problem}", markup=False, highlight=False, soft_wrap=True)
    if strict and problems:
        raise typer.Exit(1)


def _list_ops(family: str, *, as_json: bool) -> None:
    found = []
    for op in loading.load(ops[family].__name__).declared().values():
        # Annotations stand there as they are written, but for torch's name.
        signature = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(op.function)).replace("torch.", ""))
        found.append({"op": op.name, "signature": signature, "place": op.place})
    typer.echo(json.dumps(found, indent=2) if as_json else "\n".join(one["op"] + one["signature"] for one in found))
