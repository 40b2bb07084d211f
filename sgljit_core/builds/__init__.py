"""Answering a request for code: from the cache, or by compiling it."""
