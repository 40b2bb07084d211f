"""What does a plugin declare, and how does it build its own modules?"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgljit_core import paths
from sgljit_core.builds import kernels
from sgljit_core.builds.modules import load_jit
from sgljit_core.compilers import arch
from sgljit_core.model.arguments import make_cpp_args
from sgljit_core.model.build import BuildSpec, FamilySpec

if TYPE_CHECKING:
    from tvm_ffi import Module

    from sgljit_core.model.arguments import CppArg

__all__ = ["KernelFamily"]


@dataclass(frozen=True)
class KernelFamily(FamilySpec):
    """A family that can build its modules; see ``FamilySpec`` for the fields.

    >>> FAMILY = KernelFamily(name="norm", package="sgljit_norm", ops=(Op("rmsnorm", "sgljit_norm.ops:rmsnorm"),))
    """

    @functools.cached_property
    def csrc(self) -> Path:
        """The directory of the family's sources: ``csrc/`` inside its package."""
        return paths.package_directory(self.package) / "csrc"

    def load_jit(self, *args: str, **options: Any) -> Module:
        """``sgljit_core.load_jit`` on the family's own sources; the same keywords."""
        return load_jit(*args, **{"csrc": self.csrc, "family": self.name, **options})

    def load_host(
        self,
        *args: str,
        cpp_files: Sequence[str],
        cpp_wrappers: Sequence[tuple[str, str]] | None = None,
        header_only: bool = True,
        extra_cflags: Sequence[str] = (),
        extra_ldflags: Sequence[str] | None = None,
        extra_include_paths: Sequence[str | Path] | None = None,
        extra_dependencies: Sequence[str] | None = None,
        build_directory: str | Path | None = None,
    ) -> Module:
        """Load the family's host part: C++ that asks for its device kernels by name (``sgl_kernel/variant.h``).

        It is compiled once, by the host compiler alone, for the CPU and every GPU; a wheel may carry it. Its device
        kernels are made when they are first launched.

        Args:
            args: the name of the module.
            cpp_files, cpp_wrappers, header_only, extra_cflags, extra_ldflags, extra_include_paths, extra_dependencies:
                as in ``load_jit``, which also has the errors.
            build_directory: the root of the cache for the host part and for all that it asks for: device kernels and
                deferred functions.
        """
        # Thin code gains nothing from -O3, and compiles half as long.
        # A matcher without its verify checks nothing: that is an error.
        flags = ("-O1", "-Werror=unused-result", f'-DSGL_FAMILY="{self.name}"', *extra_cflags)
        spec = BuildSpec(
            markers=args,
            family=self.name,
            csrc=self.csrc,
            target=arch.cpu_target(),
            cpp_files=tuple(cpp_files),
            cpp_wrappers=tuple(cpp_wrappers or ()),
            cflags=flags,
            ldflags=tuple(extra_ldflags or ()),
            include_paths=tuple(Path(path).resolve() for path in extra_include_paths or ()),
            dependencies=tuple(extra_dependencies or ()),
            header_only=header_only,
            host_part=True,
            carried=paths.carried_artifacts(self.csrc),
        )
        return kernels.load_host(self._sources(build_directory), spec)

    def build_deferred(self, file: str, symbol: str, *, build_directory: str | Path | None = None) -> Module:
        """Compile a deferred C++ function (``sgl_kernel/deferred.h``) ahead of its first call.

        Args:
            file: the C++ file, relative to ``csrc``.
            symbol: the function's name in it.
            build_directory: as in ``load_jit``; the one of ``load_host`` where that has another.
        """
        return kernels.load_deferred(self._sources(build_directory), file, symbol)

    def build_variant(self, file: str, kernel: str, *args: CppArg, build_directory: str | Path | None = None) -> None:
        """Make a device kernel for the current target ahead of its first launch. Needs no GPU.

        >>> with override_cuda_arch(9, 0):
        ...     FAMILY.build_variant("rmsnorm.cuh", "rmsnorm::kernel", 4096, True, torch.bfloat16)

        Args:
            file: the device file, relative to ``csrc``.
            kernel: the kernel's name, with its namespace.
            args: its template arguments, as the host part passes them.
            build_directory: as in ``load_jit``; the one of ``load_host`` where that has another.

        Raises:
            CompileError: it does not compile.
            ToolchainNotFoundError: it must be made and there is no NVRTC.
        """
        expression = f"{kernel}<{make_cpp_args(*args)}>" if args else kernel
        kernels.build_kernel(self._sources(build_directory), file, expression)

    def _sources(self, build_directory: str | Path | None) -> kernels.Sources:
        return kernels.Sources(self.name, self.csrc, paths.build_root(build_directory))
