"""Benchmarks of the adapter, each a script: ``python -m sgljit_transformers.bench.bench_eager``."""
