"""What does a plugin declare, and how does it build its own modules?"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from sgljit_core import config, paths
from sgljit_core.errors import InvalidFamilyError
from sgljit_core.plugins.hookspecs import hookimpl
from sgljit_core.plugins.origin import Origin
from sgljit_core.plugins.references import REFERENCE, import_module, resolve

if TYPE_CHECKING:
    from torch.library import Library
    from tvm_ffi import Module

    from sgljit_core.torch_ops.library_ops import LibraryOps
    from sgljit_core.torch_ops.schema import Declaration

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Op:
    """One op, declared by ``KernelFamily.op``.

    Attributes:
        name: the function's name.
        function: what users call.
        library: its ``torch.library`` ops.
        place: file and line of the declaration.
        reference: the same op in plain PyTorch, for tests; None where there is none.
        samples: takes a torch.device and yields the arguments of calls on it, each a dictionary by the parameters'
            names, for tests and benchmarks; None where there are none.
        calls: takes a model's ``ModelShape``, or None for the usual sizes, and yields the arguments of calls likewise,
            with ``TensorSpec`` and ``Addresses`` as tensors: what they ask for is built ahead. None where there are
            none.
    """

    name: str
    function: Callable[..., Any]
    library: LibraryOps
    place: str
    _execution: object  # of the module that declares it: a reload has another
    _package: str
    _declaration: Declaration
    _named: Mapping[str, str]

    @property
    def mutates(self) -> tuple[str, ...]:
        """The parameters that a call may write to, in place or not."""
        return tuple(dict.fromkeys(name for form in self.library.forms for name in form.mutates))

    reference = property(lambda self: self._beside("reference"))
    samples = property(lambda self: self._beside("samples"))
    calls = property(lambda self: self._beside("calls"))

    @property
    def family(self) -> str:
        """The family's name."""
        return self._declaration.where.family

    def with_out(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call, by name, with the ``out`` that the call would make and return."""
        declaration, out = self._declaration, self._declaration.out
        given = dict(arguments)
        if declaration.returns_out and callable(declaration.fake) and out is not None and given.get(out) is None:
            call = declaration.signature.bind(**given)
            call.apply_defaults()
            given[out] = declaration.fake(*call.args, **call.kwargs)
        return given

    def is_left_over(self, place: str, execution: object) -> bool:
        """Whether it was declared before the file of ``place`` was reloaded."""
        return self._execution is not execution and self.place.rpartition(":")[0] == place.rpartition(":")[0]

    def _beside(self, kind: str) -> Callable[..., Any] | None:
        """The function that the declaration names, or the one of the op's name in the package's module ``kind``."""
        if kind in self._named:
            return resolve(self._named[kind], self._declaration.where)
        try:
            module = import_module(f"{self._package}.{kind}", self._declaration.where)
        except InvalidFamilyError:
            return None
        found: Callable[..., Any] | None = getattr(module, self.name, None)
        return found


@dataclass(frozen=True)
class KernelFamily:
    """A family of kernels: what a plugin registers. Its ops declare themselves, see ``op``.

    >>> FAMILY = KernelFamily(name="norm", package="sgljit_norm")

    Attributes:
        name: the family's name, a Python identifier, equal to its entry point's name.
        package: the importable package.
        sources: the directory of the C++ and CUDA sources, relative to the package's.
        tests: the package of the family's tests, which ``sgljit test`` runs. By default ``tests`` of the package.
        bench: the package of its benchmarks. By default ``bench`` of the package.
        host: the files of the host part, relative to ``sources``, which export the ops with ``SGL_EXPORT``.
        ops: the module that declares the ops; it is imported when the first of them is asked for. By default ``ops``
            of the package.
    """

    name: str
    package: str
    host: Sequence[str] = ()
    ops: str = ""
    sources: str = "csrc"
    tests: str = ""
    bench: str = ""
    _loaded: dict[str, Module] = field(default_factory=dict, init=False, repr=False, compare=False)
    _declared: dict[str, Op] = field(default_factory=dict, init=False, repr=False, compare=False)
    # Not in Op: a user may keep an Op after a reload, and the library ops of before must go then.
    _libraries: dict[str, Library] = field(default_factory=dict, init=False, repr=False, compare=False)
    _followers: list[ModuleType] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or self.name.startswith("_"):
            text = f"family name {self.name!r} (package {self.package!r}) must be a public Python identifier"
            raise InvalidFamilyError(text)
        object.__setattr__(self, "host", (self.host,) if isinstance(self.host, str) else tuple(self.host))
        for name in ("ops", "tests", "bench"):
            object.__setattr__(self, name, getattr(self, name) or f"{self.package}.{name}")
        for name in ("package", "ops", "tests", "bench"):
            value: object = getattr(self, name)
            if not isinstance(value, str) or not all(part.isidentifier() for part in value.split(".")):
                raise InvalidFamilyError(f"{Origin(self.name)}: {name} must name a module, got {value!r}")
        if Path(self.sources).is_absolute() or ".." in Path(self.sources).parts:
            raise InvalidFamilyError(
                f"{Origin(self.name)}: sources must name a directory inside the package, got {self.sources!r}"
            )

    def op(
        self,
        *,
        exports: Callable[[], Any] | Literal["host"] | None = "host",
        mutates: Sequence[str] = (),
        inplace: str | None = None,
        fake: Callable[..., Any] | None = None,
        reference: str | None = None,
        samples: str | None = None,
        calls: str | None = None,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Declare the op that a function is. Its name, signature and annotations are the op's.

        >>> @FAMILY.op(mutates=("out",), inplace="input")
        ... def rmsnorm(input: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None) -> None:
        ...     \"\"\"What users read.\"\"\"

        The name stands for the op in the module: a call on plain tensors runs at once, and torch.compile,
        torch.export and their kind see one graph node, ``torch.ops.sgljit_<family>.<name>``.

        Args:
            exports: returns the module that exports the C++ function of the same name, which then is the body; called
                at the op's first call. C++ gets all parameters by position, in this order. By default the family's
                ``host_module``. None, or a family without ``host`` files: the function's own body runs.
            mutates: the tensor parameters that the op writes to.
            inplace: the input that the op overwrites where its one optional output, named in ``mutates``, is None. The
                op is two library ops then: ``<name>`` writes the output, ``<name>_`` works in place.
            fake: for an op that returns tensors: a function with the op's parameters that returns empty tensors of
                the result's shape, strides and dtype, such as ``torch.empty_like``. If ``mutates`` names an optional
                output, the op returns this output, and the body returns nothing. A call without it writes to a tensor
                that ``fake`` makes.
            reference, samples, calls: "package.module:function", see ``Op``. By default the functions of the op's name
                in the package's ``reference``, ``samples`` and ``calls``, where there are any.

        Raises:
            InvalidFamilyError: the declaration cannot work; it names the op, its file, and what to write.
        """

        def declare(function: Callable[P, R]) -> Callable[P, R]:
            from sgljit_core.torch_ops.library_ops import define  # these import torch
            from sgljit_core.torch_ops.schema import Declaration

            if not inspect.isfunction(function):
                raise InvalidFamilyError(
                    f"{Origin(self.name)}: @FAMILY.op declares a function that is written with def, got {function!r}"
                )
            name = function.__name__
            place = f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"
            where = Origin(self.name, name, place)
            if not name.isidentifier() or name.startswith("_"):
                raise InvalidFamilyError(f"{where}: the op's name {name!r} must be a public Python identifier")
            others = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
            if any(is_other(function) for is_other in others):  # a call of it would run nothing of its body
                raise InvalidFamilyError(f"{where} is async or a generator, and an op is a plain function")
            load: Any = (self.host_module if self.host else None) if exports == "host" else exports
            loader: object = load
            if loader is not None and (not callable(loader) or hasattr(loader, "implements_function")):
                raise InvalidFamilyError(
                    f"{where}: exports must be the function that returns the module, without a call of it; got {load!r}"
                )
            named: dict[str, Any] = {"reference": reference, "samples": samples, "calls": calls}
            for option, value in named.items():
                if value is not None and not (isinstance(value, str) and REFERENCE.fullmatch(value)):
                    raise InvalidFamilyError(f'{where}: {option} must read "package.module:function", got {value!r}')
            maker: Any = fake  # whatever its author wrote
            if maker is not None and not callable(maker):
                raise InvalidFamilyError(f"{where}: fake must be a function, got {fake!r}")
            names = (mutates,) if isinstance(mutates, str) else tuple(mutates)
            declaration = Declaration(where, function, names, inplace, fake)
            # A reload keeps the module's globals, and gives them a new __spec__ first.
            execution = function.__globals__.get("__spec__")
            self._make_room(declaration, place, execution)
            op, library, self._libraries[name] = define(self.name, declaration, load, self.package)
            given = {kind: value for kind, value in named.items() if value is not None}
            self._declared[name] = Op(name, op, library, place, execution, self.package, declaration, given)
            for follower in self._followers:
                if name in vars(follower):
                    setattr(follower, name, op)
            return op

        return declare

    def _make_room(self, declaration: Declaration, place: str, execution: object) -> None:
        """Drop what this declaration replaces: the op of before, and ops that a reload left. Raise for any other op."""
        new = {form.name for form in declaration.forms}
        for name, op in tuple(self._declared.items()):
            if new.isdisjoint(form.name for form in op.library.forms):
                continue
            if (name, op.place) != (declaration.name, place) and not op.is_left_over(place, execution):
                raise InvalidFamilyError(f"{declaration.where}: the family has this op already, from {op.place}")
            del self._declared[name], self._libraries[name]

    @hookimpl
    def sgljit_register_kernels(self, register: Callable[[KernelFamily], None]) -> None:
        """The hook of a plugin whose entry point names the family itself."""
        register(self)

    def follow(self, module: ModuleType) -> None:
        """Replace the ops among a module object's attributes when a reload declares them again."""
        self._followers.append(module)

    def declared(self) -> Mapping[str, Op]:
        """The family's ops by name. Imports the module that declares them, and with it torch.

        Raises InvalidFamilyError: there is no such module, or it declares no op. Its own exceptions pass unchanged.
        """
        module = import_module(self.ops, Origin(self.name))
        if not self._declared:
            raise InvalidFamilyError(
                f"{Origin(self.name)}: {module.__file__} declares no ops; write @FAMILY.op(...) above each function, "
                f"with the FAMILY that the plugin registers"
            )
        return MappingProxyType(self._declared)

    @functools.cached_property
    def csrc(self) -> Path:
        """The directory of the family's sources."""
        return paths.package_directory(self.package) / self.sources

    def load_jit(self, *args: str, **options: Any) -> Module:
        """``sgljit_core.load_jit`` on the family's own sources; the same keywords."""
        from sgljit_core.jit.modules import load_jit

        return load_jit(*args, **{"csrc": self.csrc, "family": self.name, **options})

    def host_module(self) -> Module:
        """The host part, of the files that the family names as ``host``, loaded once. Raises as ``load_jit`` does."""
        if not self._loaded:  # threads that come at once make the same module
            self._loaded.setdefault("", self.load_host(self.name, cpp_files=self.host, header_only=False))
        return self._loaded[""]

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

        The arguments, and the errors, are those of ``load_jit``; ``build_directory`` is the root for all that the host
        part asks for, too: device kernels and deferred functions.
        """
        from sgljit_core.compilers import arch
        from sgljit_core.jit import kernels
        from sgljit_core.specs.build import BuildSpec

        spec = BuildSpec(
            markers=args,
            family=self.name,
            csrc=self.csrc,
            target=arch.CPU,
            cpp_files=tuple(cpp_files),
            cpp_wrappers=tuple(cpp_wrappers or ()),
            # Thin code gains nothing from -O3, and compiles half as long. A matcher without its verify checks nothing.
            cflags=("-O1", "-Werror=unused-result", f'-DSGL_FAMILY="{self.name}"', *extra_cflags),
            ldflags=tuple(extra_ldflags or ()),
            include_paths=tuple(Path(path).resolve() for path in extra_include_paths or ()),
            dependencies=tuple(extra_dependencies or ()),
            header_only=header_only,
            host_part=True,
        )
        return kernels.load_host(kernels.Sources(self.name, self.csrc, config.build_root(build_directory)), spec)
