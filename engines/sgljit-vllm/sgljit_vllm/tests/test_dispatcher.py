"""The overrides of ``torch.ops._C`` in a process without vLLM: what they call, and what they leave to vLLM."""

from __future__ import annotations

import importlib.util
import logging

import pytest
import torch

from sgljit_engines import report

pytestmark = pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM itself is there")

ALL = frozenset({"silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul", "rmsnorm", "fused_add_rmsnorm"})


def kernel_of(name: str, namespace: str = "_C"):
    """A kernel of vLLM."""
    return getattr(getattr(torch.ops, namespace), name)


def activated(kernel: str = "silu_and_mul", *more: object) -> torch.Tensor:
    """The result of a kernel of vLLM for gates of 1 and a second half of 2."""
    out = torch.full((3, 16), torch.nan)
    kernel_of(kernel)(out, torch.cat([torch.ones(3, 16), torch.full((3, 16), 2.0)], -1), *more)
    return out


def test_kernels_of_activations_and_norms_run_on_ours(dispatcher):
    dispatcher.replace_activations(ALL)
    dispatcher.replace_norms(ALL)
    torch.testing.assert_close(activated(), torch.full((3, 16), 2 * torch.sigmoid(torch.tensor(1.0)).item()))
    weight = torch.rand(64)
    for x in (torch.randn(64), torch.randn(3, 4, 128)[..., :64], torch.randn(3, 64)):  # the second: heads with gaps
        out = torch.full(x.shape, torch.nan)
        kernel_of("rms_norm")(out, x, weight, 1e-6)
        expected = torch.nn.functional.rms_norm(x.double(), (64,), weight.double(), 1e-6)
        torch.testing.assert_close(out, expected.float())
    residual, total = torch.randn(3, 64), x.clone()
    kernel_of("fused_add_rms_norm")(total, residual, weight, 1e-6)
    expected = torch.nn.functional.rms_norm(residual.double(), (64,), weight.double(), 1e-6)
    torch.testing.assert_close(total, expected.float())


CHANGES = {
    "one more": ("silu_and_mul", "(Tensor! out, Tensor input, float limit=7.0) -> ()"),
    "another type": ("silu_and_mul", "(Tensor! out, Tensor[] input) -> ()"),
    "another order": ("silu_and_mul", "(Tensor input, Tensor! out) -> ()"),
    "a result": ("silu_and_mul", "(Tensor! out, Tensor input) -> Tensor"),
    "no weight": ("rms_norm", "(Tensor! result, Tensor input, float epsilon) -> ()"),
}


@pytest.mark.parametrize(("kernel", "schema"), CHANGES.values(), ids=CHANGES)
def test_a_kernel_with_another_schema_is_left_alone_with_one_warning(kernel, schema, schemas, request, caplog):
    schemas[kernel] = schema
    dispatcher = request.getfixturevalue("dispatcher")
    caplog.set_level(logging.WARNING, "vllm.sgljit")
    for _ in range(2):  # vLLM may load plugins more than once
        dispatcher.replace_activations(ALL)
        dispatcher.replace_norms(ALL)
    (text,) = caplog.messages
    assert f"leaves {kernel} to " in text
    assert f"_C::{kernel}(" in text
    assert text.endswith("and ours takes (Tensor!, Tensor)" if kernel != "rms_norm" else "Tensor, Tensor, float)")
    (use,) = report()
    assert "its schema is " in use.why
    assert activated("gelu_and_mul")[0, 0] != 7, "the others are replaced"
    if kernel == "silu_and_mul" and schema.startswith("(Tensor! out, Tensor input, "):
        assert (activated(kernel, 7.0) == 7).all()


def test_a_kernel_that_vllm_lacks_is_one_warning(schemas, request, caplog):
    del schemas["silu_and_mul"]
    dispatcher = request.getfixturevalue("dispatcher")
    caplog.set_level(logging.WARNING, "vllm.sgljit")
    dispatcher.replace_activations(ALL)
    (text,) = caplog.messages
    assert text.endswith(": it has no such kernel")
    assert activated("gelu_and_mul")[0, 0] != 7


def test_the_report_has_calls_that_an_op_is_not_asked_for(dispatcher):
    dispatcher.replace_activations(ALL)
    dispatcher.replace_norms(ALL)
    out = torch.full((3, 12), torch.nan)
    kernel_of("silu_and_mul")(out, torch.ones(3, 24))  # no whole loads
    kernel_of("rms_norm")(out, torch.ones(3, 12), None, 1e-6)
    kernel_of("fused_add_rms_norm")(out, torch.ones(3, 12), torch.ones(12).half(), 1e-6)
    assert (out == 7).all()
    found = [(use.op, use.kind, use.calls, use.own_calls) for use in report()]
    assert found == [(op, "other calls", 0, 1) for op in ("silu_and_mul", "rmsnorm", "fused_add_rmsnorm")]


def test_the_report_says_that_norms_are_vllms_in_batch_invariant_mode(dispatcher, monkeypatch):
    monkeypatch.setattr(dispatcher.envs, "VLLM_BATCH_INVARIANT", True)
    dispatcher.replace_norms(ALL)
    assert {(use.op, use.why) for use in report()} == {
        (op, "VLLM_BATCH_INVARIANT asks for vLLM's own") for op in ("rmsnorm", "fused_add_rmsnorm")
    }
