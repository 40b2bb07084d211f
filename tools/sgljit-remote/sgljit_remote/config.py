"""Which settings of the remote does the environment have? Only this module reads it, anew at each call."""

from __future__ import annotations

import base64
import json
import math
import os
import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from sgljit_core.errors import ConfigError


class Settings(NamedTuple):
    """One reading of the environment.

    Attributes:
        url: ``SGLJIT_REMOTE``: where compiled kernels are looked for after the local tiers: an absolute path, or a URL
            such as ``https://``, ``oci://`` or another that fsspec opens. By default there is no remote.
        is_writable: ``SGLJIT_REMOTE_MODE``: ``readwrite`` publishes what this machine compiles; by default ``read``.
        timeout: ``SGLJIT_REMOTE_TIMEOUT``: the seconds that one artifact may take, with all attempts; by default 2.
        unsigned: ``SGLJIT_REMOTE_UNSIGNED``: ``1`` accepts a remote without a signature, where no key is trusted.
        trusted_keys: ``SGLJIT_TRUSTED_KEYS``: public keys, as files or directories of ``*.pub``, separated by ``:``.
            An artifact of a remote must be signed by one of them.
        signing_key: ``SGLJIT_SIGNING_KEY``: the file of the private key that signs what is published.
        may_compile: not with ``SGLJIT_JIT=error``: no other machine need wait for this one then.
    """

    url: str
    is_writable: bool = False
    timeout: float = 2.0
    unsigned: bool = False
    trusted_keys: tuple[Path, ...] = ()
    signing_key: Path | None = None
    may_compile: bool = True


def url() -> str:
    """The remote that is named, if there is one."""
    return os.environ.get("SGLJIT_REMOTE", "").strip().rstrip("/")


def trusted_keys() -> tuple[Path, ...]:
    """The files and directories of the keys that are trusted."""
    return tuple(map(Path, filter(None, os.environ.get("SGLJIT_TRUSTED_KEYS", "").strip().split(os.pathsep))))


def settings(named: str = "") -> Settings:
    """Read the environment, but for the remote that is ``named``. Raises ConfigError for an invalid variable."""
    given = {name: value.strip() for name, value in os.environ.items() if value.strip()}
    named = named.rstrip("/") or url()
    if "://" not in named and not named.startswith("/"):
        raise ConfigError(
            f"SGLJIT_REMOTE must be a URL, such as https://host/kernels, or an absolute path; got {named!r}"
        )
    scheme, _, rest = named.partition("://")
    try:
        urlsplit(named)
    except ValueError:  # whose text may have a password
        shown = f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"
        raise ConfigError(
            "SGLJIT_REMOTE must be a URL with a valid host, such as https://host/kernels or https://[::1]/kernels; "
            f"got {shown!r}"
        ) from None
    if scheme.lower() == "file" and rest.partition("/")[0] not in ("", "localhost"):
        raise ConfigError(
            f"SGLJIT_REMOTE is {named!r}; a file URL cannot name a host, here {rest.partition('/')[0]!r}: "
            f"write file:///{rest} for the directory /{rest}"
        )
    key = given.get("SGLJIT_SIGNING_KEY")
    return Settings(
        url=named,
        is_writable=_one_of(given, "SGLJIT_REMOTE_MODE", ("read", "readwrite")) == "readwrite",
        timeout=_seconds(given, "SGLJIT_REMOTE_TIMEOUT"),
        may_compile=given.get("SGLJIT_JIT", "").lower() != "error",
        unsigned=_one_of(given, "SGLJIT_REMOTE_UNSIGNED", ("0", "1")) == "1",
        trusted_keys=trusted_keys(),
        signing_key=Path(key) if key else None,
    )


def docker_user(host: str) -> str:
    """The "user:password" of a registry, as ``docker login`` writes it to ``$DOCKER_CONFIG/config.json``; "" for none.

    Programs that keep passwords (``credsStore``) are not run.
    """
    place = os.environ.get("DOCKER_CONFIG", "").strip() or os.path.expanduser("~/.docker")  # noqa: PTH111 - raises nothing
    try:
        entry = json.loads((Path(place) / "config.json").read_bytes())["auths"][host]
        return base64.b64decode(entry["auth"]).decode()
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return ""


def triton_cache() -> Path:
    """Where Triton keeps what it compiled."""
    home = os.environ.get("TRITON_HOME") or os.path.expanduser("~/")  # noqa: PTH111 - raises nothing
    return Path(os.environ.get("TRITON_CACHE_DIR") or Path(home) / ".triton" / "cache").absolute()


def inductor_cache() -> Path:
    """Where torch.compile keeps what it compiled."""
    import getpass
    import tempfile

    try:
        user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    except (KeyError, OSError):
        user = str(os.getuid())
    default = Path(tempfile.gettempdir()) / f"torchinductor_{user}"
    return Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or default).absolute()


def _one_of(given: dict[str, str], name: str, values: tuple[str, ...]) -> str:
    """The value of a variable, one of ``values``; the first if it is unset."""
    value = given.get(name, values[0]).lower()
    if value not in values:
        raise ConfigError(f"{name} must be one of {', '.join(values)}; got {value!r}")
    return value


def _seconds(given: dict[str, str], name: str) -> float:
    text = given.get(name, "2")
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= 3600:
        raise ConfigError(f"{name} must be a number of seconds, more than 0 and at most 3600; got {text!r}")
    return seconds
