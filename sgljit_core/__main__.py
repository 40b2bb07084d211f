"""``python -m sgljit_core``: the command line; without a command it writes ``.clangd``."""

from __future__ import annotations

import sys

from .cli.main import main

arguments = sys.argv[1:]
main(arguments if arguments and not arguments[0].startswith("--") else ["clangd", *arguments])
