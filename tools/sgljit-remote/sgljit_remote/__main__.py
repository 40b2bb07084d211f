"""``python -m sgljit_remote``: the same as ``sgljit-remote``."""

from .cli import main

if __name__ == "__main__":
    main()
