"""Kernel families: what plugins declare, and what users see."""
