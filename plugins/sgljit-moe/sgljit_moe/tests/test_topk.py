"""The choice of experts against float64, its order, and what wrong arguments get: the same on every device."""

from __future__ import annotations

import pytest
import torch

from sgljit_core import ops
from sgljit_core.errors import TensorMatchError
from sgljit_moe import reference
from sgljit_moe.plugin import FAMILY

family = ops["moe"]
NAN, INF = float("nan"), float("inf")
OPS = ("topk_softmax", "topk_sigmoid", "topk_sqrtsoftplus")
ROUNDED = {torch.float32: 2**-18, torch.float16: 2**-10, torch.bfloat16: 2**-7}


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.empty(0, device=request.param).device  # "cuda" with its index


def choose(gates, k, op="topk_softmax", **options):
    """The weights and the ids of one call."""
    gates = torch.as_tensor(gates)
    weights = torch.full((len(gates), k), -1.0, device=gates.device)
    ids = torch.full((len(gates), k), -1, dtype=torch.int32, device=gates.device)
    getattr(family, op)(weights, ids, gates, **options)
    return weights, ids


each_op = pytest.mark.parametrize(  # each op and dtype is a loop for the CPU to compile
    "op", [x if x == "topk_sigmoid" else pytest.param(x, marks=pytest.mark.slow) for x in OPS]
)


@each_op
@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, *(pytest.param(x, marks=pytest.mark.slow) for x in (torch.float32, torch.float16))]
)
def test_it_agrees_with_float64(op, dtype, device):
    torch.manual_seed(0)
    samples = [sample for sample in FAMILY.declared()[op].samples(device) if sample["gating_output"].dtype == dtype]
    assert samples
    for sample in samples:
        wanted = {name: x.clone() if isinstance(x, torch.Tensor) else x for name, x in sample.items()}
        sample["topk_weights"][:], sample["topk_ids"][:] = NAN, -1
        getattr(reference, op)(**wanted)
        getattr(family, op)(**sample)
        assert torch.equal(sample["topk_ids"], wanted["topk_ids"])
        close = ROUNDED[sample["topk_weights"].dtype]
        torch.testing.assert_close(sample["topk_weights"], wanted["topk_weights"], rtol=close, atol=0)


@pytest.mark.parametrize("grouped", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("dtype", [pytest.param(torch.float16, marks=pytest.mark.slow), torch.bfloat16])
def test_weights_of_16_bits_are_those_of_float32_rounded_once(dtype, grouped, device):
    torch.manual_seed(0)
    gates = torch.randn(67, 60, device=device).bfloat16()
    bias = torch.randn(60, device=device).bfloat16()
    options = {"num_expert_group": 6, "topk_group": 3, "correction_bias": bias} if grouped else {}
    weights, ids = choose(gates, 5, "topk_sigmoid", renormalize=True, routed_scaling_factor=2.5, **options)
    memory = torch.full((67, 11), NAN, device=device, dtype=dtype)
    same_ids = torch.full_like(ids, -1)
    given = {"renormalize": True, "routed_scaling_factor": 2.5, **options}
    family.topk_sigmoid(memory[:, 1::2], same_ids, gates, **given)
    assert torch.equal(same_ids, ids)
    assert torch.equal(memory[:, 1::2], weights.to(dtype))
    assert memory[:, ::2].isnan().all()


def test_known_weights(device):
    gates = torch.tensor([[1.0, 3.0, 2.0, 0.0]], device=device).log()
    weights, ids = choose(gates, 2)
    assert ids.tolist() == [[1, 2]]
    torch.testing.assert_close(weights.cpu(), torch.tensor([[3 / 6, 2 / 6]]))
    weights, _ = choose(gates, 2, renormalize=True, routed_scaling_factor=2.5)
    torch.testing.assert_close(weights.cpu(), torch.tensor([[1.5, 1.0]]))  # a softmax of the chosen, scaled
    weights, _ = choose(gates, 2, "topk_sigmoid")
    torch.testing.assert_close(weights.cpu(), torch.tensor([[3 / 4, 2 / 3]]))  # x / (1 + x)
    weights, _ = choose(gates, 2, "topk_sqrtsoftplus")
    torch.testing.assert_close(weights.cpu(), torch.tensor([[4.0, 3.0]]).log().sqrt())  # log(1 + x)
    bias = torch.tensor([0.0, -1, 0, 1], device=device)
    weights, ids = choose(gates, 2, "topk_sigmoid", correction_bias=bias, renormalize=True)
    assert ids.tolist() == [[3, 2]]  # 0 + 1 and 2 / 3
    torch.testing.assert_close(weights.cpu(), torch.tensor([[0.0, 1.0]]))  # of the scores alone


def test_a_softplus_has_all_digits_of_every_gate(device):
    gates = torch.cat([torch.linspace(-60, 60, 4001), torch.tensor([-87.0, 1e-30, 3e38, INF, -INF, NAN])]).view(-1, 1)
    wanted = torch.nn.functional.softplus(gates.double(), threshold=50).sqrt().float()
    weights, _ = choose(gates.to(device), 1, "topk_sqrtsoftplus")
    torch.testing.assert_close(weights.cpu(), wanted, rtol=2**-21, atol=0, equal_nan=True)
    bias = torch.zeros(1, device=device)
    assert torch.equal(
        choose(gates.to(device), 1, "topk_sqrtsoftplus", correction_bias=bias)[0].isnan().cpu(), wanted.isnan()
    )


@pytest.mark.slow
def test_groups_are_ranked_by_one_expert_or_by_two(device):
    scores = torch.tensor([[0.9, 0.1, 0.1, 0.6, 0.7, 0.1]], device=device)
    gates = scores.logit()
    options = {"num_expert_group": 3, "topk_group": 1}
    assert choose(gates, 2, "topk_sigmoid", **options)[1].tolist() == [[0, 1]]
    bias = torch.tensor([-0.4, 0, 0.45, 0, 0, 0], device=device)  # 0.5 + 0.1, 0.55 + 0.6, 0.7 + 0.1
    assert choose(gates, 2, "topk_sigmoid", correction_bias=bias, **options)[1].tolist() == [[3, 2]]
    assert choose(gates, 4, **{**options, "topk_group": 2})[1].tolist() == [[0, 4, 1, 5]]
    alone = {"num_expert_group": 6, "topk_group": 2, "correction_bias": bias}
    assert choose(gates, 2, "topk_sigmoid", **alone)[1].tolist() == [[4, 3]]


@each_op
@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=pytest.mark.slow), torch.bfloat16])
def test_of_equal_experts_the_first_comes_first_and_nan_last(op, dtype, device):
    def ids(*rows, k=4, **options):
        return choose(torch.tensor(rows, device=device).to(dtype), k, op, **options)[1].tolist()

    assert ids([1, 2, 2, 1], [0.0, -0.0, 0.0, -0.0]) == [[1, 2, 0, 3], [0, 1, 2, 3]]
    assert ids([NAN, -INF, NAN, 3e38], [-INF] * 4, [NAN] * 4) == [[3, 1, 0, 2], [0, 1, 2, 3], [0, 1, 2, 3]]
    assert ids([-NAN, 1, INF, -INF]) == [[2, 1, 3, 0]]
    assert ids([1, 1, 1, 1], [NAN, 1, 0, 0], k=2, num_expert_group=2, topk_group=1) == [[0, 1], [1, 0]]
    bias = torch.zeros(4, device=device)
    # A group whose second expert is NaN has a sum of NaN.
    grouped = {"num_expert_group": 2, "topk_group": 1, "correction_bias": bias}
    wanted = [[0, 1]] if op == "topk_softmax" else [[2, 3]]  # all of a softmax is NaN then
    assert ids([NAN, 1, -9, -9], k=2, **grouped) == wanted


def test_what_is_not_a_number_reaches_the_weights_that_it_concerns(device):
    gates = torch.tensor([[NAN, 1, 0], [INF, 1, 0], [-INF] * 3, [3e38, 1, 0], [-INF, 1, -INF]], device=device)
    weights = choose(gates, 2)[0].tolist()
    assert [row[0] != row[0] for row in weights] == [True, True, True, False, False]
    assert weights[3:] == [[1, 0], [1, 0]]
    weights = choose(gates[:1], 2, renormalize=True)[0]  # the NaN is not chosen
    torch.testing.assert_close(weights.sum().item(), 1.0)
    assert choose(gates, 3, "topk_sigmoid")[0][:3, 2].isnan().tolist() == [True, False, False]
    # No weight at all is none after a division by their sum either.
    gates = torch.full((1, 4), -200.0, device=device)
    assert choose(gates, 2, "topk_sigmoid", renormalize=True)[0].tolist() == [[0, 0]]


def given(device, **changed):
    shapes = {"topk_weights": (2, 4), "topk_ids": (2, 4), "gating_output": (2, 12), "correction_bias": (12,)}
    tensors = {name: torch.zeros(*shape, device=device) for name, shape in shapes.items()}
    return {**tensors, "topk_ids": tensors["topk_ids"].int(), **changed}


zeros = torch.zeros
BAD = {
    "too many experts": (
        {"topk_weights": zeros(2, 13), "topk_ids": zeros(2, 13).int()},
        "topk_weights",
        "dimension 1: expected at most 12, of 12 experts to choose from, but got 13",
    ),
    "more than a list holds": (
        {"topk_weights": zeros(2, 33), "gating_output": zeros(2, 64)},
        "topk_weights",
        "dimension 1: expected at most 32, of 64 experts to choose from, but got 33",
    ),
    "more than the groups have": (
        {"num_expert_group": 4, "topk_group": 1},
        "topk_weights",
        "dimension 1: expected at most 3, of 3 experts to choose from, but got 4",
    ),
    "groups that do not divide": (
        {"num_expert_group": 5},
        "gating_output",
        "dimension 1: expected a multiple of num_expert_group, 5, but got 12",
    ),
    "experts in groups": (
        {"gating_output": zeros(2, 1 << 17), "num_expert_group": 2},
        "gating_output",
        "dimension 1: expected at most 65536 experts in groups, but got 131072",
    ),
    "dimensions of gates": ({"gating_output": zeros(12)}, "gating_output", "Dimension mismatch: expected 2 but got 1"),
    "dimensions of ids": ({"topk_ids": zeros(8).int()}, "topk_ids", "Dimension mismatch: expected 2 but got 1"),
    "columns of ids": ({"topk_ids": zeros(2, 3).int()}, "topk_ids", "for a row: expected 4 but got 3"),
    "tokens of ids": ({"topk_ids": zeros(3, 4).int()}, "topk_ids", "number of rows: expected 2 but got 3"),
    "tokens of weights": ({"topk_weights": zeros(3, 4)}, "topk_weights", "number of rows: expected 2 but got 3"),
    "experts of the bias": ({"correction_bias": zeros(11)}, "correction_bias", "for a row: expected 12 but got 11"),
    "dtype of gates": ({"gating_output": zeros(2, 12).int()}, "gating_output", "DType mismatch"),
    "dtype of weights": (
        {"topk_weights": zeros(2, 4).double()},
        "topk_weights",
        "expected one of .float32, float16, bfloat16. but got float64",
    ),
    "integers for weights": ({"topk_weights": zeros(2, 4).int()}, "topk_weights", "bfloat16. but got int32"),
    "weights of ids": ({"topk_ids": zeros(2, 4)}, "topk_ids", "expected one of .int32, int64. but got float32"),
    "dtype of ids": ({"topk_ids": zeros(2, 4).short()}, "topk_ids", "int32, int64. but got int16"),
    "dtype of the bias": ({"correction_bias": zeros(12).long()}, "correction_bias", "DType mismatch"),
    "columns of gates apart": ({"gating_output": zeros(12, 2).t()}, "gating_output", "side by side"),
}


@pytest.mark.parametrize("case", BAD)
def test_tensors_that_do_not_fit_are_refused_with_the_cause(case, device):
    changed, name, text = BAD[case]
    arguments = given(device)
    for key, x in changed.items():
        arguments[key] = x.to(device) if isinstance(x, torch.Tensor) else x
    with pytest.raises(TensorMatchError, match=rf"(?s)^\w+\(\): Tensor match failed for {name}, Tensor<.*{text}"):
        family.topk_sigmoid(**arguments)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_expert_group": 0}, "num_expert_group must be from 1 to 32, got 0"),
        ({"num_expert_group": 33}, "num_expert_group must be from 1 to 32, got 33"),
        ({"num_expert_group": 2, "topk_group": 3}, "topk_group must be from 1 to num_expert_group, 2, got 3"),
        ({"topk_group": 0}, "topk_group must be from 1 to num_expert_group, 1, got 0"),
    ],
)
def test_groups_out_of_range_are_refused(options, text, device):
    with pytest.raises(ValueError, match=text):
        family.topk_softmax(**given(device, **options))


@pytest.mark.parametrize("groups", [2, 3, 32])
def test_each_of_the_most_experts_that_groups_may_have_is_in_its_group(groups, device):
    experts = (1 << 16) // groups * groups
    best = torch.arange(groups, device=device) * (experts // groups)
    best = torch.cat((best, best + experts // groups - 1))  # the first and the last of each group
    gates = torch.zeros(2 * groups, experts, device=device)
    gates[torch.arange(2 * groups), best] = 1
    weights, ids = torch.full((2 * groups, 1), torch.nan, device=device), torch.full((2 * groups, 1), -1, device=device)
    family.topk_softmax(weights, ids, gates, num_expert_group=groups, topk_group=1)
    assert torch.equal(ids[:, 0], best)


def test_shared_memory_is_refused(device):
    gates = zeros(2, 12, device=device)
    with pytest.raises(ValueError, match=r"rows of topk_weights share memory with .* of gating_output"):
        family.topk_softmax(**given(device, gating_output=gates, topk_weights=gates[:, :4]))
    with pytest.raises(ValueError, match="rows of topk_ids share memory with each other"):
        family.topk_softmax(**given(device, topk_ids=zeros(1, 4, device=device).int().expand(2, 4)))


@pytest.mark.gpu
def test_a_tensor_on_another_device_is_refused():
    with pytest.raises(TensorMatchError, match=r"(?s)for topk_ids, Tensor<.*Device mismatch: expected cuda"):
        family.topk_softmax(**given("cuda", topk_ids=zeros(2, 4).int()))
