"""Attention with sinks by few calls: the formula, the models that have it, and what their own code takes."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import sgljit_transformers
from sgljit_transformers.attention import attending, match

from .test_models import calls
from .tiny import config, generate, model, prompt, transformers

TOLERANCES = {torch.float32: 2e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    return request.param


def never(*_args, **_kwargs):
    raise AssertionError("the model's own function")


def exact(sinks, query, key, value, mask, scaling):
    """Each head by itself, in float64, with the sink as one more token whose value is 0."""
    groups, result, weights = query.shape[1] // key.shape[1], [], []
    for b, h in itertools.product(range(query.shape[0]), range(query.shape[1])):
        scores = scaling * query[b, h].double() @ key[b, h // groups].double().T
        if mask is not None:
            scores = scores + mask[b % len(mask), 0].double()
        sink = sinks[h].double().expand(len(scores), 1)
        weights.append(torch.softmax(torch.cat((sink, scores), -1), -1)[:, 1:])
        result.append(weights[-1] @ value[b, h // groups].double())
    shape = query.shape[:2]
    return torch.stack(result).unflatten(0, shape).transpose(1, 2), torch.stack(weights).unflatten(0, shape)


def some(*shape, dtype=torch.float32, device="cpu"):
    return torch.randn(shape).to(device, dtype)


def masked(sequences, tokens, length, dtype, value=None):
    """As causal masks of sequences with padding on the left."""
    mask = torch.zeros(sequences, 1, tokens, length, dtype=dtype)
    lowest = torch.finfo(dtype).min if value is None else value
    mask.masked_fill_(torch.ones(tokens, length, dtype=torch.bool).triu(length - tokens + 1), lowest)
    mask[0, ..., : length // 3] = lowest
    return mask


KEYS = {
    "contiguous": lambda x: x.contiguous(),
    "of a projection": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "of a window": lambda x: torch.cat((torch.full_like(x, torch.nan), x), 2)[:, :, x.shape[2] :],
}


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_it_agrees_with_float64(dtype, keys, device):
    torch.manual_seed(0)
    attend, close = attending(never), TOLERANCES[dtype]
    shapes = ((1, 8, 2, 1, 7), (2, 4, 4, 1, 7), (2, 6, 2, 5, 5), (1, 4, 1, 3, 9), (3, 2, 2, 2, 1), (2, 4, 2, 1, 40))
    for batch, heads, kv_heads, tokens, length in shapes:
        query = KEYS["of a projection"](some(batch, heads, tokens, 8, dtype=dtype, device=device))
        key, value = (KEYS[keys](some(batch, kv_heads, length, size, dtype=dtype, device=device)) for size in (8, 6))
        module = SimpleNamespace(sinks=some(heads, dtype=dtype, device=device), num_key_value_groups=heads // kv_heads)
        masks = [masked(sequences, tokens, length, dtype).to(device) for sequences in {1, batch}]
        for mask in (None, *masks, masked(1, tokens, length, dtype, -torch.inf).to(device)):
            for given, options in ((mask, {}), (mask, {"sliding_window": 2, "s_aux": module.sinks, "use_cache": True})):
                result, weights = attend(module, query, key, value, given, scaling=0.3, dropout=0.0, **options)
                wanted = exact(module.sinks, query, key, value, mask, 0.3)
                assert result.shape == (batch, tokens, heads, 6)
                assert result.is_contiguous()
                assert result.dtype == weights.dtype == dtype
                torch.testing.assert_close(result.double(), wanted[0], rtol=close, atol=close)
                torch.testing.assert_close(weights.double(), wanted[1], rtol=close, atol=close)


def arguments(**changed):
    given = {"query": some(2, 4, 3, 8), "key": some(2, 2, 5, 8), "value": some(2, 2, 5, 8)}
    given |= {"attention_mask": masked(2, 3, 5, torch.float32), "scaling": 0.3, "dropout": 0.0}
    given |= {"module": SimpleNamespace(sinks=nn.Parameter(some(4)), num_key_value_groups=2)}
    return given | changed


class Other(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "changed",
    [
        {"query": some(2, 4, 3, 8).as_subclass(Other)},
        {"attention_mask": masked(2, 3, 5, torch.float32).as_subclass(Other)},
        {"query": some(2, 4, 3, 8).double()},
        {"value": some(2, 2, 5, 8).half()},
        {name: some(2, heads, 3, 8).double() for name, heads in (("query", 4), ("key", 2), ("value", 2))},
        {"attention_mask": masked(2, 3, 5, torch.float64)},
        {"attention_mask": torch.ones(2, 1, 3, 5, dtype=torch.bool)},
        {"attention_mask": torch.zeros(2, 4, 3, 5)},
        {"attention_mask": torch.zeros(2, 1, 1, 5)},
        {"attention_mask": torch.zeros(3, 5)},
        {"key": some(1, 2, 5, 8)},
        {"key": some(2, 1, 10, 8)},
        {"value": some(1, 2, 5, 8)},
        {name: some(2, heads, 3, 8).double() for name, heads in (("query", 4), ("key", 2), ("value", 2))}
        | {"attention_mask": None, "module": SimpleNamespace(sinks=some(4).double(), num_key_value_groups=2)},
        {"query": some(4, 3, 8)},
        {"dropout": 0.1},
        {"scaling": torch.tensor(0.3)},
        {"softcap": 2.0},
        {"module": SimpleNamespace(sinks=some(4).half(), num_key_value_groups=2)},
        {"module": SimpleNamespace(sinks=some(4).as_subclass(Other), num_key_value_groups=2)},
        {"module": SimpleNamespace(sinks=some(4, 1), num_key_value_groups=2)},
        {"module": SimpleNamespace(sinks=some(4), num_key_value_groups=1)},
    ],
    ids=", ".join,  # the numbers are others in each process
)
def test_what_it_does_not_take_is_the_models_own(changed):
    seen = []
    with torch.no_grad():
        given = arguments(**changed)
        answer = attending(lambda *args, **options: seen.append((args, options)) or "theirs")(**given)
    assert answer == "theirs"
    ((args, options),) = seen
    names = ("module", "query", "key", "value", "attention_mask")
    assert all(one is given[name] for one, name in zip(args, names, strict=True))
    assert options == {name: given[name] for name in given if name not in names}


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_under_vmap_it_computes_the_same():
    module = SimpleNamespace(sinks=some(4), num_key_value_groups=2, training=False)
    own = type(model("gpt_oss").model.layers[0].self_attn).forward.__globals__["eager_attention_forward"]
    given = some(3, 2, 4, 3, 8), some(3, 2, 2, 5, 8), some(3, 2, 2, 5, 8)
    mask = masked(2, 3, 5, torch.float32)

    def by(function):
        return torch.vmap(lambda q, k, v: function(module, q, k, v, mask, scaling=0.3)[0])(*given)

    with torch.no_grad():
        torch.testing.assert_close(by(attending(own)), by(own))


def sinks_in(scores, sinks):
    return torch.cat((scores, sinks.reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)), -1)


def repeated(x, groups):
    return x.repeat_interleave(groups, dim=1)


def written(weigh, repeat=repeated, last=lambda result, weights: (result, weights)):
    def eager(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
        key, value = (repeat(x, module.num_key_value_groups) for x in (key, value))
        scores = query @ key.mT * scaling
        if attention_mask is not None:
            scores = scores + attention_mask
        weights = weigh(scores, module.sinks, kwargs)
        return last((weights @ value).transpose(1, 2).contiguous(), weights)

    return eager


def weigh(scores, sinks, _options):
    return sinks_in(scores, sinks).softmax(-1)[..., :-1]


def other_names(module, q, k, v, attention_mask, scaling, dropout=0.0, **kwargs):
    return written(weigh)(module, q, k, v, attention_mask, scaling, dropout, **kwargs)


def one_more(module, query, key, value, attention_mask, scaling, dropout=0.0, softcap=None, **kwargs):
    return written(weigh)(module, query, key, value, attention_mask, scaling, dropout, **kwargs)


@pytest.mark.parametrize(
    ("eager", "is_found"),
    [
        (written(weigh), True),
        (written(lambda scores, sinks, _: weigh(scores, 0 * sinks, _)), False),
        (written(lambda scores, sinks, _: weigh(scores, -sinks, _)), False),
        (written(lambda scores, sinks, _: scores.softmax(-1)), False),
        (written(lambda scores, sinks, options: weigh(scores, options["s_aux"], options)), False),
        (written(lambda scores, sinks, options: weigh(scores, sinks, options).tril(options["sliding_window"])), False),
        (written(weigh, lambda x, groups: x.repeat(1, groups, 1, 1)), False),
        (written(weigh, last=lambda result, weights: (result, weights.float().double())), False),
        (written(weigh, last=lambda result, weights: (result.transpose(1, 2), weights)), False),
        (written(weigh, last=lambda result, weights: (result, None)), False),
        (written(weigh, last=lambda result, weights: result), False),
        (other_names, False),
        (one_more, False),
        (None, False),
    ],
)
def test_the_function_that_a_forward_names_decides(eager, is_found, monkeypatch):
    monkeypatch.setitem(globals(), "attends_by", eager)
    layer = type("Attention", (nn.Module,), {"forward": lambda self, *heads: attends_by(self, *heads)[0]})()  # noqa: F821
    assert match(layer) == "", "it has no sinks"
    layer.sinks = nn.Parameter(torch.zeros(4))
    assert match(layer) == ("attends_by" if is_found else "")


def test_a_token_takes_four_calls_that_launch_a_kernel():
    """Of ten: repeated keys and values, a product, its scale, its mask, sinks, a maximum, a difference, ..."""
    attend, key, value = attending(never), some(2, 2, 9, 8), some(2, 2, 9, 8)
    module = SimpleNamespace(sinks=some(4), num_key_value_groups=2)
    mask, query = masked(2, 1, 9, torch.float32), some(2, 1, 4, 8).transpose(1, 2)
    with torch.no_grad(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        attend(module, query, key, value, mask, 0.3)
    outer = {event.name for event in profile.events() if event.cpu_parent is None}
    views = {"view", "expand", "narrow", "reshape", "mT"}
    assert {name.removeprefix("aten::") for name in outer} - views == {"cat", "baddbmm_", "softmax", "bmm"}
    assert not {"aten::clone", "aten::contiguous"} & {event.name for event in profile.events()}


def net_of(attention="eager", **changed):
    settings = config("gpt_oss")
    vars(settings).update(changed)
    made = model("gpt_oss")
    other = transformers.AutoModelForCausalLM.from_config(settings, attn_implementation=attention).eval()
    other.load_state_dict(made.state_dict())
    return other


def padded():
    ids = torch.randint(3, 128, (2, 9), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    mask[0, :4], ids[0, :4] = 0, 0
    return ids, mask


@pytest.mark.parametrize("window", [4, 128])
@pytest.mark.parametrize("cache", [None, "static"])
def test_tokens_scores_and_weights_are_those_of_eager(window, cache):
    """Of two prompts of different lengths, past the window."""
    net, (ids, mask) = net_of(sliding_window=window), padded()
    assert {layer.self_attn.sliding_window for layer in net.model.layers} == {None, window}
    options = {"max_new_tokens": 12, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    options |= {"output_attentions": True, "cache_implementation": cache, "disable_compile": True}
    with torch.no_grad():
        expected = net.generate(ids, attention_mask=mask, **options)
        before = calls(net, ids)
        sgljit_transformers.enable(net)
        actual, after = net.generate(ids, attention_mask=mask, **options), calls(net, ids)
    assert (before["aten::max"] - after["aten::max"], after["aten::baddbmm_"]) == (2, 2)
    assert torch.equal(actual.sequences, expected.sequences)
    torch.testing.assert_close(actual.logits, expected.logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(actual.attentions, expected.attentions, rtol=1e-4, atol=1e-5)


def test_another_implementation_of_attention_stays():
    ran = []

    def mine(module, query, key, value, attention_mask, **options):
        ran.append(options["s_aux"] is module.sinks)
        return value.new_zeros(query.shape).transpose(1, 2), None

    transformers.AttentionInterface.register("mine", mine)
    net = net_of("mine")
    sgljit_transformers.enable(net)
    with torch.no_grad():
        assert not calls(net, prompt())["aten::baddbmm_"]
        assert ran == [True, True]
        net.set_attn_implementation("eager")
        assert calls(net, prompt())["aten::baddbmm_"] == 2
    assert ran == [True, True]


def test_it_is_switched_with_the_rotation_and_for_inference_alone(monkeypatch):
    net, ids = model("gpt_oss"), prompt()
    own = type(net.model.layers[0].self_attn).forward.__globals__["eager_attention_forward"]
    with torch.no_grad():
        tokens = generate(net, ids)
        for ops, choice, runs in (
            ("on", "on", True),
            ("rope", "on", True),
            ("-rope", "on", False),
            ("norm", "on", False),
            ("on", "off", False),
            ("on", "exact", False),
        ):
            monkeypatch.setenv("SGLJIT_ENGINES", choice)
            with sgljit_transformers.enabled(net, ops=ops):
                assert calls(net, ids)["aten::baddbmm_"] == 2 * runs, (ops, choice)
                assert torch.equal(generate(net, ids), tokens)
        assert not calls(net, ids)["aten::baddbmm_"]
        monkeypatch.undo()
        sgljit_transformers.enable(net)
        assert not calls(net.train(), ids)["aten::baddbmm_"]
    assert not calls(net.eval(), ids)["aten::baddbmm_"]
    assert type(net.model.layers[0].self_attn).forward.__globals__["eager_attention_forward"] is own
