"""The ops of this adapter, each asked before its first call of a kind whether it works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sgljit_engines import Kernels

from . import ADAPTER

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
DEVICES = ("cpu", "cuda")

Op = Callable[..., Any]
Kind = tuple[Any, ...]

KERNELS = Kernels(ADAPTER)
works, worked, working, ran = KERNELS.works, KERNELS.worked, KERNELS.working, KERNELS.ran
