"""Who in this process wants to hear that a Triton kernel was compiled? Whoever has set Triton's own hook.

Engines watch compiles by ``triton.knobs.runtime.jit_post_compile_hook``: vLLM's JIT monitor warns or raises there. Our
compiles run in another process, where nobody watches, so the hook is called here, with what Triton passes. Like
Triton's, the call comes after the compile: if the hook raises, this launch fails, and the next one finds the kernel. A
kernel that the cache has is no compile.
"""

from __future__ import annotations

import ast
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .build import TritonSpec


class Parameter(NamedTuple):
    """A parameter of a kernel, by its name."""

    name: str


class Kernel(NamedTuple):
    """In place of Triton's ``JITFunction``, which this process does not make."""

    params: tuple[Parameter, ...]


class Function(NamedTuple):
    """The kernel as Triton's ``JitFunctionInfo`` has it."""

    module: str
    name: str
    jit_function: Kernel


def compiled(spec: TritonSpec, *, is_warmup: bool) -> None:
    """Call Triton's hook, if Triton was imported and somebody has set one. Raises what the hook raises."""
    knobs = getattr(sys.modules.get("triton"), "knobs", None)
    hook = getattr(getattr(knobs, "runtime", None), "jit_post_compile_hook", None)
    if hook is None:
        return
    signature: dict[str, str] = {}
    constants: dict[tuple[int, ...], Any] = {}
    for i, (name, text, is_constant) in enumerate(spec.arguments):
        if is_constant or text.startswith("="):
            signature[name] = "constexpr"
            constants[i,] = ast.literal_eval(text.removeprefix("="))
        else:
            signature[name] = text.partition(":")[0]
    options: dict[str, Any] = {"num_warps": 4, "num_ctas": 1, "num_stages": 3, "enable_fp_fusion": True}
    kernel = Kernel(tuple(Parameter(name) for name in signature))
    hook(
        key=spec.label,
        repr=f"{spec.family}.{spec.kernel}",
        fn=Function(f"{spec.family}/{spec.files[0]}", f"{spec.family}.{spec.module}", kernel),
        compile={
            "key": spec.label,
            "signature": signature,
            "device": None,
            "constants": constants,
            **options,
            "launch_cooperative_grid": False,
            "extern_libs": (),
            "configs": [{}],
            "specialization_data": "",
            **dict(spec.options),
            "is_warmup": is_warmup,
        },
        is_manual_warmup=is_warmup,
        already_compiled=False,
    )
