"""The order of experts for grouped products, against a stable sort; and what wrong arguments get."""

from __future__ import annotations

import pytest
import torch

from sgljit_core import ops
from sgljit_core.errors import TensorMatchError
from sgljit_moe import reference
from sgljit_moe.plugin import FAMILY

sort = ops["moe"].sort_by_expert
POISON, GUARDS = -77, 5
OUTPUTS = ("pairs", "expert_ids", "places", "ends")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.empty(0, device=request.param).device  # "cuda" with its index


def run(ids, experts):
    """The outputs of one call; nothing beside them is written."""
    sizes = (ids.numel(),) * 3 + (experts,)
    memories = [torch.full((size + 2 * GUARDS,), POISON, dtype=torch.int32, device=ids.device) for size in sizes]
    outputs = [memory[GUARDS : GUARDS + size] for memory, size in zip(memories, sizes, strict=True)]
    sort(ids, *outputs)
    for memory in memories:
        assert (torch.cat([memory[:GUARDS], memory[-GUARDS:]]) == POISON).all()
    return outputs


def check(ids, experts):
    found = run(ids, experts)
    wanted = [torch.empty_like(one) for one in found]
    reference.sort_by_expert(ids, *wanted)
    for name, one, other in zip(OUTPUTS, found, wanted, strict=True):
        assert torch.equal(one, other), name


def test_a_known_order(device):
    ids = torch.tensor([[2, 0], [2, 3], [0, 2]], dtype=torch.int32, device=device)
    assert [one.tolist() for one in run(ids, 5)] == [
        [1, 4, 0, 2, 5, 3],
        [0, 0, 2, 2, 2, 3],
        [2, 0, 3, 5, 1, 4],
        [2, 2, 5, 6, 6],
    ]


def test_ids_of_no_expert_are_left_out(device):
    ids = torch.tensor([[-1, 0], [1, 2], [2**31, -(2**63)], [2**32, 1]], device=device)
    assert [one.tolist() for one in run(ids, 2)] == [
        [1, 2, 7, 8, 8, 8, 8, 8],
        [0, 1, 1, -1, -1, -1, -1, -1],
        [-1, 0, 1, -1, -1, -1, -1, 2],
        [1, 3],
    ]


# Tokens, experts of a token, experts: none, few pairs, one block's, a cluster's, odd ones, the most experts.
SIZES = (
    (0, 8, 256),
    (3, 0, 8),
    (1, 1, 1),
    (1, 4, 32),
    (1, 8, 128),
    (33, 1, 7),
    (16, 8, 2048),
    (43, 3, 60),
    (256, 8, 256),
    (257, 8, 256),
    (1367, 3, 2048),
    (16384, 8, 60),
)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_sizes_of_models_and_odd_ones(size, dtype, device):
    torch.manual_seed(1)
    tokens, k, experts = size
    ids = torch.randint(experts, (tokens, k), device=device).to(dtype)
    check(ids, experts)
    check(torch.full_like(ids, experts - 1), experts)  # all to one
    check(torch.randint(-2, experts + 2, (tokens, k), device=device).to(dtype), experts)


def test_what_pytorch_computes_one_by_one(device):
    torch.manual_seed(2)
    ids = torch.rand(300, 64, device=device).topk(6).indices
    pairs, expert_ids, places, ends = run(ids, 64)
    wanted, order = ids.view(-1).sort(stable=True)
    assert torch.equal(expert_ids.long(), wanted)
    assert torch.equal(pairs.long(), order)
    assert torch.equal(places.long(), order.argsort())
    assert torch.equal(ends.long(), wanted.bincount(minlength=64).cumsum(0))


def given(device, **changed):
    arguments = {"topk_ids": torch.zeros(6, 2, dtype=torch.int32, device=device)}
    arguments |= {name: torch.zeros(12, dtype=torch.int32, device=device) for name in OUTPUTS}
    return arguments | {name: x.to(device) for name, x in changed.items()}


def zeros(*shape):
    return torch.zeros(*shape, dtype=torch.int32)


BAD = {
    "dimensions of ids": ({"topk_ids": zeros(12)}, "topk_ids", "Dimension mismatch: expected 2 but got 1"),
    "dtype of ids": ({"topk_ids": zeros(6, 2).float()}, "topk_ids", "one of .int32, int64. but got float32"),
    "few pairs": ({"pairs": zeros(11)}, "pairs", "expected 12 but got 11"),
    "many pairs": ({"pairs": zeros(13)}, "pairs", "expected 12 but got 13"),
    "experts of pairs": ({"expert_ids": zeros(11)}, "expert_ids", "expected 12 but got 11"),
    "dtype of places": ({"places": zeros(12).long()}, "places", "int32. but got int64"),
    "dtype of ends": ({"ends": zeros(12).long()}, "ends", "int32. but got int64"),
    "dimensions of ends": ({"ends": zeros(3, 4)}, "ends", "expected 1 but got 2"),
}


@pytest.mark.parametrize("case", BAD)
def test_tensors_that_do_not_fit_are_refused_with_the_cause(case, device):
    changed, name, text = BAD[case]
    with pytest.raises(TensorMatchError, match=rf"(?s)^\w+\(\): Tensor match failed for {name}, Tensor<.*{text}"):
        sort(**given(device, **changed))


@pytest.mark.parametrize("experts", [0, 2049])
def test_a_number_of_experts_out_of_range_is_refused(experts, device):
    text = f"the size of ends, which is the number of experts, must be from 1 to 2048, got {experts}"
    with pytest.raises(ValueError, match=text):
        sort(**given(device, ends=zeros(experts)))


@pytest.mark.parametrize("name", OUTPUTS)
def test_shared_memory_is_refused(name, device):
    memory = torch.zeros(12, dtype=torch.int32, device=device)
    for other in ("topk_ids", *OUTPUTS[: OUTPUTS.index(name)]):
        shared = {name: memory, other: memory.view(6, 2) if other == "topk_ids" else memory}
        with pytest.raises(ValueError, match=f"^{name} shares memory with {other}: "):
            sort(**{**given(device), **shared})


def test_samples_have_every_kernel():
    ids = [sample["topk_ids"] for sample in FAMILY.declared()["sort_by_expert"].samples(torch.device("cpu"))]
    assert len({(one.dtype, one.numel() > 128, one.numel() > 2048) for one in ids}) == 6
