"""How much faster do compiled models of transformers run? The bench of sgljit-compile measures it.

``python -m sgljit_transformers.bench.compiled --output bench/results/compiled.md`` takes the options of
``python -m sgljit_compile.bench.compiled``.
"""

from __future__ import annotations

import importlib
import sys


def main() -> None:
    """Run it; where it is not installed, an error says how to get it."""
    try:
        bench = importlib.import_module("sgljit_compile.bench.compiled")
    except ModuleNotFoundError as error:
        sys.exit(f"the bench is sgljit_compile's, and there is {error}: pip install 'sgljit-compile[test]'")
    bench.main()


if __name__ == "__main__":
    main()
