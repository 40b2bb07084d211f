"""The tests of sgljit-remote: servers that fail in every way, and somebody who attacks through them."""
