"""The benchmark of the family, a script: ``python -m sgljit_sampling.bench``."""
