"""Targets, builds and template arguments: data that checks itself."""
