"""Finding compilers, running them, and knowing what they read."""
