"""Compiled models compute what they computed before, with the chains that they are said to have."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.utils import ReinplaceCounters

import sgljit_compile
from sgljit_compile import experts

from .tiny import MODELS, decoded, model, prompt

# What torch says on a GPU: products in float32 stay exact on purpose, a softmax of some sizes takes two kernels, and
# the pool of CUDA graphs begins with an empty one.
pytestmark = [
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning"),
    pytest.mark.filterwarnings(r"ignore:\s*Online softmax is disabled:UserWarning"),
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning"),
]

# One whole model is quick: the parts of the others, such as the norms of Gemma, are in test_norms.py and test_heads.py.
# Two models have several users: one whose heads are normalised, and one whose experts are chosen.
DECODES = [("qwen3", 1), *((name, 1) for name in MODELS if name != "qwen3"), ("qwen3", 2), ("gpt_oss", 2)]
DECODES[1:] = [pytest.param(*decode, marks=pytest.mark.slow) for decode in DECODES[1:]]


@pytest.fixture(params=[pytest.param("cpu"), pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    if request.param == "cuda" and not torch.cuda.is_available():  # outside of the checkout nobody else asks
        pytest.skip("no CUDA device")
    return request.param


def compiled(net, backend="sgljit", **options):
    torch.compiler.reset()
    options = {"options": {"chains": "on", "force_disable_caches": True}, **options} if backend == "sgljit" else options
    return torch.compile(net, backend=backend, fullgraph=True, **options)


def chains(since):
    """The chains of the graphs that were compiled since."""
    return [dict(graph.chains) for graph in sgljit_compile.explain()[since:]]


@pytest.fixture
def since():
    return len(sgljit_compile.explain())


@pytest.mark.parametrize(("name", "batch"), DECODES)
def test_decode_with_a_static_cache(name, batch, device, since):
    net, ids = model(name, device=device), prompt(batch, device=device)
    expected, reference = decoded(net, net, ids)
    ReinplaceCounters.clear()
    actual, cache = decoded(compiled(net), net, ids)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(actual.argmax(-1), expected.argmax(-1))
    for ours, theirs in zip(cache.layers, reference.layers, strict=True):
        torch.testing.assert_close((ours.keys, ours.values), (theirs.keys, theirs.values), rtol=1e-4, atol=1e-5)
    assert chains(since)
    assert all(found == MODELS[name][2] for found in chains(since))
    assert ReinplaceCounters.get_total_missed() == 0, "an op works on a copy"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt_oss", "llama"])
def test_each_of_many_tokens_is_stored_in_its_place_of_each_layer(name, device):
    """Most steps take the graph of the second one, without a pause of the host: kernels that race would show."""
    net, ids = model(name, device=device), prompt(1, device=device)
    run, places = compiled(net), 31 - ids.shape[1]
    _, reference = decoded(net, net, ids, steps=places)
    for _ in range(1 if device == "cpu" else 40):
        _, cache = decoded(run, net, ids, steps=places)
        for ours, theirs in zip(cache.layers, reference.layers, strict=True):
            torch.testing.assert_close((ours.keys, ours.values), (theirs.keys, theirs.values), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_half_precision_it_is_as_exact_as_inductor_alone(dtype, device):
    ids = prompt(device=device)
    exact, _ = decoded(model("qwen3", device=device), model("qwen3", device=device), ids, steps=1)
    net = model("qwen3", dtype, device)
    errors = {}
    for backend in ("inductor", "sgljit"):
        actual, _ = decoded(compiled(net, backend), net, ids, steps=1)
        errors[backend] = (actual.float() - exact).square().mean().sqrt()
    assert errors["sgljit"] < 1.2 * errors["inductor"]


@pytest.mark.slow
@pytest.mark.parametrize("users", [2, 16])
@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss"])
def test_the_weights_of_experts_are_not_copied(name, users, device, since, monkeypatch):
    """As ``generate`` has them for a token on a GPU."""
    if device == "cpu":
        monkeypatch.setattr(experts, "has_kernel", lambda device: True)
    elif not experts.has_kernel(torch.device(device)):
        pytest.skip("PyTorch has no kernel for grouped products on this device")
    ids = prompt(users, device=device)
    exact, _ = decoded(model(name, device=device), model(name, device=device), ids, steps=1)
    net = model(name, torch.bfloat16, device)
    net.set_experts_implementation("batched_mm")
    errors = {}
    for backend in ("inductor", "sgljit"):
        actual, _ = decoded(compiled(net, backend), net, ids, steps=1)
        errors[backend] = (actual.float() - exact).square().mean().sqrt()
    products = "products of few rows with experts" if users == 2 else "grouped experts"
    expected = {**MODELS[name][2], products: 4}
    if users == 2:
        del expected["order of experts"]
    assert chains(since) == [expected]
    assert errors["sgljit"] < 1.2 * errors["inductor"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3", "llama"])
def test_prefill(name, device, since):
    net, ids = model(name, device=device), prompt(3, 80, device)
    with torch.inference_mode():
        expected = net(ids, use_cache=False).logits
        actual = compiled(net)(ids, use_cache=False).logits
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    part = "qk-norm + rope" if name == "qwen3" else "rope"
    assert chains(since) == [{part: 2, "add + norm": 4}]


@pytest.mark.slow
def test_one_graph_serves_prompts_of_several_lengths(device, since):
    net = model("qwen3", device=device)
    call = compiled(net)
    with torch.no_grad():
        for batch, length in ((2, 9), (3, 80), (2, 17)):
            ids = prompt(batch, length, device)
            expected = net(ids, use_cache=False).logits
            torch._dynamo.mark_dynamic(ids, 0)
            torch._dynamo.mark_dynamic(ids, 1)
            torch.testing.assert_close(call(ids, use_cache=False).logits, expected, rtol=1e-4, atol=1e-5)
    assert chains(since) == [{"qk-norm + rope": 2, "add + norm": 4}]


@pytest.mark.slow
def test_where_every_number_is_dynamic_norms_stay(device, since):
    """torch.compile(dynamic=True) makes eps an input of the graph, which no op takes. Rotations are still put in."""
    net, ids = model("llama", device=device), prompt(device=device)
    with torch.no_grad():
        expected = net(ids, use_cache=False).logits
        actual = compiled(net, dynamic=True)(ids, use_cache=False).logits
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert chains(since) == [{"rope": 2}]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3", "gemma3", "gpt_oss"])
def test_generate_with_a_static_cache(name, device, since):
    net, ids = model(name, device=device), prompt(device=device)
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 8, "do_sample": False}
    expected = net.generate(ids, cache_implementation="static", disable_compile=True, **options)
    net.forward = compiled(net.forward)
    actual = net.generate(ids, cache_implementation="static", disable_compile=True, **options)
    assert torch.equal(actual, expected)
    wanted = dict(MODELS[name][2])
    # generate takes batched_mm on CUDA, which needs no order.
    if device == "cuda" and wanted.pop("order of experts", None):
        wanted["products of few rows with experts"] = 4
    assert any(found == wanted for found in chains(since))


@pytest.mark.gpu
def test_cuda_graphs(since):
    net, ids = model("qwen3", device="cuda"), prompt(1, device="cuda")
    expected, _ = decoded(net, net, ids, steps=6)
    torch.compiler.reset()
    options = {"chains": "on", "mode": "reduce-overhead"}
    call = torch.compile(net, backend="sgljit", options=options, fullgraph=True)
    actual, _ = decoded(lambda *args, **kwargs: _copied(call(*args, **kwargs)), net, ids, steps=6)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert all(found == MODELS["qwen3"][2] for found in chains(since))


def _copied(output):
    output.logits = output.logits.clone()  # the next replay writes there
    return output
