"""How is a compiled kernel asked for? Like a device kernel of C++: the same keys, tiers and rules.

The source key covers the kernel's file and those that it imports, the specialisation, the constants, the options and
the target; the toolchain key covers Triton. The artifact holds the facts that a launch needs beside the machine code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sgljit_core import log
from sgljit_core.builds.obtain import obtain
from sgljit_core.builds.request import Request
from sgljit_core.cache import keys
from sgljit_core.compilers import includes
from sgljit_core.errors import ArtifactLoadError, CompileError, SignatureError, ToolchainNotFoundError
from sgljit_core.load import gpu
from sgljit_core.load.cubin import Cubin
from sgljit_core.specs.build import BuildSpec, Product, Target

from . import compiler, monitor

FORMAT = 1  # of what an artifact says besides the machine code; raise it when a launch reads it otherwise
_PTX_TYPES = {"u1": "u8", "i32": "u32", "i64": "u64", "fp32": "f32"}


@dataclass(frozen=True)
class TritonSpec(BuildSpec):
    """The build of a Triton kernel: all that decides what is compiled.

    Attributes:
        arguments: each parameter's name, its text (see ``specialisation``), and whether it is a constant.
        options: the options of the launch.
        files: the kernel's file, and those that it imports.
    """

    arguments: tuple[tuple[str, str, bool], ...] = ()
    options: tuple[tuple[str, Any], ...] = ()
    files: tuple[str, ...] = ()

    def build(self, root: Path) -> Compiled:
        """Build it, or find it in the cache: ``sgljit_core.jit.kernels.build`` calls this for what was recorded."""
        return get(self, root, is_warmup=True)


def spec(
    family: str,
    csrc: Path,
    files: tuple[str, ...],
    kernel: str,
    arguments: tuple[tuple[str, str, bool], ...],
    options: Mapping[str, Any],
    target: Target,
) -> TritonSpec:
    """The build of a kernel. Its markers are for people: what specialises it, by position, then constants and options.

    Raises:
        ToolchainNotFoundError: Triton compiles for the architecture with another suffix alone.
    """
    wanted = target.cuda_arch
    if wanted is None or target.name != f"sm_{wanted[0]}{wanted[1]}{'a' if wanted >= (9, 0) else ''}":
        raise ToolchainNotFoundError(
            f"a Triton for {target.name}",
            needed_for=f"{family}.{kernel}",
            searched=["Triton compiles for sm_90a, sm_100a and so on, and below 9.0 for sm_80 and its kind"],
            remedy="Name the architecture without a suffix, such as 9.0.",
        )
    texts = [text for _, text, is_constant in arguments if not is_constant]
    texts += [f"{name}={text}" for name, text, is_constant in arguments if is_constant]
    texts += [f"{name}={value}" for name, value in options.items()]
    return TritonSpec(
        markers=(kernel, *texts),
        csrc=csrc,
        target=target,
        family=family,
        cuda_files=files[:1],
        kernel=f"{kernel}<{', '.join(texts)}>",
        arguments=arguments,
        options=tuple(options.items()),
        files=files,
    )


@dataclass(frozen=True)
class Compiled:
    """A compiled kernel, and what its launch needs to know.

    Attributes:
        warps: of a block.
        shared: the bytes of dynamic shared memory.
        extra: pointers to scratch memory behind the parameters; this kernel needs none, and gets null.
        pdl: whether it waits for its predecessor itself (programmatic dependent launch).
        triton: the version that made it, and that of its ptxas, in words.
    """

    image: bytes
    symbol: str
    warps: int
    shared: int
    extra: int
    pdl: bool
    triton: str


def get(spec: TritonSpec, root: Path, *, is_warmup: bool) -> Compiled:
    """The kernel, from the cache or compiled now. Needs no GPU. Raises as ``load_jit`` does.

    ``is_warmup`` says that no launch waits for it, see ``monitor``.
    """
    requests: list[TritonRequest] = []

    def ask() -> TritonRequest:
        requests.append(TritonRequest(spec, root))
        return requests[-1]

    found = obtain(ask)
    if any(request.was_made for request in requests):
        monitor.compiled(spec, is_warmup=is_warmup)
    return found


class TritonRequest(Request[Compiled]):
    """A request for a kernel that Triton compiles."""

    payload = "kernel.cubin"
    build: TritonSpec
    was_made = False

    def __init__(self, spec: TritonSpec, root: Path) -> None:
        scan = includes.scan(spec.files, [includes.Root(spec.family, spec.csrc)])
        options = [json.dumps([name, value]) for name, value in spec.options]
        source = keys.source_ingredients(spec, {}, scan, {"triton": options})
        arguments = keys.canonical([list(argument) for argument in spec.arguments])
        triton = {"arguments": arguments, "kernel file": spec.files[0], "triton format": str(FORMAT)}
        super().__init__(spec, root, {**source, **triton}, scan)

    def find_tools(self, needed_for: str) -> Mapping[str, str]:
        triton = compiler.find(needed_for)
        return {"triton": triton.version, "ptxas": compiler.ptxas_release(triton, self._capability, needed_for)}

    def serves(self, toolchain: Mapping[str, str]) -> bool:
        """Whether the driver here, if there is one, runs what another ptxas made: not one of a later CUDA."""
        major, release = gpu.supported_major(), toolchain.get("ptxas", "unknown")
        if major is None or (release[:1].isdigit() and int(release.partition(".")[0]) <= major):
            return True
        log.once(
            "newer_cuda",
            self.build.label,
            f"{self.named.label}: a carried kernel is passed over, as it was assembled by ptxas of CUDA {release}, and "
            f"the driver supports CUDA {major}; update the driver, or have it compiled here, which needs Triton",
        )
        return False

    @property
    def _capability(self) -> int:
        assert self.build.target.cuda_arch is not None
        major, minor = self.build.target.cuda_arch
        return 10 * major + minor

    def make(self, directory: Path) -> Product:
        spec = self.named
        assert isinstance(spec, TritonSpec)
        job = {
            "family": spec.family,
            "csrc": str(spec.csrc),
            "file": spec.files[0],
            "kernel": spec.module,
            "arguments": spec.arguments,
            "options": dict(spec.options),
            "capability": self._capability,
        }
        made = compiler.compile_kernel(spec.label, job, directory)
        self.was_made = True
        facts = dict(made.facts)
        extra = self._check(facts, made.command, directory)
        said = {name: facts[name] for name in ("warps", "shared", "pdl")} | {"extra": extra, "kernel": spec.kernel}
        payload = directory / self.payload
        tools = self.find_tools(spec.label)
        version = f"{facts['triton']} with ptxas of CUDA {tools['ptxas']}"
        payload.write_bytes(Cubin(made.image, facts["symbol"], keys.canonical(said), version).packed())
        return Product(payload, made.command, {}, {})

    def _check(self, facts: Mapping[str, Any], command: str, directory: Path) -> int:
        """The number of scratch pointers behind the parameters. Raises CompileError where no launch of ours fits."""

        def error(text: str) -> CompileError:
            label = self.named.label
            return CompileError(build=label, first_error=text, command=command, log=text, build_directory=directory)

        if facts["needs"]:
            needs = ", ".join(f"{name}={value}" for name, value in facts["needs"].items())
            raise error(f"its launch would need {needs}: no scratch memory is brought, and no cluster launched")
        texts = [text for _, text, is_constant in self.build.arguments if not is_constant and text[0] != "="]
        wanted = ["u64" if text[0] == "*" else _PTX_TYPES[text.partition(":")[0]] for text in texts]
        taken = facts["parameters"]
        if taken[: len(wanted)] != wanted or any(one != "u64" for one in taken[len(wanted) :]):
            raise error(
                f"Triton {facts['triton']} made a kernel with the parameters {', '.join(taken)}, and a launch passes "
                f"{', '.join(wanted)} and pointers to scratch memory; use a release that the tests have run with"
            )
        return len(taken) - len(wanted)

    def load(self, payload: bytes, name: str) -> Compiled:
        cubin = Cubin.unpacked(payload, name)
        try:
            said = json.loads(cubin.signature)
            kernel = said.pop("kernel")
            compiled = Compiled(image=cubin.image, symbol=cubin.symbol, triton=cubin.compiler, **said)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ArtifactLoadError(f"what its launch needs cannot be read: {error}") from error
        if kernel != self.build.kernel:
            raise SignatureError(f"the artifact of {self.build.kernel} holds {kernel}; remove it, and build it again")
        return compiled
