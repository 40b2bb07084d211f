"""Benchmarks of the backend, each a script: ``python -m sgljit_compile.bench.compiled``."""
