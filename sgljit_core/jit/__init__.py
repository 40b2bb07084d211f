"""Modules, and the kernels and deferred functions of host parts: the code that can be asked for."""
