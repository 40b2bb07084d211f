"""``sgljit doctor``: what is installed here, and what is wrong with it? It imports neither torch nor a family."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from sgljit_core import paths
from sgljit_core.compilers import nvrtc, toolchain
from sgljit_core.config import settings
from sgljit_core.errors import SgljitError, ToolchainNotFoundError
from sgljit_core.plugins import discovery
from sgljit_tools import installation
from sgljit_tools.cache import admin
from sgljit_tools.environment import inherited_environment

_SHOWN = ("sgljit-core", "sgljit-tools", "torch", "apache-tvm-ffi")


def examine(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Show what is installed, the GPUs, compilers, cache and settings, and each problem with its remedy.

    Exit status 1 if there is a problem.
    """
    facts = report()
    typer.echo(json.dumps(facts, indent=2) if as_json else "\n".join(lines(facts)))
    if facts["problems"]:
        raise typer.Exit(1)


def report(*, asks_scripts: bool = False) -> dict[str, Any]:
    """The facts, as ``--json`` prints them. AMD's compiler is a script, which takes 0.3 s to say its version."""
    problems: list[str] = []
    given = {name: value for name, value in sorted(inherited_environment().items()) if name.startswith("SGLJIT_")}
    facts: dict[str, Any] = {
        "python": {"version": platform.python_version(), "executable": sys.executable},
        "versions": {name: installation.version_of(name) for name in _SHOWN},
        "plugins": _plugins(problems),
        "adapters": _others("sgljit.engines"),
        "extensions": _others("sgljit.extensions"),
        "gpus": _gpus(problems),
        "compilers": _compilers(problems, asks_scripts),
        "cache": _cache(problems),
        # Without what an address may carry as a password or a token.
        "settings": {name: without_secrets(value) if "://" in value else value for name, value in given.items()},
        "docs": str(paths.core_include().parent / "docs"),  # in a wheel and in a checkout
    }
    first = next((gpu["compute_cap"] for gpu in facts["gpus"]), None)
    return {**facts, "target": facts["settings"].get("SGLJIT_CUDA_ARCH") or first, "problems": problems}


def _plugins(problems: list[str]) -> list[dict[str, str]]:
    try:
        claims = [(family, one) for family, all_of_it in discovery.installed().items() for one in all_of_it]
        problems += installation.problems()
    except SgljitError as error:
        problems.append(str(error))
        return []
    return [{"family": family, "distribution": one.distribution, "version": one.version} for family, one in claims]


def _others(group: str) -> list[dict[str, str]]:
    """The entry points of a group, with their distributions."""
    found = discovery.entry_points(group, None)
    return [{"name": one.name, "distribution": one.distribution, "version": one.version} for one in found]


def _gpus(problems: list[str]) -> list[dict[str, str]]:
    """Name, compute capability and driver of each GPU, as nvidia-smi lists them; none without it."""
    fields, program = ("name", "compute_cap", "driver_version"), shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        done = subprocess.CompletedProcess(command, 1, "", str(error))
    if done.returncode != 0:
        problems.append(f"nvidia-smi fails: {done.stdout.strip()} {done.stderr.strip()}; update or restart the driver")
        return []
    return [dict(zip(fields, line.split(", "), strict=False)) for line in done.stdout.splitlines()]


def _compilers(problems: list[str], asks_scripts: bool) -> dict[str, str | None]:
    def line(compiler: toolchain.Compiler) -> str:
        number = re.search(r"\d+\.\d+(\.\d+)?", compiler.version)
        return f"{number[0] if number else compiler.version} ({compiler.path})"

    searches: dict[str, Callable[[], str]] = {
        "c++": lambda: line(toolchain.find_cxx("kernels")),
        "nvrtc": lambda: "{0.version:.4} ({0.library})".format(nvrtc.find_nvrtc("kernels")),  # 13.0, and not its size
        "nvcc": lambda: line(toolchain.find_nvcc("kernels")),
        "hipcc": lambda: line(toolchain.find_hipcc("kernels", asks=asks_scripts)),
    }
    answers: dict[str, str | None] = dict.fromkeys(searches)
    for kind, search in searches.items():
        try:
            answers[kind] = search()
        except ToolchainNotFoundError as error:  # noqa: PERF203 - four
            # nvcc is for the families of load_jit alone, NVRTC for NVIDIA's GPUs, hipcc for AMD's.
            named = {"nvcc": settings().nvcc, "hipcc": settings().hipcc}
            if kind == "c++" or named.get(kind):
                problems.append(f"{error.tool} not found. {error.remedy}")
        except SgljitError as error:  # a setting that cannot be read
            if str(error) not in problems:
                problems.append(str(error))
    return answers


def _cache(problems: list[str]) -> dict[str, Any]:
    found = {"path": str(admin.root()), "artifacts": 0, "bytes": 0, "damaged": 0, "is_trusted": True}
    try:
        entries = admin.entries()
    except (SgljitError, OSError) as error:
        problems.append(str(error))
        return {**found, "is_trusted": False}
    damaged = sum(entry.manifest is None for entry in entries)
    if damaged:
        problems.append(f"{damaged} artifacts in the cache are damaged; remove them with: sgljit cache prune")
    return {**found, "artifacts": len(entries), "bytes": sum(one.size for one in entries), "damaged": damaged}


def without_secrets(address: str) -> str:
    """An address without user, password, query and fragment."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return "***"
    _, user, host = parts.netloc.rpartition("@")
    hidden = {"netloc": f"***@{host}" if user else host, "query": parts.query and "***", "fragment": ""}
    return parts._replace(**hidden).geturl()


def lines(facts: dict[str, Any]) -> list[str]:
    """The facts on one screen."""

    def listed(kind: str) -> str:
        return ", ".join(f"{one['distribution']} {one['version']}" for one in facts[kind]) or "none"

    gpus = ", ".join(f"{one['name']} ({one['compute_cap']}), driver {one['driver_version']}" for one in facts["gpus"])
    cache = facts["cache"]
    size = f"{cache['artifacts']} artifacts, {cache['bytes'] / 1e6:.1f} MB, {cache['damaged']} damaged"
    rows = [
        ("python", f"{facts['python']['version']} ({facts['python']['executable']})"),
        ("versions", ", ".join(f"{name} {version or 'not installed'}" for name, version in facts["versions"].items())),
        ("GPUs", f"{gpus or 'none'}; target: {facts['target'] or 'none'}"),
        *((kind, found or "not found") for kind, found in facts["compilers"].items() if found or kind != "hipcc"),
        ("cache", f"{cache['path']}: {size}{'' if cache['is_trusted'] else ', not trusted'}"),
        ("remote", facts["settings"].get("SGLJIT_REMOTE", "none")),
        *((kind, listed(kind)) for kind in ("plugins", "adapters", "extensions")),
        ("docs", facts["docs"]),
        ("settings", ", ".join(f"{name}={value}" for name, value in facts["settings"].items()) or "the defaults"),
    ]
    problems = [f"problem: {text}" for text in facts["problems"]] or ["no problems"]
    return [*(f"{name:<11} {text}" for name, text in rows), *problems]
