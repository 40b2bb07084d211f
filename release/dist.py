"""The files of a release, in ``dist/``: sdists and wheels of all distributions, their hashes, and a bill of materials.

They are built from the files of a commit, not from the working tree, and with the commit's time as the time of
every file (``SOURCE_DATE_EPOCH``): whoever builds the same commit with the same backend has the same bytes.

Beside the pure wheel of each kernel family lies one for Linux on this kind of processor, and one for each other kind
that a cross compiler is here for. It carries what the samples and the declared calls of the ops ask for on the CPU, so
that these need no compiler; nothing in it is for CUDA. auditwheel finds out which C library it needs. The same compiler
makes the same bytes. With ``--sign KEY`` what it carries is signed, as machines with ``SGLJIT_TRUSTED_KEYS`` ask for.

Run it by ``make dist``: it uses what the tests use to build distributions and environments (``tests/isolated.py``).
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import isolated

from sgljit_core.cache.manifest import FILE, Manifest
from sgljit_core.paths import CARRIED
from sgljit_remote import carried, signing

HASHES = "SHA256SUMS"
MATERIALS = "sgljit.cdx.json"
# A family's requirements bring it, and a process that loads compiled code has loaded it.
BROUGHT = "libtvm_ffi.so"
HERE = platform.machine()
# The cross compilers as Debian names them; g++-aarch64-linux-gnu is a package of its own.
CROSS_COMPILERS = {name: f"{name}-linux-gnu-g++" for name in ("aarch64", "x86_64") if name != HERE}


def commit_time(commit: str) -> str:
    """The time of a commit, in seconds since 1970."""
    command = ["git", "-C", isolated.ROOT, "log", "-1", "--format=%ct", commit]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def export(commit: str, into: Path) -> None:
    """Write the files of a commit into a directory."""
    archive = subprocess.run(["git", "-C", isolated.ROOT, "archive", commit], check=True, stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x", "-C", into], input=archive.stdout, check=True)


def build(sources: Path, into: Path, epoch: str) -> list[Path]:
    """Build every distribution of the exported sources; the files, sdists and wheels."""
    into.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch}

    def build_one(place: Path) -> None:
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", into, sources / place]
        isolated.run(*command, cwd=into, env=environment)

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        list(pool.map(build_one, isolated.PROJECTS.values()))
    return sorted([*into.glob("*.tar.gz"), *into.glob("*.whl")])


def hashes(files: list[Path]) -> str:
    """Lines as ``sha256sum`` writes them, and ``sha256sum --check`` reads them."""
    return "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)


def installed(sources: Path, files: list[Path], directory: Path, extra: tuple[str, ...] = ()) -> isolated.Environment:
    """An environment with all distributions and what they require."""
    built = [isolated.Built(sources, file, file) for file in files if file.suffix == ".whl"]
    environment = isolated.Environment(directory, built, extra=extra)
    # By name: what is installed from a path has that in its metadata, and is no package of an index.
    environment.pip("install", "--no-index", "--find-links", files[0].parent, *isolated.PROJECTS)
    return environment


def families(files: list[Path], only: list[str] | None = None) -> list[Path]:
    """The pure wheels of the kernel families, or of those with these names."""
    names = {name.replace("-", "_") for name, place in isolated.PROJECTS.items() if place.parts[:1] == ("plugins",)}
    names = {name.replace("-", "_") for name in only} if only else names
    return [file for file in files if file.suffix == ".whl" and file.name.partition("-")[0] in names]


def machines() -> list[str]:
    """The kinds of processors that there is a compiler for: that of this machine, and others. Says what is missing."""
    lacking = {name: compiler for name, compiler in CROSS_COMPILERS.items() if shutil.which(compiler) is None}
    for name, compiler in lacking.items():
        package = f"g++-{name.replace('_', '-')}-linux-gnu"
        print(f"no compiled wheels for {name}: {compiler} is not on PATH (Debian: apt-get install {package})")
    return [HERE, *(CROSS_COMPILERS.keys() - lacking.keys())]


def compile_for_cpu(
    sources: Path, files: list[Path], wheels: list[Path], epoch: str, machines: Sequence[str] = (HERE,)
) -> list[Path]:
    """Beside each of these pure wheels, write one for each kind of processor that carries compiled code; the new files.

    The environment that compiles has all built distributions in it: it compiles the headers that users have.
    """
    with tempfile.TemporaryDirectory() as name:
        environment = installed(sources, files, Path(name, "environment"), extra=("wheel",))
        # As many families at once as there are cores, so one compiler each. A GPU of this machine does not matter.
        variables = {**environment.variables, "SGLJIT_JOBS": "1", "CUDA_VISIBLE_DEVICES": ""}

        def compile_one(wheel: Path, machine: str) -> Path:
            into = Path(name, machine, wheel.name)
            into.mkdir(parents=True)
            return finish(compile_wheel(wheel, machine, into, environment.bin, variables), wheel.parent, epoch)

        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            return sorted(pool.map(compile_one, *zip(*product(wheels, machines), strict=True)))


def compile_wheel(wheel: Path, machine: str, into: Path, programs: Path, variables: dict[str, str]) -> Path:
    """Write a wheel that carries code for a machine: by ``sgljit wheel`` for this one, by ``cross.py`` for another.

    Args:
        programs: where the ``python`` and ``sgljit`` are of an environment with the family in it.
        variables: the environment of these programs.
    """
    if machine == HERE:
        isolated.run(programs / "sgljit", "wheel", wheel, "--samples", "--into", into, cwd=into, env=variables)
        (made,) = into.glob("*.whl")
        return made
    package = wheel.name.partition("-")[0]
    family, run = package.removeprefix("sgljit_"), [sys.executable, "-m", "wheel"]
    unpacked, compiled, target = into / "content", into / "compiled", f"cpu-{machine}"
    script = [programs / "python", Path(__file__).with_name("cross.py")]
    variables = {**variables, "SGLJIT_CACHE_DIR": str(into / "host")}
    isolated.run(*script, machine, CROSS_COMPILERS[machine], compiled, family, cwd=into, env=variables)
    isolated.run(*run, "unpack", wheel, "--dest", unpacked, cwd=into)
    (content,) = unpacked.iterdir()
    shutil.copytree(compiled / target, content / package / CARRIED / target)
    isolated.run(*run, "pack", content, cwd=into)
    isolated.run(*run, "tags", "--remove", "--platform-tag", f"linux_{machine}", into / wheel.name, cwd=into)
    (made,) = into.glob("*.whl")
    return made


def finish(wheel: Path, into: Path, epoch: str) -> Path:
    """Name the C library that a wheel needs in its tag, and take out of it when and where it was compiled."""
    tag, scratch, packed = platform_tag(wheel), wheel.parent / "unpacked", wheel.parent / "packed"
    run = [sys.executable, "-m", "wheel"]
    variables = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
    isolated.run(*run, "unpack", wheel, "--dest", scratch, cwd=wheel.parent)
    (content,) = scratch.iterdir()
    # Where the content of the wheel, the headers of other packages and the files of a build were.
    places = re.compile(rf"/[^\s=]*/(?:{re.escape(content.name)}|site-packages|\.staging/[^\s/]+)/")
    for file in content.rglob(f"{CARRIED}/**/{FILE}"):
        manifest = Manifest.parse(file.read_bytes())
        command = places.sub("", manifest.command)
        file.write_bytes(dataclasses.replace(manifest, command=command, seconds=0.0, created=float(epoch)).dump())
        for one in file.parent.iterdir():
            one.chmod(0o644)
    packed.mkdir()
    isolated.run(*run, "pack", content, "--dest-dir", packed, cwd=wheel.parent, env=variables)
    (untagged,) = packed.iterdir()
    isolated.run(*run, "tags", "--remove", "--platform-tag", tag, untagged, cwd=wheel.parent, env=variables)
    (tagged,) = packed.iterdir()
    return Path(shutil.copy(tagged, into))


def platform_tag(wheel: Path) -> str:
    """The tag of the oldest C and C++ libraries that a wheel runs with, as auditwheel finds it."""
    command = [sys.executable, "-m", "auditwheel", "show", "--json", wheel]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    tag: str = report["sym_tag"]
    # This alone keeps auditwheel from this tag, as it does not know who brings it.
    if report["policy_upgrades"].get(tag) != {"libs_to_eliminate": [BROUGHT]} or report["unsupported_isa"]:
        raise SystemExit(f"{wheel.name} cannot have the tag {tag}: {json.dumps(report, indent=1)}")
    return tag


def write_materials(sources: Path, files: list[Path], output: Path) -> None:
    """Write the bill of materials (CycloneDX) of an environment with all distributions and what they require."""
    with tempfile.TemporaryDirectory() as directory:
        environment = installed(sources, files, Path(directory, "environment"))
        tool = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", "--output-format", "JSON"]
        command = [*tool, "--pyproject", sources / "pyproject.toml", "--output-file", output, environment.python]
        isolated.run(*command, cwd=Path(directory))


def main() -> None:
    """Build everything, and check what an index shows of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--commit", default="HEAD", help="what is released")
    parser.add_argument("--into", type=Path, default=isolated.ROOT / "dist", help="a directory, which is emptied")
    parser.add_argument("--pure", action="store_true", help="leave out the compiled wheels, which take some minutes")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="compiled wheels of these, such as sgljit-norm, alone"
    )
    parser.add_argument("--sign", type=Path, metavar="KEY", help="sign what the compiled wheels carry with this key")
    arguments = parser.parse_args()
    if arguments.sign and arguments.pure:
        parser.error("--sign signs compiled code, and --pure leaves out the wheels that have some")
    key = signing.private_key(arguments.sign.absolute()) if arguments.sign else None  # fails before anything is built
    into: Path = arguments.into.absolute()
    shutil.rmtree(into, ignore_errors=True)
    with tempfile.TemporaryDirectory() as directory:
        sources = Path(directory)
        export(arguments.commit, sources)
        epoch = commit_time(arguments.commit)
        files = build(sources, into, epoch)
        write_materials(sources, files, into / MATERIALS)
        if not arguments.pure:
            wheels = families(files, arguments.only)
            compiled = compile_for_cpu(sources, files, wheels, epoch, machines())
            for wheel in compiled if key else ():
                if not carried.sign_wheel(wheel, key):
                    sys.exit(f"{wheel} has no artifact to sign")
            files = sorted([*files, *compiled])
        (into / HASHES).write_text(hashes(files), encoding="ascii")
        isolated.run(sys.executable, "-m", "twine", "check", "--strict", *files, cwd=into)
    print(f"{len(files)} files, {HASHES} and {MATERIALS} are in {into}")


if __name__ == "__main__":
    main()
