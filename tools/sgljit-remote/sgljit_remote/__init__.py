"""A remote tier of the artifact cache: compiled kernels from a store that machines share.

The core asks ``plugin`` for what no local tier has, and reports to it what was compiled. ``config`` reads the settings;
``stores`` reads and writes objects, those of web servers by ``web`` and those of registries of container images by
``registry``; ``asking`` bounds how long that takes; ``objects`` packs artifacts, and verifies them; ``signing`` says
whose they are; ``index`` says what archives hold, and ``archives`` adds to them; ``remote`` puts these together for one
process; ``transfer`` is for many artifacts at once, and ``cli`` for people. ``ranks`` hands artifacts from one rank of
a job to the others, and ``handed`` is what the hooks know of that. ``counts`` counts all of it. ``lease`` lets one of
several machines compile for all. ``triton`` is the remote cache of Triton itself. ``bundles`` puts the compiled
artifacts of other libraries, whose directories and keys ``parts`` knows, into a file with ours. ``carried`` verifies
what wheels carry. ``lock`` says which plugins may be imported, ``owned`` whether another user could have written a
file, and ``commands`` are those that ``sgljit`` gets.
"""

from typing import TYPE_CHECKING

from sgljit_core.lazy import attributes

from ._version import __version__

__all__ = ["Directory", "Stats", "__version__", "bundle", "stats", "unbundle", "warm_up"]

if TYPE_CHECKING:
    from .bundles import bundle, unbundle
    from .counts import Stats, stats
    from .parts import Directory
    from .ranks import warm_up
else:
    _NAMES = {
        "bundles": ["bundle", "unbundle"],
        "counts": ["Stats", "stats"],
        "parts": ["Directory"],
        "ranks": ["warm_up"],
    }
    __getattr__, __dir__ = attributes(__name__, _NAMES)
