"""Benchmarks of the family, each a script: ``python -m sgljit_norm.bench.bench_norm``."""
