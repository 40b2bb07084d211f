"""The gated activation of a SwiGLU layer: ``sgljit_core.ops["silu_and_mul"]``. Importing it imports nothing else."""
