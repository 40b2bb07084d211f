"""What do authors use? ``TritonKernels`` for a family: its kernels, and ops whose bodies launch them."""

from __future__ import annotations

import ast
import functools
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from sgljit_core import KernelFamily, paths
from sgljit_core.builds import recording
from sgljit_core.compilers import arch, includes
from sgljit_core.errors import InvalidBuildError
from sgljit_core.specs.build import Target

from . import build, launcher, source, specialisation, tuning
from .build import Compiled, TritonSpec

P = ParamSpec("P")
R = TypeVar("R")

Grid = Sequence[int] | Callable[[Mapping[str, Any]], Sequence[int]]


class TritonKernels:
    """The Triton kernels of a family, whose files are in the family's ``sources``.

    >>> FAMILY = KernelFamily(name="scaling", package="acme_scaling", sources="kernels")
    >>> TRITON = TritonKernels(FAMILY)
    """

    def __init__(self, family: KernelFamily) -> None:
        self.family = family

    def kernel(self, file: str, name: str) -> Kernel:
        """Declare a kernel: the function ``name`` of a file, with ``@triton.jit``. Reads nothing yet.

        >>> SCALE = TRITON.kernel("scale.py", "scale")
        """
        return Kernel(self.family, file, name)

    def op(self, **options: Any) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Declare the op that a function is, whose body launches kernels: as ``KernelFamily.op``, with its keywords.

        In a recording, which finds out what to build ahead, the body gets tensors on the device "meta", and a launch
        is noted.
        """

        def declare(function: Callable[P, R]) -> Callable[P, R]:
            return self.family.op(exports=lambda: self._exports(function), **options)(function)

        return declare

    def _exports(self, function: Callable[..., Any]) -> Any:
        """An object in place of a C++ module: its attribute of the op's name is the op's body."""
        module = launcher.load(self.family)
        body = _by_position(function)
        if isinstance(module, recording.StandIn):
            body = _recorded(body)
        return types.SimpleNamespace(**{function.__name__: body})


def _by_position(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function with all of its parameters by position, as an op passes them to its body."""
    code = function.__code__
    if code.co_kwonlyargcount == 0:
        return function
    number = code.co_argcount + code.co_kwonlyargcount  # keyword-only parameters come next among the variables
    plain = types.FunctionType(
        code.replace(co_argcount=number, co_kwonlyargcount=0),
        function.__globals__,
        function.__name__,
        None,
        function.__closure__,
    )
    return functools.wraps(function)(plain)


_noted: list[bool] = []  # in a recording: whether the call that runs is one on a CUDA device


def _recorded(body: Callable[..., Any]) -> Callable[..., Any]:
    """A body that is called with tensors without memory, of tvm-ffi, and gets tensors on "meta" for them."""

    def called(*args: Any) -> Any:
        devices = [str(arg.device) for arg in args if hasattr(arg, "device")]
        _noted.append(any(device.startswith("cuda") for device in devices))
        try:
            return body(*map(_on_meta, args))
        finally:
            _noted.pop()

    return called


def _on_meta(value: Any) -> Any:
    """A tensor on "meta" for one of tvm-ffi, with the same shape, strides, dtype and address."""
    import torch

    if isinstance(value, torch.Tensor) or not hasattr(value, "strides"):
        return value
    dtype = getattr(torch, str(value.dtype))
    shape, strides = tuple(value.shape), tuple(value.strides)
    offset = specialisation.address(value) // dtype.itemsize  # a storage on "meta" begins at 0
    size = offset + 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True) if size > 0)
    return torch.empty(max(size, 0), dtype=dtype, device="meta").as_strided(shape, strides, offset)


class Kernel:
    """A kernel of a family; made by ``TritonKernels.kernel``."""

    def __init__(self, family: KernelFamily, file: str, name: str) -> None:
        self.family = family
        self.file = file
        self.name = name
        self._bound: dict[Any, Bound] = {}

    def __str__(self) -> str:
        return f"{self.family.name}.{self.name}"

    @functools.cached_property
    def declared(self) -> source.Declared:
        """The kernel's declaration in its file; read once, and raises as ``source.read``."""
        return source.read(self.family.csrc, self.file, self.name)

    def bind(self, **constants: Any) -> Bound:
        """The kernel with its constants (``tl.constexpr``) and the options of its launch, such as ``num_warps``.

        >>> SCALE.bind(BLOCK=1024, num_warps=4)((blocks, 1, 1), x, out, n)

        The same object for the same constants in the same order. A constant is an int, a finite float, a bool, a str,
        None, or a tuple of these; options are num_warps, num_stages, maxnreg, enable_fp_fusion and launch_pdl. For a
        kernel with ``@triton.autotune`` these are the ones that its configurations leave open, see ``tuning``.

        Raises:
            SourceNotFoundError, InvalidBuildError: the file has no such kernel, or the constants are not its.
        """
        key = *constants, *map(repr, constants.values())  # as 1, True and 1.0 are equal
        bound = self._bound.get(key)
        if bound is None:
            made = Bound(self, constants) if self.declared.autotuned is None else Tuned(self, constants)
            bound = self._bound.setdefault(key, made)
        return bound


class Bound:
    """A kernel with its constants; made by ``Kernel.bind``."""

    def __init__(self, kernel: Kernel, constants: dict[str, Any]) -> None:
        self.kernel = kernel
        declared = kernel.declared
        self._parameters = [parameter for parameter in declared.parameters if not parameter.is_constexpr]
        self._constants, self._options = specialisation.constants(str(kernel), declared.parameters, constants)
        self._noted: dict[tuple[str, ...], TritonSpec] = {}

    @functools.cached_property
    def meta(self) -> Mapping[str, Any]:
        """The constants and options by name, which a grid that is a function takes."""
        constants = {name: ast.literal_eval(text) for name, text in self._constants.items()}
        return types.MappingProxyType({**constants, **self._options})

    def __call__(self, grid: Grid, *args: Any) -> None:
        """Launch on the current stream of the tensors' device; on the CPU Triton's interpreter runs it.

        Args:
            grid: three numbers of blocks, or a function of the constants by name that returns them; with a 0 nothing is
                launched.
            args: the kernel's arguments but for its constants, in their order: tensors, ints of 64 bits, floats, which
                become float32, bools, and None. A tensor is passed by its address.

        Raises:
            TypeError: an argument is none of these, or their number is wrong.
            ValueError: the grid is too large, or the tensors are on several devices.
            Exception: as ``load_jit``, where the kernel must be compiled.
        """
        if callable(grid):
            grid = grid(self.meta)
        x, y, z = grid
        if self._launch(x, y, z, *args):
            self._interpret(grid, args)

    @functools.cached_property
    def _launch(self) -> Callable[..., int | None]:
        kernel = self.kernel
        module = launcher.load(kernel.family)
        if isinstance(module, recording.StandIn):
            return self._note
        kinds = "".join(parameter.kind for parameter in self._parameters)
        return launcher.bind(module, str(kernel), kinds, self._find)

    def _find(self, texts: Sequence[str], target: Target) -> tuple[Compiled, str]:
        spec = self._spec(texts, target)
        return build.get(spec, paths.build_root(None), is_warmup=False), spec.label

    def _spec(self, texts: Sequence[str], target: Target) -> TritonSpec:
        family, given = self.kernel.family, iter(texts)
        declared = source.read(family.csrc, self.kernel.file, self.kernel.name)  # it may have been edited
        if declared.parameters != self.kernel.declared.parameters:
            raise InvalidBuildError(
                f"{self.kernel}: its parameters in {self.kernel.file} changed while this process ran; start a new one"
            )
        arguments = tuple(
            (one.name, self._constants[one.name] if one.is_constexpr else next(given), one.is_constexpr)
            for one in declared.parameters
        )
        return build.spec(family.name, family.csrc, declared.files, self.kernel.name, arguments, self._options, target)

    def texts(self, *args: Any) -> list[str]:
        """The texts that arguments specialise, see ``specialisation``. Tensors need no memory. Raises TypeError."""
        if len(args) != len(self._parameters):
            raise TypeError(f"{self.kernel}: expected {len(self._parameters)} arguments, got {len(args)}")
        return [specialisation.of(arg, one.kind) for arg, one in zip(args, self._parameters, strict=True)]

    def build(self, *args: Any) -> None:
        """Compile for such arguments and the current target, or find it in the cache. Needs no GPU.

        >>> with override_cuda_arch(9, 0):
        ...     bound.build(torch.empty(4, device="meta"), 4)

        Raises TypeError as a call does, and as ``load_jit``.
        """
        spec = self._spec(self.texts(*args), arch.exact(arch.cuda_target()))
        build.get(spec, paths.build_root(None), is_warmup=True)

    def _note(self, *args: Any) -> None:
        """In a recording: note the variant that a launch asks for."""
        if _noted and _noted[-1] and 0 not in args[:3]:
            texts = tuple(self.texts(*args[3:]))
            spec = self._noted.get(texts)  # for each number of tokens there is a call, and few of them differ
            if spec is None:
                spec = self._noted[texts] = self._spec(texts, arch.device_target(0))
            recording.note(spec, paths.build_root(None))

    def _interpret(self, grid: Sequence[int], args: Sequence[Any]) -> None:
        from . import interpreter  # imports torch

        kernel = self.kernel
        scan = includes.scan(kernel.declared.files, [includes.Root(kernel.family.name, kernel.family.csrc)])
        arguments = dict(zip((one.name for one in self._parameters), args, strict=True))
        arguments |= {name: ast.literal_eval(text) for name, text in self._constants.items()}
        family = kernel.family
        call = interpreter.Call(family.name, family.csrc, kernel.file, kernel.name, grid, arguments, dict(scan.files))
        interpreter.run(call)


class Tuned(Bound):
    """An autotuned kernel; made by ``Kernel.bind``. Each call takes one of its configurations, see ``tuning``."""

    def __init__(self, kernel: Kernel, constants: dict[str, Any]) -> None:
        self.kernel = kernel
        declared = kernel.declared
        assert declared.autotuned is not None
        self._configurations, key = declared.autotuned
        for configuration in self._configurations:
            if twice := configuration.keys() & constants.keys():
                raise InvalidBuildError(
                    f"{kernel}: bind() has {', '.join(sorted(twice))}, which the configurations of {kernel.file} choose"
                )
        self._bounds = [Bound(kernel, {**constants, **one}) for one in self._configurations]
        self._parameters = [parameter for parameter in declared.parameters if not parameter.is_constexpr]
        self._given = {name: repr(value) for name, value in constants.items()}
        names = [parameter.name for parameter in self._parameters]
        # A constant of the key is the same for all calls.
        self._places = {name: names.index(name) for name in key if name in names}
        self._tensor = 0  # the place of one whose device counts
        self._chosen: dict[Any, Callable[..., None]] = {}

    def __call__(self, grid: Grid, *args: Any) -> None:
        """Launch as ``Bound`` does, with the configuration for these arguments, on which the grid may depend.

        Raises TypeError, too, where an argument that the key names is no number, bool, str or None.
        """
        # The dtypes, the device, and the values that the key names. (A look for what is no tensor takes far longer.)
        seen: list[Any] = [getattr(arg, "dtype", None) for arg in args]
        seen += [args[place] for place in self._places.values() if place < len(args)]
        if self._tensor < len(args):
            seen.append(getattr(args[self._tensor], "device", None))
        key = tuple(seen)
        launch = self._chosen.get(key)
        if launch is None:
            if _noted and not _noted[-1]:
                return  # a recorded call on the CPU asks for no kernel
            launch = self._choose(grid, args)
            if len(self._chosen) >= _MOST_CHOSEN:
                self._chosen.clear()
            self._chosen[key] = launch
        launch(grid, *args)

    def build(self, *args: Any) -> None:
        target = arch.exact(arch.cuda_target())
        for bound in self._ahead(args, target):
            bound.build(*args)

    @property
    def _directory(self) -> Path:
        return paths.package_directory(self.kernel.family.package) / "tuned"

    def _case(self, args: Sequence[Any]) -> tuning.Case:
        self.texts(*args)  # refuses what no kernel takes
        dtypes = tuple(str(arg.dtype).removeprefix("torch.") if hasattr(arg, "device") else "" for arg in args)
        shape = {name: args[place] for name, place in self._places.items()}
        for name, value in shape.items():
            if not isinstance(value, int | float | str | None):
                raise TypeError(
                    f"{self.kernel}: the key of @triton.autotune has {name}, of {type(value).__name__}; name its sizes"
                )
        return tuning.Case(f"{self.kernel.file}:{self.kernel.name}", dtypes, self._given, shape)

    def _choose(self, grid: Grid, args: Sequence[Any]) -> Callable[..., None]:
        """The launch with the configuration for these arguments, which is measured where that is wanted."""
        case = self._case(args)
        if _noted:
            return functools.partial(_launch_each, self._ahead(args, arch.device_target(0)))
        tensors = [place for place, arg in enumerate(args) if hasattr(arg, "device")]
        self._tensor = next(
            (place for place in tensors if args[place].device.type != "cpu"), tensors[0] if tensors else 0
        )
        if (measurement := tuning.active()) is not None:
            launches = [
                (configuration, functools.partial(bound, grid))
                for configuration, bound in zip(self._configurations, self._bounds, strict=True)
            ]
            return self._bounds[measurement.fastest(str(self.kernel), case, launches, args)]
        device = getattr(args[self._tensor], "device", None)
        if device is None or device.type != "cuda":  # the interpreter, or an error of the launch
            return self._bounds[0]
        name = tuning.chip(device.index or 0)
        chosen = tuning.choose(self._directory, str(self.kernel), name, case, self._configurations)
        return self._bounds[self._configurations.index(chosen)]

    def _ahead(self, args: Sequence[Any], target: Target) -> list[Bound]:
        wanted = tuning.ahead(self._directory, str(self.kernel), target.name, self._case(args), self._configurations)
        return [self._bounds[self._configurations.index(one)] for one in wanted]


_MOST_CHOSEN = 65536  # cases that a kernel remembers


def _launch_each(bounds: Sequence[Bound], grid: Grid, *args: Any) -> None:
    for bound in bounds:
        bound(grid, *args)
