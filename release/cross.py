"""Compile for the CPU of another machine what calls of families ask for, with a cross compiler.

    python release/cross.py MACHINE COMPILER INTO FAMILY...

Host parts for this machine record what the calls ask for. Nothing that the cross compiler makes is loaded. A source key
has no compiler in it, so the other machine computes the same key for the same sources. INTO is laid out like a cache,
and like the artifacts that a wheel carries.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from sgljit_core import parallel_compile
from sgljit_core.builds.obtain import obtain
from sgljit_core.builds.recording import Wanted
from sgljit_core.jit.modules import ModuleRequest
from sgljit_core.paths import tvm_ffi_library
from sgljit_core.specs.build import Target
from sgljit_tools.recording.recorder import record


class CrossRequest(ModuleRequest):
    """A request for a module that another machine will load, and this one cannot."""

    def load(self, payload: bytes, name: str) -> None:  # type: ignore[override]
        pass


def main(machine: str, compiler: str, into: str, *families: str) -> None:
    """Record the calls and the samples of families, and compile what they ask for."""
    made_for = subprocess.run([compiler, "-dumpmachine"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    if made_for.partition("-")[0] != machine:
        raise SystemExit(f"{compiler} compiles for {made_for}, not for {machine}")
    found = [record(families, cuda_arch=None, on_cpu=True, samples=samples) for samples in (False, True)]
    for family, text in dict.fromkeys(reason for recording in found for reason in recording.stopped):
        print(f"left out: what an op of {family} asks for: {text}")
    compile_for(machine, compiler, Path(into), dict.fromkeys(one for recording in found for one in recording.wanted))


def compile_for(machine: str, compiler: str, into: Path, wanted: Iterable[Wanted]) -> None:
    """Compile what was asked for on the CPU for a machine. This process compiles nothing else from then on."""
    os.environ["SGLJIT_CXX"] = compiler
    with tempfile.TemporaryDirectory() as scratch:
        # The name of its directory is that on the other machine, as the command that links is written down.
        tvm_ffi = stand_in(compiler, tvm_ffi_library(), Path(scratch, "site-packages", "tvm_ffi", "lib"))

        def ask(one: Wanted) -> CrossRequest:
            if not one.spec.target.name.startswith("cpu-"):
                raise SystemExit(f"{one.spec.label} is not for the CPU alone")
            request = CrossRequest(dataclasses.replace(one.spec, target=Target(f"cpu-{machine}")), into)
            request.tvm_ffi = tvm_ffi
            return request

        parallel_compile(functools.partial(obtain, functools.partial(ask, one)) for one in wanted)


def stand_in(compiler: str, library: Path, directory: Path) -> Path:
    """A library for the machine of a compiler, with the name and the symbols of another one, and no code.

    A link needs no more of the libraries that a process brings, and an index may not have this one for each machine.
    """
    made, source = directory / library.name, directory / "symbols.s"
    directory.mkdir(parents=True)
    command = ["nm", "--dynamic", "--defined-only", "--format=posix", library]
    listed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    source.write_text("".join(f".globl {line.split()[0]}\n{line.split()[0]}:\n" for line in listed.splitlines()))
    subprocess.run([compiler, "-shared", "-nostdlib", f"-Wl,-soname,{made.name}", "-o", made, source], check=True)
    return made


if __name__ == "__main__":
    main(*sys.argv[1:])
