"""Targets, builds, template arguments and calls, as data that checks itself."""
