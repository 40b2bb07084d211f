"""``sgljit list``."""

from __future__ import annotations

from sgljit_core import __version__
from sgljit_core.plugins import discovery, hooks


def list_families() -> None:
    """List the installed kernel families, with distribution and version, and the plugins' problems.

    Imports no family.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table("family", "distribution", "version", "module", title=f"sgljit-core {__version__}")
    for family, claims in discovery.installed().items():
        for plugin in claims:
            table.add_row(family, plugin.distribution, plugin.version, plugin.module)
    problems = hooks.problems()
    console = Console()
    console.print(table)
    for problem in problems:
        console.print(f"problem: {problem}", markup=False, highlight=False, soft_wrap=True)
