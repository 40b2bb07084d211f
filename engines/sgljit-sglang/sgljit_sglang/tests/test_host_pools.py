"""SGLang's own host pools on our transfers: back up, load, compare, in each layout whose transfers are ours.

On the CPU the pools are told that they serve CUDA; on a GPU they do, and SGLang's wheel must be importable there.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

needs_sglang = pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="SGLang is not installed")

POOLS = """
import sys
import torch
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.kernels.ops.kvcache import hicache
from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, KVBuffers, MHABufferInfo, MLABufferInfo
from sglang.srt.mem_cache.pool_host import mha, mla
import sgljit_sglang
from sgljit_sglang import hicache as ours, kernels

kind, layout, rows, device = sys.argv[1:]
on_gpu = device == "cuda"
device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
mha._is_cuda = mla._is_cuda = True
torch.manual_seed(0)
LAYERS, TOKENS, PAGE, HEADS, DIM = 3, 64, 4, 2, 64
WIDTH = HEADS * DIM if kind == "mha" else 576
heads, dim = (HEADS, DIM) if kind == "mha" else (1, 576)
used = []

for name in ours._TRANSFERS:  # what the hooks call from now on, recorded
    def record(*args, name=name, op=kernels.KERNELS.op(name), **kwargs):
        used.append((name, kwargs.get("block_quota")))
        return op(*args, **kwargs)
    kernels.KERNELS.found[name] = record
# The staged write-back is SGLang's own kernel: without it a packed pool has no way of ours to the host.
mha.can_use_write_back_jit_kernel = mla.can_use_write_back_jit_kernel = lambda **_: False

def buffers():
    if rows == "packed":
        return [torch.randn(TOKENS, heads, dim, device=device).bfloat16() for _ in range(LAYERS)]
    whole = torch.randn(TOKENS, LAYERS, heads, dim, device=device).bfloat16()
    return [whole[:, layer] for layer in range(LAYERS)]

def table(tensors):
    return torch.tensor([one.data_ptr() for one in tensors], dtype=torch.uint64, device=device)

common = dict(host_to_device_ratio=2.0, host_size=0, page_size=PAGE, layout=layout, pin_memory=on_gpu)
common |= dict(device_capacity_tokens=TOKENS, start_layer=0, end_layer=LAYERS)
if kind == "mha":
    k, v = buffers(), buffers()
    info = MHABufferInfo(
        buffers=KVBuffers(
            k=tuple(k), v=tuple(v), k_data_ptrs=table(k), v_data_ptrs=table(v), layout=KVBufferLayout.NHD
        ),
        page_size=PAGE, head_num=HEADS, head_dim=DIM, v_head_dim=DIM, dtype=torch.bfloat16, device=device,
    )
    pool = mha.MHATokenToKVPoolHost(info, **common)
    caches, host = [k, v], [pool.k_buffer, pool.v_buffer]
else:
    k = buffers()
    info = MLABufferInfo(
        buffers=tuple(k), data_ptrs=table(k), layer_indices=tuple(range(LAYERS)), device_layer_num=LAYERS,
        page_size=PAGE, kv_lora_rank=512, qk_rope_head_dim=64, kv_cache_dim=576, dtype=torch.bfloat16, device=device,
    )
    pool = mla.MLATokenToKVPoolHost(info, target_layer_num=LAYERS, **common)
    caches, host = [k], [pool.kv_buffer]
assert pool.can_use_jit
used.clear()  # the trials of the transfers

pages = torch.randperm(TOKENS // PAGE)[:9]
at_device = (pages[:, None] * PAGE + torch.arange(PAGE)).flatten()
pages = torch.randperm(pool.page_num)[:9]
at_host = (pages[:, None] * PAGE + torch.arange(PAGE)).flatten()
where = dict(host_indices=at_host.to(device), device_indices=at_device.to(device))
for buffer in host:
    buffer.fill_(7)  # poison

def of_layer(buffer, layer):
    rows = buffer[layer] if layout == "layer_first" else buffer[:, layer]
    return rows.reshape(rows.shape[0], -1)

expected = [[one[at_device.to(device)].reshape(len(at_device), -1).cpu() for one in cache] for cache in caches]
backed_up = layout == "layer_first" or rows == "strided"
if backed_up:
    pool.backup_from_device_all_layer(None, io_backend="kernel", **where)
    if on_gpu:
        torch.cuda.synchronize()
else:
    for buffer, layers in zip(host, expected):
        for layer, values in enumerate(layers):
            of_layer(buffer, layer)[at_host] = values
others = torch.ones(host[0].shape[0 if layout != "layer_first" else 1], dtype=torch.bool)
others[at_host] = False
for buffer, layers in zip(host, expected):
    for layer, values in enumerate(layers):
        assert torch.equal(of_layer(buffer, layer)[at_host], values), "what was backed up differs"
        assert (of_layer(buffer, layer)[others] == 7).all() or not backed_up

untouched = torch.ones(TOKENS, dtype=torch.bool)
untouched[at_device] = False
before = [[one[untouched.to(device)].clone() for one in cache] for cache in caches]
for cache in caches:
    for one in cache:
        one[at_device.to(device)] = 9
for layer in range(LAYERS):
    pool.load_to_device_per_layer(None, layer_id=layer, io_backend="kernel", **where)
for cache, layers, rest in zip(caches, expected, before):
    for one, values, kept in zip(cache, layers, rest):
        loaded = one[at_device.to(device)].reshape(len(at_device), -1).cpu()
        assert torch.equal(loaded, values), "what was loaded differs"
        assert torch.equal(one[untouched.to(device)], kept)
print("USED", sorted(set(used)))
"""


@needs_sglang
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("rows", ["packed", "strided"])
@pytest.mark.parametrize("layout", ["layer_first", "page_first"])
@pytest.mark.parametrize("kind", ["mha", "mla"])
def test_rows_come_back_as_they_went(kind, layout, rows, device):
    command = [sys.executable, "-W", "ignore", "-c", POOLS, kind, layout, rows, device]
    environment = {**os.environ, "SGLJIT_ENGINES": "strict"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    suffix = "_mla" if kind == "mla" else ""
    expected = [(f"transfer_hicache_one_layer{suffix}", None)]
    if layout == "layer_first" or rows == "strided":  # a backup is quiet
        expected = [(f"transfer_hicache_all_layer{suffix}", 2), *expected]
    assert f"USED {expected}" in result.stdout, result.stdout
