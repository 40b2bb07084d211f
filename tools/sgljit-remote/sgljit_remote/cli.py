"""``sgljit-remote``: fill a remote from a cache, a cache from a remote, and make keys."""

from __future__ import annotations

import argparse
import os
import re
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

from sgljit_core import log, paths
from sgljit_core.errors import ConfigError, SgljitError

from . import config, signing, transfer
from .counts import refused
from .errors import RefusedObjectError, UntrustedRemoteError
from .remote import Remote
from .transfer import Choice

_SECONDS = 60.0  # for one object, where nobody waits for a kernel
_MOST_SECONDS = 86400
_MOST_DAYS = 36500


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sgljit-remote", description="Share compiled kernels through a remote store.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("push", "Publish the artifacts of the cache, each by itself and in an archive for each family and target."),
        ("pull", "Put the artifacts of archives into the cache."),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("families", nargs="*", metavar="FAMILY", help="such as norm; by default all")
        command.add_argument("--target", action="append", default=[], help="such as sm_90a; may be repeated")
        command.add_argument("--name", default="", help="one archive of this name, such as that of a model")
        command.add_argument("--remote", default="", metavar="URL", help="by default SGLJIT_REMOTE")
        command.add_argument("--directory", type=Path, help="a root other than the user's own cache")
        command.add_argument("--timeout", type=float, default=_SECONDS, help="seconds for each object (60)")
        command.add_argument("--dry-run", action="store_true", help="only list what would be done")
        if name == "push":
            command.add_argument("--replace", action="store_true", help="also what is there, to sign it anew")
            command.add_argument("--sign", type=Path, metavar="KEY", help="by default SGLJIT_SIGNING_KEY")
    for name, text in (
        ("export", "Write the artifacts of the cache to a file, which `import` verifies."),
        ("import", "Put the artifacts of such a file into the cache, if a trusted key has signed them."),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("file", type=Path)
        command.add_argument("--directory", type=Path, help="a root other than the user's own cache")
        if name == "export":
            command.add_argument("families", nargs="*", metavar="FAMILY", help="such as norm; by default all")
            command.add_argument("--target", action="append", default=[], help="such as sm_90a; may be repeated")
            command.add_argument("--sign", type=Path, metavar="KEY", help="by default SGLJIT_SIGNING_KEY")
    keys = commands.add_parser("key", help="Make a key.", description="Make a key.").add_subparsers(
        dest="key_command", required=True
    )
    text = "Write a new private key, and beside it FILE.pub, the public key that others trust."
    new = keys.add_parser("new", help=text, description=text)
    new.add_argument("file", type=Path)
    new.add_argument("--days", type=int, help="how long the key is valid; by default without end")
    return parser


def _new_key(given: argparse.Namespace) -> int:
    print(new_key(given.file, given.days))
    return 0


def new_key(file: Path, days: int | None) -> str:
    """Make a key that is valid for so many days, or without end; what to say. Raises ConfigError and KeyFileError."""
    if days is not None and not 0 < days <= _MOST_DAYS:
        raise ConfigError(f"--days takes a number from 1 to {_MOST_DAYS}; got {days}")
    until = datetime.now(timezone.utc).date() + timedelta(days=days) if days else None
    public = signing.new_key(file, until)
    return f"wrote {file}, which signs (keep it secret), and {public}, which others name in SGLJIT_TRUSTED_KEYS"


def _opened(given: argparse.Namespace) -> tuple[Remote, Path, Choice]:
    if not (given.remote or config.url()):
        raise ConfigError("no remote is named: set SGLJIT_REMOTE to a URL, or give --remote URL")
    check_name(given.name)
    if not 0 < given.timeout <= _MOST_SECONDS:
        most = f"at most {_MOST_SECONDS}"
        raise ConfigError(f"--timeout takes a number of seconds, more than 0 and {most}; got {given.timeout:g}")
    key = getattr(given, "sign", None)
    settings = config.settings(given.remote)
    settings = settings._replace(timeout=given.timeout, signing_key=key or settings.signing_key)
    root = (given.directory or paths.cache_root()).absolute()
    return Remote(settings), root, Choice([name.replace("-", "_") for name in given.families], given.target)


def check_name(name: str) -> None:
    """Raise ConfigError: an archive cannot have this name."""
    if name and not re.fullmatch(r"[\w-]{1,100}", name, re.ASCII):
        raise ConfigError(f"--name takes letters, digits, '-' and '_'; got {name!r}")


def _push(given: argparse.Namespace) -> int:
    remote, root, choice = _opened(given)
    return push(remote, choice, given.name, root, dry_run=given.dry_run, replace=given.replace)


def push(
    remote: Remote, choice: Choice, name: str, root: Path | None = None, *, dry_run: bool, replace: bool = False
) -> int:
    """Publish the artifacts of a root, by default the cache, and say so; the exit status.

    Raises ConfigError: there is none; SgljitError: some are damaged; and as ``transfer.push``.
    """
    check_name(name)
    root = root or paths.cache_root()
    count = transfer.push(remote, root, choice, name, dry_run=dry_run, progress=print, replace=replace)
    if count == 0:
        raise ConfigError(
            f"nothing to push: {root} holds no such artifact; `sgljit cache list` lists those that it has"
        )
    print(f"{count} artifacts {'would be' if dry_run else 'are'} in {remote.store.shown}")
    _fail_if_damaged()
    return 0


def _fail_if_damaged() -> None:
    if log.was_said("artifact_damaged"):
        raise SgljitError("some artifacts are damaged and left out; see the warnings, and `sgljit cache prune` them")


def _pull(given: argparse.Namespace) -> int:
    remote, root, choice = _opened(given)
    return pull(remote, choice, given.name, root, dry_run=given.dry_run)


def pull(remote: Remote, choice: Choice, name: str, root: Path | None = None, *, dry_run: bool) -> int:
    """Put the artifacts of archives into a root, by default the cache, and say so; the exit status.

    Raises ConfigError: a name and families are given; and as ``transfer.pull``.
    """
    check_name(name)
    if name and (choice.families or choice.targets):
        raise ConfigError("--name is one archive, which is pulled whole: leave out the families and --target")
    root = root or paths.cache_root()
    pulled = transfer.pull(remote, root, choice, name, dry_run=dry_run, progress=print)
    print(f"{pulled.new} artifacts are new in {root}, {pulled.there} were there, {pulled.refused} were refused")
    return 1 if pulled.refused else 0


def _export(given: argparse.Namespace) -> int:
    root, key = (given.directory or paths.cache_root()).absolute(), given.sign or _keys(given).signing_key
    choice = Choice([name.replace("-", "_") for name in given.families], given.target)
    count = transfer.export_file(given.file, root, choice, signing.private_key(key) if key else None)
    if count == 0:
        raise ConfigError(f"nothing to export: {root} holds no such artifact; `sgljit cache list` lists what it has")
    print(f"{count} artifacts are in {given.file}, {f'signed with {key}' if key else 'not signed'}")
    _fail_if_damaged()
    return 0


def _import(given: argparse.Namespace) -> int:
    settings, root = _keys(given), (given.directory or paths.cache_root()).absolute()
    try:
        imported = transfer.import_file(given.file, root, transfer.keys_for(given.file, settings))
    except (RefusedObjectError, UntrustedRemoteError) as error:
        refused(str(given.file), str(error))
        raise
    print(f"{imported.new} artifacts are new in {root}, {imported.there} were there, {imported.refused} were refused")
    return 1 if imported.refused else 0


def _keys(given: argparse.Namespace) -> config.Settings:
    """The settings of keys; the file stands for the remote."""
    return config.settings(str(given.file.absolute()))


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. An error gives a message on stderr and exit status 1, not a traceback; Ctrl-C gives 130."""
    given = _parser().parse_args(arguments)
    commands = {"push": _push, "pull": _pull, "export": _export, "import": _import, "key": _new_key}
    try:
        status = commands[given.command](given)
        sys.stdout.flush()
    except KeyboardInterrupt:
        status = 130
    except BrokenPipeError:  # nobody reads any more, as behind `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes what is left
        status = 1
    except (SgljitError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        status = 1
    sys.exit(status)
