"""Which artifacts are kept, under which keys, and where."""
