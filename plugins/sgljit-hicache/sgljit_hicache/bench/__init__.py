"""Benchmarks of the family, each a script: ``python -m sgljit_hicache.bench.bench_hicache``."""
