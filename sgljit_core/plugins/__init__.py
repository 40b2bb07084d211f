"""Plugins: which are installed, and the hooks by which builds ask them."""
