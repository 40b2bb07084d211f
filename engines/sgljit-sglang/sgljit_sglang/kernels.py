"""The ops of this adapter, each asked before its first call of a kind whether it works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sgljit_engines import Kernels

from . import ADAPTER

DTYPES = (torch.float16, torch.bfloat16, torch.float32)

Op = Callable[..., Any]

KERNELS = Kernels(ADAPTER)
works, ran = KERNELS.works, KERNELS.ran
