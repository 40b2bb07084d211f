"""Kernel families: finding their plugins, binding their ops."""
