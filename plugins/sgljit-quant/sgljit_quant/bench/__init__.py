"""Benchmarks of the family, each a script: ``python -m sgljit_quant.bench.bench_quant``."""
