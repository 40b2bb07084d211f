"""Launches and first calls of Triton kernels, beside those of C++ kernels: ``python -m sgljit_triton.bench``."""
