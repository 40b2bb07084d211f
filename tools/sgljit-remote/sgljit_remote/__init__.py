"""A remote tier of the artifact cache: compiled kernels from a store that machines share.

The core asks ``plugin`` for what no local tier has, and reports to it what was compiled. ``config`` reads the settings;
``stores`` reads and writes objects, those of web servers by ``web`` and those of registries of container images by
``registry``; ``asking`` bounds how long that takes; ``objects`` packs artifacts, and verifies them; ``signing`` says
whose they are; ``index`` says what archives hold; ``remote`` puts these together for one process; ``transfer`` is for
many artifacts at once, and ``cli`` for people. ``ranks`` hands artifacts from one rank of a job to the others, and
``handed`` is what the hooks know of that. ``counts`` counts all of it. ``lease`` lets one of several machines compile
for all. ``lock`` says which plugins may be imported, ``owned`` whether another user could have written a file, and
``commands`` are those that ``sgljit`` gets.
"""

from typing import TYPE_CHECKING

from sgljit_core.lazy import attributes

from ._version import __version__

__all__ = ["Stats", "__version__", "stats", "warm_up"]

if TYPE_CHECKING:
    from .counts import Stats, stats
    from .ranks import warm_up
else:
    __getattr__, __dir__ = attributes(__name__, {"counts": ["Stats", "stats"], "ranks": ["warm_up"]})
