"""What does SGLang ask its load_jit for? Read from the Python files of a release, without installing it.

Each function of SGLang that calls `load_jit` is called with sample arguments, and a recorder in place of `load_jit`
keeps what it is asked for. The files are run statement by statement, because their imports (triton, flashinfer, the
engine itself) are not there: an import of SGLang is looked up in the release, one of torch and the standard library is
done, and any other name is a mock. A statement that fails for that reason is left out; the functions need few of them.

    python bench/ports_calls.py DIRECTORY    # of an unpacked wheel; prints one JSON object for each call

It runs code of the wheel, so it is a process of its own.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import enum
import inspect
import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import torch

from sgljit_core import CppType, make_cpp_args

CAPABILITY = (9, 0)
# Sample values of parameters by their name, and for one function by its file and name.
BY_NAME: dict[str, Any] = {
    "block_quota": 2,
    "block_size": 256,
    "channels_last": True,
    "cluster": 2,
    "cluster_size": 1,
    "config": (1, 512, False),
    "constant": 7,
    "element_size": 1024,
    "forward_mode": 0,
    "group_size": 128,
    "hidden_dim": 4096,
    "hidden_size": 4096,
    "k_dim": 1024,
    "name": "flashmla",
    "page_size": 64,
    "q_dim": 4096,
    "quant_type": 8,
    "rope_dim": 64,
    "top_k": 8,
    "topk": 8,
    "trait": "N128K512Trait",
    "unroll": 2,
    "world_size": 8,
}
BY_FUNCTION: dict[str, dict[str, Any]] = {
    "channel_rmsnorm_silu_nhwc_jit._jit_module": {"vec": 8, "lanes": 32, "units": 4},
    "clamp_position._jit_clamp_position_module": {"dtype": torch.int64},
    "compress._jit_compress_128_online_module": {"head_dim": 512},
    "cuda_solver._prep_module": {"nc": 40, "num_red_log": 32, "num_gpus": 8},
    "deep_select._jit_deep_select_module": {"max_topk": 1024, "cluster_size": 8},
    "dsv3_fused_a_gemm.dsv3_fused_a_gemm_module": {"hd_in": 7168, "hd_out": 2112},
    "fast_topk._jit_fast_topk_module": {"topk": 512},
    "grouped_gemma_rmsnorm._jit_grouped_gemma_rmsnorm_module": {"group_size": 512},
    "hc_combine._jit_hc_combine_module": {"hc_count": 4},
    "hisparse._jit_spec_module": {"num_steps": 2, "num_top_k": 2048, "hot_buffer_size": 4096},
    "hopper_bf16_gemv._jit_hopper_bf16_gemv_module": {"n": 1024, "k": 4096},
    "low_ratio_compress._jit_c1_module": {"head_dim": 512},
    "low_ratio_compress._jit_c2_module": {"head_dim": 512},
    "moe_align._jit_moe_align_module": {"dtype": torch.int32},
    "moe_lora_merged_align._jit_module": {"dtype": torch.int32},
    "muse_spark_router_gemm._jit_module": {"max_tokens": 8, "hidden_size": 4096},
    "norm_rope._jit_main_k_norm_rope_flashmla_module": {"head_dim": 512},
    "norm_rope._jit_main_k_norm_rope_q_flashmla_module": {"head_dim": 512},
    "online_c128_mtp._jit_online_c128_mtp_module": {"head_dim": 512},
    "per_token_group_quant._jit_module": {"out_dtype": torch.float8_e4m3fn, "aligned": True},
    "per_token_group_quant_8bit._jit_per_token_group_quant_8bit_module": {"output_type": torch.float8_e4m3fn},
    "per_token_group_quant_8bit_v2._jit_module": {"out_dtype": torch.float8_e4m3fn},
    "resolve_future_token_ids._jit_resolve_future_token_ids_module": {"dtype": torch.int64},
    "set_mla_kv_concat_q.set_mla_kv_concat_q_module": {"nope_bytes": 1024, "rope_bytes": 128},
    "tiny_gemm._jit_tiny_gemm_module": {"n_split": 16},
    "wo_a._jit_module": {"max_tokens": 32, "groups": 4},
}
INTEGER_WORDS = ("index", "indices", "seq", "req", "pos")


def sample(function: str, parameter: inspect.Parameter, names: dict[str, Any]) -> Any:
    """An argument for a parameter."""
    name, annotation = parameter.name, str(parameter.annotation)
    given = BY_FUNCTION.get(function, {})
    if name in given:
        return given[name]
    if parameter.default is not parameter.empty:
        return parameter.default
    if "dtype" in name or "dtype" in annotation:
        return torch.int32 if any(word in name for word in INTEGER_WORDS) else torch.bfloat16
    if name in BY_NAME:
        return BY_NAME[name]
    if "bool" in annotation:
        return False
    kind = names.get(annotation)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return next(iter(kind))
    return 128


class Namespace(dict[str, Any]):
    """The names of a file; those of SGLang's utilities are there without an import.

    Attributes:
        absent: the packages that it imports and that are mocks.
    """

    def __init__(self, release: Release, name: str, file: Path) -> None:
        hook = {**vars(builtins), "__import__": release.import_module}
        super().__init__(__name__=name, __file__=str(file), __builtins__=hook)
        self._release = release
        self.absent: set[str] = set()

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name):
            return getattr(builtins, name)
        return self._release.utilities[name]


class Release:
    """An unpacked wheel of SGLang.

    Attributes:
        kernels: the directory with `csrc` and `include`.
        calls: the arguments of each `load_jit` so far.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        places = (directory / "sglang" / "jit_kernel", directory / "sglang" / "kernels" / "jit")
        self.kernels = next(place for place in places if (place / "csrc").is_dir())
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self._files: dict[str, Namespace] = {}
        arch = types.SimpleNamespace(major=9, minor=0, suffix="a", target_name="9.0a", jit_flag="-DSGL_CUDA_ARCH=900")
        self.utilities: dict[str, Any] = {
            "KERNEL_PATH": self.kernels,
            "aiter_can_use_preshuffle_paged_mqa": lambda: False,
            "cache_once": lambda function: function,
            "get_activation_cuda_cflags": lambda *_args, **_keywords: [],
            "get_jit_cuda_arch": lambda: arch,
            "is_arch_support_pdl": lambda: True,
            "is_cuda": lambda: True,
            "is_hip": lambda: False,
            "is_hip_runtime": lambda: False,
            "is_musa_runtime": lambda: False,
            "is_sail_runtime": lambda: False,
            "load_jit": self._record,
            "make_cpp_args": lambda *args: make_cpp_args(*(CppType(a) if type(a) is str else a for a in args)),
            "override_jit_cuda_arch": lambda *_args, **_keywords: contextlib.nullcontext(),
        }

    def _record(self, *args: Any, **keywords: Any) -> MagicMock:
        self.calls.append((args, keywords))
        return MagicMock()

    def functions(self) -> Iterator[tuple[Path, str, Any, Namespace]]:
        """Each function that calls `load_jit`, with its file and the names that it sees."""
        for file in sorted((self.directory / "sglang").rglob("*.py")):
            text = file.read_text()
            if "load_jit(" not in text:
                continue
            for node in ast.parse(text).body:
                if isinstance(node, ast.FunctionDef) and node.name != "load_jit" and _calls_load_jit(node):
                    names = self._run(".".join(file.relative_to(self.directory).with_suffix("").parts), file)
                    yield file, node.name, inspect.unwrap(names[node.name]), names

    def _run(self, module: str, file: Path) -> Namespace:
        if module in self._files:
            return self._files[module]
        names = self._files[module] = Namespace(self, module, file)
        future = ast.parse("from __future__ import annotations").body
        for statement in ast.parse(file.read_text()).body:
            code = compile(ast.Module([*future, statement], []), str(file), "exec")
            with contextlib.suppress(Exception):  # it needs what is not installed
                exec(code, names)
        return names

    def import_module(
        self, name: str, globals_: Any = None, _locals: Any = None, wanted: Any = (), level: int = 0
    ) -> Any:
        """`__import__` for the files of the release."""
        if level:
            parts = globals_["__name__"].split(".")
            package = Path(globals_["__file__"]).name == "__init__.py"
            parts = parts[: len(parts) - level + package]
            name = ".".join([*parts, *filter(None, [name])])
        root = name.split(".")[0]
        if root == "torch" or root in sys.stdlib_module_names:
            with contextlib.suppress(ImportError):
                return builtins.__import__(name, fromlist=wanted or ())
        if root != "sglang" or not wanted:
            if isinstance(globals_, Namespace) and root not in ("sglang", "torch"):
                globals_.absent.add(root)
            return MagicMock(name=name)
        return types.SimpleNamespace(**{part: self._name_of(name, part) for part in wanted if part != "*"})

    def _name_of(self, module: str, name: str) -> Any:
        if name in self.utilities:
            return self.utilities[name]
        place = self.directory.joinpath(*module.split("."))
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if file.is_file():
                names = self._run(module, file)
                if name in names:
                    return names[name]
        file = place / f"{name}.py"
        if file.is_file():
            return types.SimpleNamespace(**self._run(f"{module}.{name}", file))
        return MagicMock(name=name)


def _calls_load_jit(function: ast.FunctionDef) -> bool:
    names = (getattr(n.func, "id", getattr(n.func, "attr", "")) for n in ast.walk(function) if isinstance(n, ast.Call))
    return "load_jit" in names


def main() -> None:
    release = Release(Path(sys.argv[1]).resolve())
    with (
        patch("torch.cuda.is_available", lambda: True),
        patch("torch.cuda.current_device", lambda: 0),
        patch("torch.cuda.get_device_capability", lambda *_args: CAPABILITY),
    ):
        for file, name, function, names in release.functions():
            release.calls.clear()
            where = {"file": str(file.relative_to(release.directory)), "function": name}
            error = "no call of load_jit"
            try:
                parameters = inspect.signature(function).parameters.values()
                function(**{p.name: sample(f"{file.stem}.{name}", p, names) for p in parameters})
            except Exception as caught:  # noqa: BLE001 - what the release itself refuses is a result
                absent = f", without {', '.join(sorted(names.absent))}" if names.absent else ""
                error = f"{type(caught).__name__}: {caught}{absent}"
            if not release.calls:
                print(json.dumps({**where, "error": error}))
            for args, keywords in release.calls:
                print(json.dumps({**where, "markers": [str(a) for a in args], "keywords": keywords}, default=str))


if __name__ == "__main__":
    main()
