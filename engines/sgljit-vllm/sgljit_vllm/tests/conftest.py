"""vLLM's seams without vLLM: kernels in ``torch.ops._C`` that write 7, and the adapter's dispatcher before them."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import pytest
import torch

from sgljit_engines import adapter, uses
from sgljit_vllm import ADAPTER

SCHEMAS = {
    "silu_and_mul": "(Tensor! out, Tensor input) -> ()",
    "gelu_and_mul": "(Tensor! out, Tensor input) -> ()",
    "gelu_tanh_and_mul": "(Tensor! out, Tensor input) -> ()",
    "rms_norm": "(Tensor! result, Tensor input, Tensor? weight, float epsilon) -> ()",
    "fused_add_rms_norm": "(Tensor! input, Tensor! residual, Tensor? weight, float epsilon) -> ()",
}


def _seven(out: torch.Tensor, *_rest: object) -> None:
    out.fill_(7)


@pytest.fixture
def schemas() -> dict[str, str]:
    """By name, the schemas of vLLM's kernels. A test may change them before it asks for ``dispatcher``."""
    return dict(SCHEMAS)


@pytest.fixture
def dispatcher(schemas: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The adapter's dispatcher beside such kernels on the CPU. It has lost no op, and ``report`` is empty."""
    library = torch.library.Library("_C", "FRAGMENT")
    for name, schema in schemas.items():
        library.define(name + schema)
        library.impl(name, _seven, "CPU")
    platform = SimpleNamespace(dispatch_key="CPU", device_type="cpu", import_kernels=lambda: None)
    vllm = {
        "vllm": {"envs": SimpleNamespace(VLLM_BATCH_INVARIANT=False)},
        "vllm.platforms": {"current_platform": platform},
    }
    for name, attributes in vllm.items():
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        vars(sys.modules[name]).update(attributes)
    monkeypatch.setattr(adapter, "USES", table := {})
    monkeypatch.setattr(uses, "USES", table)
    monkeypatch.setattr(adapter.Adapter, "_tell_when_quiet", lambda self: None)
    monkeypatch.delenv("SGLJIT_ENGINES", raising=False)
    lost = dict(ADAPTER.lost)
    ADAPTER.lost.clear()
    _forget()
    found = importlib.import_module("sgljit_vllm.dispatcher")
    yield found
    for one in (*found._libraries.values(), library):
        one._destroy()
    _forget()
    ADAPTER.lost.clear()
    ADAPTER.lost.update(lost)


def _forget() -> None:
    """The adapter's modules are imported anew, for this vLLM or the next."""
    for name in ("kernels", "dispatcher"):
        sys.modules.pop(f"sgljit_vllm.{name}", None)
