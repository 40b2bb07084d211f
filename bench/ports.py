"""How many of SGLang's JIT kernels compile as they are?

A public wheel of SGLang is fetched, unpacked and read, not installed. Each call of its `load_jit` that its Python files
make (`ports_calls.py`) is made to ours, with `csrc` at the wheel's sources: for sm_90a, or else for the first of
sm_100a and sm_120a that it compiles for, as some kernels need Blackwell:

    python bench/ports.py [--output bench/results/ports.md] [--only NAME] [VERSION ...]

A kernel is in scope if its files, and the files that they include, include only `sgl_kernel/`, the standard library,
CUDA and tvm-ffi. Headers that SGLang keeps in `sgl_kernel/` for one family of kernels, such as
`sgl_kernel/deepseek_v4/`, are part of these kernels: they come along, as in a port. Needs nvcc and a package index, no
GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sgljit_core import load_jit, override_cuda_arch, paths
from sgljit_core.compilers.arch import cuda_target
from sgljit_core.errors import CompileError, SgljitError
from sgljit_tools.benchmark import results

VERSIONS = ("0.5.7", "0.5.10.post1", "0.5.23")
DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(\w+)[ \t]*(.*)$", re.MULTILINE)
OTHER_PLATFORM = re.compile(r"USE_ROCM|USE_MUSA|__HIP")
AMD = re.compile(r"#error.*(CDNA|ROCm)")
ARCHITECTURES = ((9, 0), (10, 0), (12, 0))
ALLOWED = re.compile(
    r"(sgl_kernel|tvm|dlpack|cuda|cub|cooperative_groups|nv)/|cuda\w*\.h$|(cooperative_groups|math_constants|vector_types"
    r"|nvrtc)\.h$|[a-z_]+$|(std\w+|assert|dlfcn|limits|math)\.h$"
)


def included(text: str) -> Iterator[tuple[str, str]]:
    """The includes of a file as (quote, name), but for those in branches of another platform than CUDA."""
    taken: list[
        bool | None
    ] = []  # for each open condition: whether its branch is CUDA's; None where it does not matter
    for directive, rest in DIRECTIVE.findall(text):
        if directive in ("if", "ifdef", "ifndef"):
            is_negated = directive == "ifndef" or "!" in rest
            taken.append(is_negated if OTHER_PLATFORM.search(rest) else None)
        elif directive in ("else", "elif") and taken[-1] is not None:
            taken[-1] = not taken[-1]
        elif directive == "endif":
            taken.pop()
        elif directive == "include" and False not in taken and rest[:1] in ("<", '"'):
            yield rest[0], re.split(r'[>"]', rest[1:])[0]


@dataclass
class Kernel:
    """A call of `load_jit`, and what came of it.

    Attributes:
        name: the file of the call and the first marker.
        along: the headers of its family.
        target: what it compiles for.
        reason: why it is out of scope or does not compile; "" if it does.
    """

    name: str
    in_scope: bool = True
    along: set[str] = field(default_factory=set)
    target: str = ""
    reason: str = ""


def fetch(version: str, directory: Path) -> Path:
    """The unpacked sources of a release. Raises CalledProcessError where no index has it."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check"]
    subprocess.run([*command, "--dest", str(directory), f"sglang=={version}"], check=True)
    (wheel,) = directory.glob("sglang-*.whl")
    unpacked = directory / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        wanted = ("sglang/jit_kernel/", "sglang/kernels/")
        archive.extractall(unpacked, [name for name in archive.namelist() if name.startswith(wanted)])
    wheel.unlink()
    return unpacked


def calls(unpacked: Path) -> list[dict[str, Any]]:
    """The calls of `load_jit`, as JSON objects."""
    command = [sys.executable, str(Path(__file__).with_name("ports_calls.py")), str(unpacked)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [json.loads(line) for line in lines]


class Release:
    """The sources of a release, and which of its headers are not ours."""

    def __init__(self, unpacked: Path) -> None:
        places = (unpacked / "sglang" / "jit_kernel", unpacked / "sglang" / "kernels" / "jit")
        kernels = next(place for place in places if (place / "csrc").is_dir())
        self.csrc = kernels / "csrc"
        self.along = unpacked / "along"
        self._core = paths.core_include()
        for file in (kernels / "include").rglob("*"):
            name = file.relative_to(kernels / "include")
            if file.is_file() and not (self._core / name).exists():
                (self.along / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, self.along / name)

    def includes(self, files: Sequence[Path], directories: Sequence[Path]) -> tuple[set[str], set[str]]:
        """The headers that are out of scope, and those of a family of kernels, that the files reach."""
        foreign: set[str] = set()
        along: set[str] = set()
        seen: set[Path] = set()
        todo = [file.resolve() for file in files]
        while todo:
            file = todo.pop()
            if file in seen:
                continue
            seen.add(file)
            for quote, name in included(file.read_text(errors="replace")):
                beside = [file.parent] if quote == '"' else []
                found = next((d / name for d in (*beside, *directories) if (d / name).is_file()), None)
                if found is None and not (self._core / name).is_file():
                    if (self.along / name).is_file():
                        found = self.along / name
                        along.add(name)
                    elif not ALLOWED.match(name):
                        foreign.add(name)
                if found is not None:
                    todo.append(found.resolve())
        return foreign, along

    def build(self, call: dict[str, Any]) -> Kernel:
        """Make one call."""
        kernel = Kernel(f"{Path(call['file']).stem}: {call.get('markers', [call['function']])[0]}")
        if "error" in call:
            kernel.in_scope = False
            kernel.reason = f"SGLang itself: {call['error']}"
            return kernel
        keywords = dict(call["keywords"])
        named = [*(keywords.get("cuda_files") or ()), *(keywords.get("cpp_files") or ())]
        directories = [self.csrc, *map(Path, keywords.get("extra_include_paths") or ())]
        files = [self.csrc / name for name in named]
        missing = [str(name) for name, file in zip(named, files, strict=True) if not file.is_file()]
        foreign, kernel.along = (set(), set()) if missing else self.includes(files, directories)
        if missing or foreign:
            kernel.in_scope = False
            kernel.reason = f"the wheel lacks {missing[0]}" if missing else f"needs {_libraries(foreign)}"
            return kernel
        keywords.pop("extra_dependencies", None)
        for language in ("cpp_wrappers", "cuda_wrappers"):
            keywords[language] = [tuple(pair) for pair in keywords.get(language) or ()] or None
        keywords["extra_include_paths"] = [*directories[1:], *([self.along] if kernel.along else [])]
        markers = [re.sub(r"[^\w.+-]", "_", call["markers"][0]), *call["markers"][1:]]
        reasons = []
        for capability in ARCHITECTURES:
            with override_cuda_arch(*capability):
                target = cuda_target().name
                try:
                    load_jit(*markers, csrc=self.csrc, **keywords)
                    kernel.target = target
                    break
                except CompileError as error:
                    line = str(error).partition("\n")[0].partition("does not compile: ")[2]
                    line = re.sub(r"/\S*/(csrc|sgl_kernel)/", "", line)
                    reasons.append(f"{target}: {line}")
                except SgljitError as error:
                    reasons.append(f"{target}: {error}")
        if not kernel.target:
            kernel.reason = "; ".join(reasons)
            kernel.in_scope = AMD.search(kernel.reason) is None
        return kernel


def _libraries(headers: set[str]) -> str:
    names = sorted({f"{name.partition('/')[0]}/" if "/" in name else name for name in headers})
    return ", ".join(names)


def build_all(version: str, directory: Path, only: str = "") -> Iterator[Kernel]:
    """Fetch a release and build its kernels; those whose name contains ``only``."""
    unpacked = fetch(version, directory)
    release = Release(unpacked)
    wanted = [call for call in calls(unpacked) if only in f"{call['file']} {call.get('markers', '')}"]
    with ThreadPoolExecutor(os.cpu_count()) as workers:
        yield from workers.map(release.build, wanted)


def page(releases: Mapping[str, Sequence[Kernel]], output: Path | None) -> str:
    """The results as a page, which is also written to ``output``."""
    summary: list[dict[str, str]] = []
    tables: dict[str, list[dict[str, str]]] = {"": summary}
    for version, kernels in releases.items():
        scope = [kernel for kernel in kernels if kernel.in_scope]
        built = [kernel for kernel in scope if not kernel.reason]
        summary.append(
            {
                "sglang": version,
                "calls of load_jit": str(len(kernels)),
                "in scope": str(len(scope)),
                "built": str(len(built)),
                "of these with headers of their family": str(sum(bool(kernel.along) for kernel in built)),
            }
        )
        for title, rest in (
            ("not built, and why", [kernel for kernel in scope if kernel.reason]),
            ("out of scope, and why", [kernel for kernel in kernels if not kernel.in_scope]),
        ):
            if rest:
                tables[f"{version}: {title}"] = [
                    {"kernel": kernel.name, "reason": kernel.reason.replace("|", "\\|")} for kernel in rest
                ]
        tables[f"{version}: built"] = [
            {"kernel": k.name, "for": k.target, "headers that come with it": ", ".join(sorted(k.along))} for k in built
        ]
    note = "A call is one module of one choice of template arguments, compiled by nvcc and loaded; nothing ran."
    return results.write_results(output, "SGLang's kernels as they are", tables, note=note, device="cpu")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", default=list(VERSIONS), metavar="VERSION")
    parser.add_argument("--only", default="", help="only calls whose file or markers contain this text")
    parser.add_argument("--output", type=Path, help="write the page here as well")
    options = parser.parse_args()

    releases: dict[str, list[Kernel]] = {}
    for version in options.versions:
        kernels = releases[version] = []
        with tempfile.TemporaryDirectory() as directory:
            for kernel in build_all(version, Path(directory), options.only):
                kernels.append(kernel)
                sys.stderr.write(f"{version} {kernel.name}: {kernel.reason or 'built'}\n")
    sys.stdout.write(page(releases, options.output))
    return 0


if __name__ == "__main__":
    sys.exit(main())
