"""A process in which SGLang has loaded its plugins, as SGLang does that once in each."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap

import pytest

needs_sglang = pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="SGLang is not installed")
on_devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])

START = """
import logging
import sys
logging.basicConfig(level=logging.INFO)
import torch
torch.manual_seed(0)
DEVICE = sys.argv[1]
torch.set_default_device(DEVICE)
"""
LOAD = """
from sglang.srt.plugins import load_plugins
from sglang.kernels.spec import CapabilityRequirement, KernelBackend
from sglang.srt.layers import layernorm

layernorm.is_batch_invariant_mode_enabled  # imported: the hooks reach modules that are there already
load_plugins()
import sgljit_sglang
PLUGIN = KernelBackend.PLUGIN

def rms(x, weight, eps):
    x = x.double()
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.double()).float()

def loaded():  # the families that were imported
    return {name[len("sgljit_"):] for name in sys.modules if name.startswith("sgljit_") and "." not in name} - {
        "core", "engines", "sglang"
    }

def counted():  # by op, the calls of ours
    from sgljit_engines import report
    calls = {}
    for use in report():
        if use.calls:
            calls[use.op] = calls.get(use.op, 0) + use.calls
    return calls
"""


def run(code: str, *, before: str = "", device: str = "cpu", **environment: str) -> str:
    """What a process prints, on both streams, in which SGLang has loaded its plugins.

    Args:
        code: what it does then.
        before: what it does before that.
        device: where tensors are that name no device.
        environment: variables beside ``SGLJIT_ENGINES=strict``.
    """
    script = START + textwrap.dedent(before) + LOAD + "with torch.inference_mode():\n"
    script += textwrap.indent(textwrap.dedent(code), "    ")
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, device],
        env={**os.environ, "SGLJIT_ENGINES": "strict", **environment},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr
