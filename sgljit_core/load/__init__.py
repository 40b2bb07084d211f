"""Verified bytes become a loaded library or a kernel on a device."""
