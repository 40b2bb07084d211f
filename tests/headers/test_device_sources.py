"""The device tests' kernels compile without a GPU, and what they check on the host works there too."""

from __future__ import annotations

import pytest
import torch
from headers import toolbox

from sgljit_core import override_cuda_arch
from sgljit_core.errors import TensorMatchError


@pytest.fixture(scope="module", params=["reductions.cu", "elements.cu", "memory.cu", "norm.cu"])
def built(request: pytest.FixtureRequest):
    toolbox.find(cuda=True)
    with override_cuda_arch(9, 0):
        return request.param, toolbox.load(request.param)


@pytest.mark.slow
def test_a_cpu_tensor_is_refused(built) -> None:
    source, module = built
    x = torch.zeros(8)
    call = {
        "reductions.cu": lambda: module.cta_sum_float32(x.view(1, 8), x.view(1, 8), x.view(1, 8)),
        "elements.cu": lambda: module.cast_float32_float32(x, x, 1),
        "memory.cu": lambda: module.atomics_float32(x[:6].view(3, 2), x, False),
        "norm.cu": lambda: module.rmsnorm_float16_64(x.half().view(1, 8), x.half().view(1, 8), x.half(), 1e-6),
    }[source]
    with pytest.raises(TensorMatchError, match=rf"at \S*{source}:\d+\n- Root cause: "):
        call()
