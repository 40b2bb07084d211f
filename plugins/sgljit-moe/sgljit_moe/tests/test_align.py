"""Pairs sorted by expert, against a stable sort; and what wrong arguments get: the same on every device."""

from __future__ import annotations

import pytest
import torch

from sgljit_core import ops, override_cuda_arch
from sgljit_core.errors import CompileError, TensorMatchError
from sgljit_moe import reference
from sgljit_moe.plugin import FAMILY
from sgljit_tools.testing import build_variant

align = ops["moe"].moe_align_block_size
POISON, GUARDS = -77, 5


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.empty(0, device=request.param).device  # "cuda" with its index


def poisoned(size, device):
    """An output, and the memory around it."""
    memory = torch.full((size + 2 * GUARDS,), POISON, dtype=torch.int32, device=device)
    return memory[GUARDS : GUARDS + size], memory


def least_blocks(pairs, num_experts, block_size):
    return pairs if pairs < num_experts else num_experts + (pairs - num_experts) // block_size


def run(ids, num_experts, block_size, spare=0):
    """The outputs of one call, as large as they must be and ``spare`` larger; nothing beside them is written."""
    blocks = least_blocks(ids.numel(), num_experts, block_size)
    sizes = (blocks * block_size + spare, blocks + spare, 1)
    outputs, memories = zip(*(poisoned(size, ids.device) for size in sizes), strict=True)
    align(ids, num_experts, block_size, *outputs)
    for memory in memories:
        assert (torch.cat([memory[:GUARDS], memory[-GUARDS:]]) == POISON).all()
    return outputs


def agrees(ids, num_experts, block_size, spare=0):
    outputs = run(ids, num_experts, block_size, spare)
    wanted = [torch.empty_like(output) for output in outputs]
    reference.moe_align_block_size(ids, num_experts, block_size, *wanted)
    return all(torch.equal(output, one) for output, one in zip(outputs, wanted, strict=True))


def test_a_known_order(device):
    ids = torch.tensor([[2, 0], [2, 3], [0, 2]], dtype=torch.int32, device=device)
    sorted_ids, experts, padded = run(ids, 4, 2, spare=1)
    assert sorted_ids.tolist() == [1, 4, 0, 2, 5, 6, 3, 6, 6, 6, 6]
    assert experts.tolist() == [0, 2, 2, 3, -1, -1]
    assert padded.tolist() == [8]


def test_it_agrees_with_a_stable_sort(device):
    torch.manual_seed(0)
    for sample in FAMILY.declared()["moe_align_block_size"].samples(device):
        assert agrees(sample["topk_ids"], sample["num_experts"], sample["block_size"], spare=9)


# Tokens, experts of a token, experts, size of a block: one warp, one block, more padding than one block writes, more
# than one block's, odd ones.
SIZES = (
    (0, 8, 256, 64),
    (3, 0, 8, 16),
    (1, 1, 1, 1),
    (5, 1, 8, 128),
    (31, 1, 7, 3),
    (33, 1, 256, 1),
    (64, 8, 256, 128),
    (37, 6, 161, 99),
    (63, 3, 2048, 70),
    (511, 8, 256, 64),
    (512, 8, 384, 16),
    (513, 8, 256, 128),
    (1367, 3, 2048, 5),
    (16384, 8, 256, 128),
    (16384, 8, 60, 1),
)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_sizes_of_models_and_odd_ones(size, dtype, device):
    torch.manual_seed(1)
    tokens, k, experts, block_size = size
    ids = torch.randint(experts, (tokens, k), device=device).to(dtype)
    assert agrees(ids, experts, block_size)
    assert agrees(ids, experts, block_size, spare=1)
    assert agrees(torch.full_like(ids, experts - 1), experts, block_size)  # all to one
    assert agrees(torch.arange(ids.numel(), device=device).view_as(ids).to(dtype) % experts, experts, block_size)
    assert agrees(torch.randint(-2, experts + 2, (tokens, k), device=device).to(dtype), experts, block_size)


def test_ids_of_no_expert_are_left_out(device):
    ids = torch.tensor([[-1, 0], [1, 2], [2**31, -(2**63)], [2**32, 1]], device=device)
    sorted_ids, experts, padded = run(ids, 2, 4)
    assert sorted_ids.tolist() == [1, 8, 8, 8, 2, 7, 8, 8] + [8] * (len(sorted_ids) - 8)
    assert experts.tolist() == [0, 1] + [-1] * (len(experts) - 2)
    assert padded.tolist() == [8]
    sorted_ids, experts, padded = run(torch.full((600, 8), -1, device=device), 2, 4)
    assert sorted_ids.unique().tolist() == [4800]
    assert experts.unique().tolist() == [-1]
    assert padded.tolist() == [0]


def test_every_run_gives_the_same(device):
    ids = torch.randint(64, (9000, 6), device=device)
    first = run(ids, 64, 16)
    for _ in range(5):
        assert all(torch.equal(a, b) for a, b in zip(run(ids, 64, 16), first, strict=True))


def test_all_experts_that_may_be(device):
    """With the most experts few warps have room to count: each has a large chunk."""
    ids = torch.randint(2048, (3000, 8), dtype=torch.int32, device=device)
    assert agrees(ids, 2048, 64)
    assert agrees(ids % 1001, 1001, 8)


def given(device, **changed):
    ints = torch.zeros(64, dtype=torch.int32, device=device)
    arguments = {
        "topk_ids": ints[:12].clone().view(6, 2),
        "num_experts": 4,
        "block_size": 4,
        "sorted_token_ids": ints[:24].clone(),
        "expert_ids": ints[:6].clone(),
        "num_tokens_post_pad": ints[:1].clone(),
    }
    moved = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in changed.items()}
    return {**arguments, **moved}


def zeros(*shape):
    return torch.zeros(*shape, dtype=torch.int32)


BAD = {
    "dimensions of ids": ({"topk_ids": zeros(12)}, "topk_ids", "Dimension mismatch: expected 2 but got 1"),
    "dtype of ids": ({"topk_ids": zeros(6, 2).float()}, "topk_ids", "one of .int32, int64. but got float32"),
    "gaps in ids": ({"topk_ids": zeros(6, 2)}, "topk_ids", "expected a contiguous tensor"),
    "places": ({"sorted_token_ids": zeros(23)}, "sorted_token_ids", "dimension 0: expected at least 24 but got 23"),
    "dtype of places": ({"sorted_token_ids": zeros(24).long()}, "sorted_token_ids", "int32. but got int64"),
    "dimensions of places": ({"sorted_token_ids": zeros(4, 6)}, "sorted_token_ids", "expected 1 but got 2"),
    "blocks": ({"expert_ids": zeros(5)}, "expert_ids", "dimension 0: expected at least 6 but got 5"),
    "dtype of blocks": ({"expert_ids": zeros(6).float()}, "expert_ids", "int32. but got float32"),
    "count": ({"num_tokens_post_pad": zeros(2)}, "num_tokens_post_pad", "expected 1 but got 2"),
    "dtype of count": ({"num_tokens_post_pad": zeros(1).long()}, "num_tokens_post_pad", "int32. but got int64"),
}


@pytest.mark.parametrize("case", BAD)
def test_tensors_that_do_not_fit_are_refused_with_the_cause(case, device):
    changed, name, text = BAD[case]
    arguments = given(device, **changed)
    if case == "gaps in ids":
        arguments["topk_ids"] = arguments["topk_ids"].repeat(1, 2)[:, ::2]
    with pytest.raises(TensorMatchError, match=rf"(?s)^\w+\(\): Tensor match failed for {name}, Tensor<.*{text}"):
        align(**arguments)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_experts": 0}, "num_experts must be from 1 to 2048, got 0"),
        ({"num_experts": 2049}, "num_experts must be from 1 to 2048, got 2049"),
        ({"block_size": 0}, "block_size must be from 1 to 2147483647, got 0"),
        ({"block_size": 2**31}, "block_size must be from 1 to 2147483647, got 2147483648"),
        ({"block_size": 2**30}, "topk_ids has too many elements for int32, padded to blocks of 1073741824"),
    ],
)
def test_numbers_out_of_range_are_refused(options, text, device):
    with pytest.raises(ValueError, match=text):
        align(**given(device, **options))


def test_shared_memory_is_refused(device):
    memory = torch.zeros(64, dtype=torch.int32, device=device)
    for name, other, size in (
        ("sorted_token_ids", "topk_ids", 24),
        ("expert_ids", "topk_ids", 6),
        ("num_tokens_post_pad", "topk_ids", 1),
        ("expert_ids", "sorted_token_ids", 6),
        ("num_tokens_post_pad", "sorted_token_ids", 1),
        ("num_tokens_post_pad", "expert_ids", 1),
    ):
        sizes = {"topk_ids": (6, 2), "sorted_token_ids": (24,), "expert_ids": (6,)}
        shared = {name: memory[:size], other: memory[: torch.Size(sizes[other]).numel()].view(sizes[other])}
        with pytest.raises(ValueError, match=f"^{name} shares memory with {other}: "):
            align(**given(device, **shared))


def test_a_cluster_needs_sm_90():
    with override_cuda_arch(8, 0), pytest.raises(CompileError, match="clusters of blocks need sm_90"):
        build_variant(FAMILY, "align.cuh", "moe::align", True, torch.int64)
    for arch, in_cluster in (((7, 5), False), ((9, 0), True)):
        with override_cuda_arch(*arch):
            build_variant(FAMILY, "align.cuh", "moe::align", in_cluster, torch.int64)


@pytest.mark.gpu
def test_a_tensor_on_another_device_is_refused():
    with pytest.raises(TensorMatchError, match=r"(?s)for expert_ids, Tensor<.*Device mismatch: expected cuda"):
        align(**{**given("cuda"), "expert_ids": zeros(6)})


@pytest.mark.gpu
def test_streams_share_nothing():
    """Calls that run at the same time, each on a stream of its own."""
    torch.manual_seed(2)
    ids = [torch.randint(256, (16384, 8), dtype=torch.int32, device="cuda") for _ in range(4)]
    wanted = [run(one, 256, 64) for one in ids]
    streams = [torch.cuda.Stream() for _ in ids]
    torch.cuda.synchronize()
    found = []
    for _ in range(8):
        for one, stream in zip(ids, streams, strict=True):
            with torch.cuda.stream(stream):
                outputs = [torch.full_like(x, POISON) for x in wanted[0]]
                align(one, 256, 64, *outputs)
                found.append(outputs)
    torch.cuda.synchronize()
    for number, outputs in enumerate(found):
        assert all(torch.equal(a, b) for a, b in zip(outputs, wanted[number % len(ids)], strict=True))
