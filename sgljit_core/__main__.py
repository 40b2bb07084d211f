"""``python -m sgljit_core``: the command line of sgljit-tools; without a command it writes ``.clangd``."""

from __future__ import annotations

import importlib.util
import sys

if importlib.util.find_spec("sgljit_tools") is None:
    sys.exit('error: the sgljit command comes with: pip install "sgljit-core[tools]"')

from sgljit_tools.cli.main import main

arguments = sys.argv[1:]
main(arguments if arguments and not arguments[0].startswith("--") else ["clangd", *arguments])
