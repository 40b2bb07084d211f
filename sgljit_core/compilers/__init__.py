"""Finding compilers, running them, and tracking the files that they read."""
