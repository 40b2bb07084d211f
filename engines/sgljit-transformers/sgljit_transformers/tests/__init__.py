"""Tests of sgljit-transformers; they need transformers and kernels: ``pytest --pyargs sgljit_transformers``."""
