"""A remote tier of the artifact cache: compiled kernels from a store that machines share.

The core asks ``plugin`` for what no local tier has, and reports to it what was compiled. ``config`` reads the settings;
``stores`` reads and writes objects; ``asking`` bounds how long that takes; ``objects`` packs artifacts, and verifies
them; ``signing`` says whose they are; ``index`` says what archives hold; ``remote`` puts these together for one
process; ``transfer`` is for many artifacts at once, and ``cli`` for people.
"""

from ._version import __version__

__all__ = ["__version__"]
