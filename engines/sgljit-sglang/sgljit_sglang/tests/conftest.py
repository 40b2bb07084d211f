"""SGLang's seams without SGLang: empty modules, whose hooks are in a table, and the adapter's modules on them."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, ClassVar

import pytest

from sgljit_engines import adapter, uses
from sgljit_sglang import ADAPTER

_OURS = (
    "kernels",
    "backend",
    "norms",
    "qknorm",
    "activations",
    "rotations",
    "experts",
    "quantization",
    "caches",
    "hicache",
)


class Layer:
    """What each layer of SGLang has here."""

    capabilities: ClassVar[dict[Any, Any]] = {}

    def forward_plugin(self, *args: Any) -> Any:
        raise NotImplementedError

    def forward_cuda(self, *args: Any) -> Any:
        return "SGLang's"

    def backend_eligible(self, backend: Any, *args: Any, **kwargs: Any) -> bool:
        return True


class Seams:
    """The hooks that the adapter has registered, by the name of the function that each is around."""

    def __init__(self) -> None:
        self.hooks: dict[str, Callable[..., Any]] = {}
        self.theirs: list[tuple[Any, ...]] = []

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """The result of a hook; "SGLang's" where SGLang's function runs, whose arguments ``theirs`` gets."""
        return self.hooks[name](self._run, *args, **kwargs)

    def _run(self, *args: Any, **kwargs: Any) -> str:
        self.theirs.append((args, kwargs))
        return "SGLang's"


@pytest.fixture
def seams(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seams]:
    """The adapter put into such an SGLang; it has lost no op, and has no entry in ``report``."""
    found = Seams()

    class HookRegistry:
        @staticmethod
        def register(target: str, hook: Callable[..., Any], _kind: object) -> None:
            found.hooks[target.rpartition(".")[2]] = hook

    names = ("RMSNorm", "GemmaRMSNorm", "Gemma3RMSNorm", "Gemma4RMSNorm")
    layers = {name: type(name, (Layer,), dict(vars(Layer))) for name in names}
    modules: dict[str, dict[str, object]] = {
        "kernels.fused_op": {"BaseFusedOp": Layer},
        "kernels.spec": {
            "CapabilityRequirement": Enum("CapabilityRequirement", ["CUDA"]),
            "KernelBackend": Enum("KernelBackend", ["PLUGIN"]),
        },
        "srt.plugins.hook_registry": {"HookRegistry": HookRegistry, "HookType": Enum("HookType", ["AROUND"])},
        "srt.batch_invariant_ops": {"is_batch_invariant_mode_enabled": lambda: False},
        "srt.layers.layernorm": layers,
    }
    for name, attributes in modules.items():
        path = f"sglang.{name}".split(".")
        for length in range(1, len(path) + 1):
            part = ".".join(path[:length])
            if length == len(path) or part not in sys.modules:
                monkeypatch.setitem(sys.modules, part, types.ModuleType(part))
        vars(sys.modules[".".join(path)]).update(attributes)
    monkeypatch.setattr(adapter, "USES", table := {})
    monkeypatch.setattr(uses, "USES", table)
    monkeypatch.setattr(adapter.Adapter, "_tell_when_quiet", lambda self: None)
    lost = dict(ADAPTER.lost)
    ADAPTER.lost.clear()
    _forget()
    for name in _OURS[2:]:
        importlib.import_module(f"sgljit_sglang.{name}").replace(frozenset(ADAPTER.parts))
    yield found
    _forget()
    ADAPTER.lost.clear()
    ADAPTER.lost.update(lost)


def _forget() -> None:
    """The adapter's modules are imported anew, for this SGLang or the next."""
    for name in _OURS:
        sys.modules.pop(f"sgljit_sglang.{name}", None)
