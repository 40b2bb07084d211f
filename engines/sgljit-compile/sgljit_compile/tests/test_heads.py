"""The norm of heads, their rotation and the store: what is put on an op, and what is not."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from .test_norms import Norm as RowNorm
from .tiny import EVERYWHERE, mostly_slow, seen

NEEDED = "its heads are needed elsewhere, which an op in place would have to copy"
BATCH, TOKENS, HEADS, KV_HEADS, SIZE, HIDDEN, LENGTH = 2, 3, 4, 2, 16, 64, 32


class Norm(RowNorm):
    """The norm of a head, whose weight has the size of a head."""

    def __init__(self, dtype=torch.float32):
        super().__init__(dtype)
        self.weight = nn.Parameter(self.weight[:SIZE].clone(), requires_grad=False)


def rotate_half(x):
    first, second = x[..., : SIZE // 2], x[..., SIZE // 2 :]
    return torch.cat((-second, first), dim=-1)


def rotated(x, cos, sin):
    return x * cos + rotate_half(x) * sin


def rotated_by_halves(x, cos, sin):
    first, second = torch.chunk(x, 2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def angles(positions, dtype, halves=False):
    inverse = 1.0 / (100.0 ** (torch.arange(0, SIZE, 2, device=positions.device) / SIZE))
    freqs = positions[..., None].float() * inverse
    whole = freqs if halves else torch.cat((freqs, freqs), dim=-1)
    return (whole.cos() * 1.0).to(dtype), (whole.sin() * 1.0).to(dtype)


class Prologue(nn.Module):
    """Projections, norms, rotation and store of a decoder layer, as models of transformers have them.

    Its parts are attributes, which a test replaces.
    """

    def __init__(self, dtype=torch.float32, normed=True, plus_one=False, stored=True, halves=False):
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        sizes = {"q": HEADS, "k": KV_HEADS, "v": KV_HEADS}
        for name, heads in sizes.items():
            weight = (torch.randn(HIDDEN, heads * SIZE, generator=generator) / 8).to(dtype)
            self.register_buffer(f"{name}_proj", weight)
        self.q_norm, self.k_norm = (Norm(dtype), Norm(dtype)) if normed else (nn.Identity(), nn.Identity())
        if normed:
            self.k_norm.weight.data *= 1.5
            self.q_norm.plus_one = self.k_norm.plus_one = plus_one
        self.stored, self.halves = stored, halves
        self.rotate = rotated_by_halves if halves else rotated
        self.angles = angles

    def heads(self, x, name):
        return (x @ getattr(self, f"{name}_proj")).view(*x.shape[:2], -1, SIZE)

    def parts(self, x, positions):
        q, k = (norm(self.heads(x, name)).transpose(1, 2) for name, norm in (("q", self.q_norm), ("k", self.k_norm)))
        v = self.heads(x, "v").transpose(1, 2)
        cos, sin = (angle.unsqueeze(1) for angle in self.angles(positions, x.dtype, self.halves))
        return self.rotate(q, cos, sin), self.rotate(k, cos, sin), v

    def forward(self, x, positions, keys, values, start):
        q, k, v = self.parts(x, positions)
        if not self.stored:
            return q * 1, k * 1, v
        places = torch.arange(x.shape[1], device=x.device) + start
        start.add_(x.shape[1])
        keys.index_copy_(2, places, k)
        values.index_copy_(2, places, v)
        return q * 1, keys.sum(), values * 2


def given(dtype=torch.float32, batch=BATCH, tokens=TOKENS, device="cpu"):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, tokens, HIDDEN, generator=generator).to(dtype)
    caches = [torch.randn(batch, KV_HEADS, LENGTH, SIZE, generator=generator).to(dtype) for _ in "kv"]
    made = (x, torch.arange(5, 5 + tokens)[None], *caches, torch.tensor(5))
    return [tensor.to(device) for tensor in made]


def check(module, part, dtype=torch.float32, inputs=None, **options):
    inputs = given(dtype) if inputs is None else inputs
    reference = [tensor.clone() for tensor in inputs]
    with torch.no_grad():
        expected = module(*reference)
    result, record, graph = seen(module, *inputs, **options)
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 5e-3}[dtype]
    for actual, wanted in ((result, expected), (inputs, reference)):  # the caches, too
        torch.testing.assert_close(tuple(actual), tuple(wanted), rtol=tolerance, atol=tolerance)
    assert record.chains == ({part: 1} if part else {})
    own = {node.target for node in graph.graph.nodes if node.op == "get_attr"}
    assert {name for name, _ in graph.named_buffers() if name.startswith("_sgljit")} <= own
    return record, graph


@pytest.mark.parametrize(
    ("batch", "dtype"),
    [
        (1, torch.bfloat16),
        (2, torch.float32),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in [(1, torch.float32), (2, torch.bfloat16)]),
        *(pytest.param(batch, torch.float16, marks=pytest.mark.slow) for batch in (1, 2)),
    ],
)
def test_norm_rotation_and_store_are_one_op(dtype, batch):
    check(Prologue(dtype), "qk-norm + rope + store", dtype, given(dtype, batch))


@pytest.mark.parametrize(
    ("tokens", "batch"), [(1, 1), (100, 3), *(pytest.param(*x, marks=pytest.mark.slow) for x in ((1, 3), (100, 1)))]
)
def test_one_token_and_many(tokens, batch, monkeypatch):
    monkeypatch.setitem(globals(), "LENGTH", 128)
    check(Prologue(), "qk-norm + rope + store", inputs=given(batch=batch, tokens=tokens))


@pytest.mark.parametrize(
    ("halves", "stored", "plus_one"),
    [
        pytest.param(*form, marks=[] if form in ((False, True, True), (True, True, False)) else pytest.mark.slow)
        for form in itertools.product((False, True), repeat=3)
    ],
)
def test_each_form(plus_one, stored, halves):
    check(Prologue(plus_one=plus_one, stored=stored, halves=halves), "qk-norm + rope" + " + store" * stored)
    if not plus_one:
        check(Prologue(normed=False, stored=stored, halves=halves), "rope" + " + store" * stored)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [pytest.param(False, marks=pytest.mark.slow), True])
def test_norms_after_the_transposition(changes):
    class Gemma3(Prologue):
        def forward(self, x, positions, *_rest):
            q, k = (self.heads(x, name).transpose(1, 2) for name in "qk")
            cos, sin = (angle.unsqueeze(1) for angle in angles(positions, x.dtype))
            return rotated(self.q_norm(q), cos, sin), rotated(self.k_norm(k), cos, sin)

    inputs = given()
    if changes:
        torch._dynamo.mark_dynamic(inputs[0], 1)
        torch._dynamo.mark_dynamic(inputs[1], 1)
    check(Gemma3(), "qk-norm + rope", inputs=inputs)


def test_heads_behind_tokens():
    class ByToken(Prologue):
        def forward(self, x, positions, *_rest):
            cos, sin = (angle.unsqueeze(2) for angle in angles(positions, x.dtype))
            return tuple(rotated(self.heads(x, name), cos, sin) for name in "qk")

    check(ByToken(normed=False), "rope")


def test_positions_of_each_sequence():
    inputs = given()
    inputs[1] = torch.tensor([[5, 6, 7], [0, 1, 2]])
    check(Prologue(), "qk-norm + rope + store", inputs=inputs)


def test_angles_without_a_layer_of_their_own():
    """A layer that is compiled alone gets cosines and sines as inputs: nobody knows that their halves repeat."""

    class Layer(Prologue):
        def forward(self, x, cos, sin):
            return tuple(self.rotate(self.heads(x, name).transpose(1, 2), cos[:, None], sin[:, None]) for name in "qk")

    x, positions = given()[:2]
    check(Layer(normed=False), "", inputs=[x, *angles(positions, x.dtype)])
    check(Layer(normed=False, halves=True), "rope", inputs=[x, *angles(positions, x.dtype, halves=True)])


def other_half(x):
    return torch.cat((x[..., SIZE // 2 :], x[..., : SIZE // 2]), dim=-1)


def turned_back(x):
    return torch.cat((-x[..., : SIZE // 2], x[..., SIZE // 2 :]), dim=-1)


def swapped(x, cos, sin):
    second, first = torch.chunk(x, 2, dim=-1)
    cos, sin = cos[..., : SIZE // 2], sin[..., : SIZE // 2]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def interleaved(x):
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)


@pytest.mark.parametrize(
    "rotate",
    [
        pytest.param(lambda x, cos, sin: x * cos + other_half(x) * sin, id="no_sign"),
        pytest.param(lambda x, cos, sin: x * cos - rotate_half(x) * sin, id="backwards"),
        pytest.param(lambda x, cos, sin: x * cos + turned_back(x) * sin, id="first_half_negative"),
        pytest.param(swapped, id="halves_swapped"),
        pytest.param(lambda x, cos, sin: x * cos + interleaved(x) * sin, id="interleaved"),
        pytest.param(lambda x, cos, sin: x * cos + rotate_half(x + 1) * sin, id="of_another"),
    ],
)
def test_another_rotation_stays(rotate):
    module = Prologue(stored=False)
    module.rotate = rotate
    check(module, "")


def test_angles_whose_halves_differ_stay():
    def differing(positions, dtype, _halves):
        cos, sin = angles(positions, dtype, halves=True)
        return torch.cat((cos, cos + 1), -1), torch.cat((sin, sin), -1)

    module = Prologue()
    module.angles = differing
    check(module, "")


@pytest.mark.slow
@pytest.mark.parametrize("change", ["eps", "one_norm", "plus_one"])
def test_norms_that_differ_stay(change):
    module = Prologue(stored=False)
    if change == "eps":
        module.k_norm.root = lambda wide: torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
    elif change == "one_norm":
        module.k_norm = nn.Identity()
    else:
        module.k_norm.plus_one = True
    record, _ = check(module, "")
    assert "q and k have other norms" in {reason for _, reason in record.left}


def test_heads_that_are_needed_elsewhere_stay():
    class Twice(Prologue):
        def forward(self, x, positions, *_rest):
            q, k = (self.heads(x, name).transpose(1, 2) for name in "qk")
            cos, sin = (angle.unsqueeze(1) for angle in angles(positions, x.dtype))
            return rotated(q, cos, sin), rotated(k, cos, sin), q + 1

    record, _ = check(Twice(normed=False), "")
    assert record.left["rope", "something takes a value inside of it"] == 1

    class Source(Twice):
        def forward(self, x, positions, *_rest):
            q, k = self.heads(x, "q"), self.heads(x, "k")
            cos, sin = (angle.unsqueeze(1) for angle in angles(positions, x.dtype))
            return rotated(q.transpose(1, 2), cos, sin), rotated(k.transpose(1, 2), cos, sin), q + 1

    record, _ = check(Source(normed=False), "")
    assert record.left["rope", NEEDED] == 1


def test_one_projection_of_q_and_k_stays():
    class Joined(Prologue):
        def forward(self, x, positions, *_rest):
            both = (x @ torch.cat((self.q_proj, self.k_proj), -1)).view(*x.shape[:2], -1, SIZE).transpose(1, 2)
            cos, sin = (angle.unsqueeze(1) for angle in angles(positions, x.dtype))
            return rotated(both[:, :HEADS], cos, sin), rotated(both[:, HEADS:], cos, sin)

    record, _ = check(Joined(normed=False), "")
    assert "q and k share memory" in {reason for _, reason in record.left}


class Reading(Prologue):
    """A layer that reads the cache of k before it is written, behind it, or both."""

    def __init__(self, before, after):
        super().__init__()
        self.before, self.after = before, after

    def forward(self, x, positions, keys, values, start):
        before = keys * 2 if self.before else x
        result = super().forward(x, positions, keys, values, start)
        return before, result, keys * 3 if self.after else x


@pytest.mark.parametrize("before", mostly_slow(True, False))
@pytest.mark.parametrize("after", [False, True])
def test_readers_see_the_cache_of_their_time(before, after):
    check(Reading(before, after), "qk-norm + rope" if before else "qk-norm + rope + store")


def test_a_cache_that_is_no_input_gets_no_store():
    class Copied(Prologue):
        def forward(self, x, positions, keys, values, start):
            return super().forward(x, positions, keys.clone(), values.clone(), start)

    check(Copied(), "qk-norm + rope")


def test_a_cache_in_another_layout_gets_no_store():
    inputs = given()
    inputs[2] = inputs[2].transpose(2, 3).contiguous().transpose(2, 3)
    check(Prologue(), "qk-norm + rope", inputs=inputs)


def test_caches_that_share_memory_get_no_store():
    inputs = given()
    both = torch.randn(BATCH, KV_HEADS, LENGTH + 8, SIZE)
    inputs[2], inputs[3] = both[:, :, :LENGTH], both[:, :, 8:]
    module = Prologue()
    expected = [tensor.clone() for tensor in inputs]
    copied = both.clone()
    expected[2], expected[3] = copied[:, :, :LENGTH], copied[:, :, 8:]
    wanted = module(*expected)
    result, record, _ = seen(module, *inputs)
    torch.testing.assert_close(result, wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(both, copied, rtol=1e-5, atol=1e-5)
    assert record.chains == {"qk-norm + rope": 1}


@pytest.mark.slow
@pytest.mark.parametrize("which", [2, 3])
def test_caches_of_two_lengths_get_no_store(which):
    """One list of slots is for both."""
    inputs = given()
    inputs[which] = torch.randn(BATCH, KV_HEADS, 2 * LENGTH, SIZE)
    check(Prologue(), "qk-norm + rope", inputs=inputs)


def test_strides_that_something_names_stay():
    class Restrided(Prologue):
        def forward(self, x, positions, *_rest):
            q, k, _ = self.parts(x, positions)
            tokens = x.shape[1]
            rows = (BATCH, KV_HEADS, tokens * SIZE)
            return q * 1, k.as_strided(rows, (KV_HEADS * tokens * SIZE, tokens * SIZE, 1)) * 2

    check(Restrided(halves=True), None)


def test_a_cache_of_another_dtype_gets_no_store():
    class Narrow(Prologue):
        def forward(self, x, positions, keys, values, start):
            places = torch.arange(x.shape[1]) + start
            q, k = (norm(self.heads(x, n)).transpose(1, 2) for n, norm in (("q", self.q_norm), ("k", self.k_norm)))
            cos, sin = (angle.unsqueeze(1) for angle in angles(positions, x.dtype))
            keys.index_copy_(2, places, rotated(k, cos, sin).half())
            return rotated(q, cos, sin), keys.sum()

    inputs = given()
    inputs[2] = inputs[2].half()
    check(Narrow(), "qk-norm + rope", torch.float16, inputs)


@pytest.mark.slow
def test_two_layers_with_one_tensor_of_places():
    """Older caches of transformers: the store of a layer is not mistaken for that of another."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Prologue(), Prologue()

        def forward(self, x, positions, places, *caches):
            for layer, keys, values in ((self.first, *caches[:2]), (self.second, *caches[2:])):
                q, k, v = layer.parts(x, positions)
                keys.index_copy_(2, places, k)
                values.index_copy_(2, places, v)
                x = x + (q.transpose(1, 2).flatten(2) @ layer.q_proj.T) + keys.sum() + values.sum()
            return x

    x, positions, keys, values, _ = given()
    inputs = [x, positions, torch.tensor([5, 6, 7]), keys, values, keys.clone(), values.clone()]
    reference = [tensor.clone() for tensor in inputs]
    module = Two()
    expected = module(*reference)
    result, record, _ = seen(module, *inputs)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(inputs, reference, rtol=1e-4, atol=1e-4)
    assert record.chains == {"qk-norm + rope + store": 2}


def test_a_store_before_v_is_computed():
    """What reads the caches waits for v then."""

    class Early(Prologue):
        def forward(self, x, positions, keys, values, start):
            places = torch.arange(x.shape[1]) + start
            q, k = (norm(self.heads(x, n)).transpose(1, 2) for n, norm in (("q", self.q_norm), ("k", self.k_norm)))
            cos, sin = (angle.unsqueeze(1) for angle in angles(positions, x.dtype))
            keys.index_copy_(2, places, rotated(k, cos, sin))
            seen_keys = keys.sum() + keys[:, :, 0].sum()
            values.index_copy_(2, places, self.heads(x, "v").transpose(1, 2))
            return rotated(q, cos, sin) * 1, seen_keys, values.sum()

    check(Early(), "qk-norm + rope + store")


def test_v_that_needs_the_cache_of_k_gets_no_store():
    class Needing(Prologue):
        def forward(self, x, positions, keys, values, start):
            places = torch.arange(x.shape[1]) + start
            q, k, _ = self.parts(x, positions)
            keys.index_copy_(2, places, k)
            values.index_copy_(2, places, self.heads(x + keys.mean(), "v").transpose(1, 2))
            return q * 1, keys.sum(), values.sum()

    record, _ = check(Needing(), "qk-norm + rope")
    assert record.left == {("qk-norm + rope + store", "its inputs need its results"): 1}


def test_layers_behind_one_that_stays_have_their_own_q_and_k():
    class Layers(Prologue):
        def forward(self, x, positions, *_rest):
            cos, sin = (angle.unsqueeze(1) for angle in angles(positions, x.dtype))
            results = []
            for layer in range(3):
                q, k = self.q_norm(self.heads(x, "q")).transpose(1, 2), self.k_norm(self.heads(x, "k")).transpose(1, 2)
                results += [q] if layer == 0 else []
                q, k = self.rotate(q, cos, sin), self.rotate(k, cos, sin)
                x = x + q.transpose(1, 2).flatten(2) / 8 + k.mean()
            return *results, x

    inputs = given()
    result, record, _ = seen(Layers(stored=False), *inputs)
    torch.testing.assert_close(result, Layers(stored=False)(*inputs), rtol=1e-4, atol=1e-4)
    assert record.chains == {"qk-norm + rope": 2}
    del record.left["norm", "no addition is right before it"]
    assert record.left == {
        ("rope", "something takes a value inside of it"): 1,
        ("rope", "q and k are not side by side"): 1,
    }


def test_two_towers_share_their_angles():
    """The second may come first in the graph: the table of the angles must stand before both."""

    class Towers(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Prologue(stored=False), Prologue(stored=False)

        def forward(self, x, positions, *_rest):
            cos, sin = (angle.unsqueeze(1) for angle in angles(positions, x.dtype))
            early = [self.second.heads(x, name).transpose(1, 2) for name in "qk"]
            late = [self.first.heads(x + (x @ self.first.v_proj).mean(), name).transpose(1, 2) for name in "qk"]
            first = [rotated(heads, cos, sin) for heads in late]
            return *first, *(rotated(heads, cos, sin) for heads in early)

    inputs = given()
    module = Towers()
    result, record, _ = seen(module, *inputs)
    torch.testing.assert_close(result, module(*inputs), rtol=1e-5, atol=1e-5)
    assert record.chains == {"rope": 2}


def test_places_count_from_the_end_as_before():
    class Last(Prologue):
        def forward(self, x, positions, keys, values, start):
            q, k, v = self.parts(x, positions)
            places = torch.arange(x.shape[1]) - start
            keys[:, :, places] = k
            values[:, :, places] = v
            return q * 1, keys.sum(), values * 2

    check(Last(), "qk-norm + rope + store")


def test_a_place_that_is_not_there_is_an_error():
    inputs = given()
    inputs[4] = torch.tensor(LENGTH)
    with pytest.raises(Exception, match=r"out of (range|bounds)"):
        seen(Prologue(), *inputs)


@pytest.mark.slow
@pytest.mark.parametrize("stored", [pytest.param(False, marks=pytest.mark.slow), True])
def test_sizes_that_change(stored):
    inputs = given(tokens=6)
    inputs[1] = inputs[1].expand(BATCH, 6).contiguous()
    for tensor in inputs[:2]:
        torch._dynamo.mark_dynamic(tensor, 1)
    _, graph = check(Prologue(stored=stored), "qk-norm + rope" + " + store" * stored, inputs=inputs)
    assert any("sym_size" in str(node.target) for node in graph.graph.nodes)


def test_what_is_switched_off_stays():
    ops = {op: devices for op, devices in EVERYWHERE.items() if "kvcache" not in op}
    record, _ = check(Prologue(), "qk-norm + rope", ops=ops)
    assert record.left == {("qk-norm + rope + store", "switched off"): 1}
    check(Prologue(), "", ops={})
    check(Prologue(), "", ops=dict.fromkeys(EVERYWHERE, frozenset({"cuda"})))
