"""The benchmark of the family, a script: ``python -m sgljit_kvcache.bench``."""
