"""Products of rows with the gathered weights of their experts: what becomes a grouped product, and what does not."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._inductor.utils import run_and_get_code

import sgljit_compile
from sgljit_compile import experts, ops

from .tiny import EVERYWHERE, model, mostly_slow, prompt, seen

PART = "grouped experts"
ORDER = "order of experts"
FEW = "products of few rows with experts"
EXPERTS, K, WIDE, HIGH = 16, 4, 32, 24
OTHER_IDS = "its ids are of no choice among just these experts"
LAYOUT = "its rows or weights have another layout"
GAPS = "each row of its result begins at a multiple of 16 bytes, with a gap before it"
ALIGNMENT = "its rows do not begin at 16 bytes"
aten = torch.ops.aten


@pytest.fixture(autouse=True)
def on_any_device(monkeypatch, request):
    """PyTorch's loop on a CPU computes the same as the kernel of a GPU."""
    if "gpu" not in request.keywords:
        monkeypatch.setattr(experts, "has_kernel", lambda device: True)


class Batched(nn.Module):
    """Rows times the gathered matrices of their experts, [n, m]. Its parts are methods, which subclasses replace."""

    shape = (EXPERTS, HIGH, WIDE)

    def choose(self, gates):
        return torch.topk(gates, K, dim=-1).indices.reshape(-1)

    def rows(self, x):
        return x.repeat_interleave(K, dim=0)

    def gather(self, weights, ids):
        return weights[ids]

    def product(self, rows, matrices):
        return torch.bmm(matrices, rows.unsqueeze(-1)).squeeze(-1)

    def forward(self, x, gates, weights):
        return self.product(self.rows(x), self.gather(weights, self.choose(gates)))


class RowsFirst(Batched):
    """Matrices of [m, n], as gpt-oss has them."""

    shape = (EXPERTS, WIDE, HIGH)

    def product(self, rows, matrices):
        return torch.bmm(rows.unsqueeze(1), matrices).squeeze(1)


class Turned(RowsFirst):
    """The copies are turned."""

    shape = Batched.shape

    def gather(self, weights, ids):
        return weights[ids].transpose(1, 2)


class TurnedBack(Batched):
    shape = RowsFirst.shape

    def gather(self, weights, ids):
        return weights[ids].transpose(1, 2)


class OfTurnedWeights(Batched):
    """The weights of all are turned before."""

    shape = RowsFirst.shape

    def gather(self, weights, ids):
        return weights.mT[ids]


class Selected(Batched):
    def gather(self, weights, ids):
        return torch.index_select(weights, 0, ids)


class Multiplied(Batched):
    """By the operator for matrices of any dimensions."""

    def product(self, rows, matrices):
        return (matrices @ rows.unsqueeze(-1)).squeeze(-1)


class Kept(Batched):
    """The dimension of one element stays."""

    def product(self, rows, matrices):
        return torch.bmm(matrices, rows.unsqueeze(-1))


FORMS = [Batched, RowsFirst, Turned, TurnedBack, OfTurnedWeights, Selected, Multiplied, Kept]


def given(tokens=7, shape=Batched.shape, wide=WIDE, dtype=torch.bfloat16, device="cpu"):
    generator = torch.Generator().manual_seed(0)
    gates = torch.stack([torch.randperm(EXPERTS, generator=generator) for _ in range(tokens)] or [torch.zeros(EXPERTS)])
    x, weights = (torch.randn(*sizes, generator=generator) for sizes in ((tokens, wide), shape))
    return [x.to(device, dtype), gates[:tokens].float().to(device), weights.to(device, dtype)]


def copies(graph):
    """The gathered weights that a graph has."""
    return [x for x in graph.graph.nodes if x.target is aten.index.Tensor and x.meta["val"].dim() == 3]


def check(module, chains=None, left=None, inputs=None, **options):
    inputs = given(shape=module.shape) if inputs is None else inputs
    with torch.no_grad():
        expected = module(*inputs)
    result, record, graph = seen(module, *inputs, **options)
    torch.testing.assert_close(result, expected)
    both = isinstance(result, tuple)
    for actual, wanted in zip(result, expected, strict=True) if both else [(result, expected)]:
        assert actual.stride() == wanted.stride()
    chains = {PART: 1, ORDER: 1} if chains is None else chains
    assert record.chains == chains
    assert record.left == ({} if left is None else {(PART, left): 1})
    products = [node for node in graph.graph.nodes if node.target is aten._grouped_mm.default]
    assert len(products) == chains.get(PART, 0)
    return graph


@pytest.mark.parametrize("form", FORMS)
def test_rows_are_multiplied_without_a_copy_of_the_weights(form):
    graph = check(form())
    assert not copies(graph)
    assert not {aten.bmm.default, aten.sort.default, aten.histc.default} & {node.target for node in graph.graph.nodes}


def test_many_tokens():
    check(RowsFirst(), inputs=given(300, RowsFirst.shape))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
@pytest.mark.parametrize("tokens", [1, 4])
@pytest.mark.parametrize("form", FORMS)
def test_few_rows_are_multiplied_by_the_op(form, tokens, dtype, monkeypatch):
    monkeypatch.setattr(experts, "has_kernel", lambda device: False)  # the op needs none of PyTorch's
    graph = check(form(), {FEW: 1}, inputs=given(tokens, form.shape, dtype=dtype))
    assert not copies(graph)
    assert not {aten.bmm.default, aten.sort.default} & {node.target for node in graph.graph.nodes}


def test_more_rows_than_experts_are_grouped():
    check(Batched(), {PART: 1, ORDER: 1}, inputs=given(5))


@pytest.mark.parametrize(("rows", "count", "few"), [(64, 128, True), (65, 128, False), (8, 8, True), (9, 8, False)])
def test_how_many_rows_are_few(rows, count, few):
    graph = torch.fx.Graph()
    x, weights, ids = map(graph.placeholder, ("x", "weights", "ids"))
    x.meta["val"], weights.meta["val"] = torch.empty(rows, 1, 16), torch.empty(count, 8, 16, device="meta")
    assert experts.has_few_rows(experts.Product(x, x, 1, (x,), weights, True, ids)) == few


def test_few_rows_of_sizes_that_no_word_divides():
    check(Batched(), {FEW: 1}, inputs=given(2, (EXPERTS, 7, 13), 13))


def test_few_rows_whose_op_cannot_be_built_are_grouped(monkeypatch):
    monkeypatch.setattr(experts, "works", lambda *args, **options: False)
    _, record, graph = seen(Batched(), *given(1))
    assert record.chains == {PART: 1, ORDER: 1}
    assert record.left == {(FEW, "expert_matvec does not take it, or cannot be built"): 1}
    assert not copies(graph)


class Grouped(Batched):
    """In the order of the experts, as transformers' ``grouped_mm`` has it."""

    shape = RowsFirst.shape

    def grouped(self, rows, weights, ends):
        return torch.nn.functional.grouped_mm(rows, weights, offs=ends)

    def forward(self, x, gates, weights):
        found, pairs = torch.sort(self.choose(gates))
        places = torch.empty_like(pairs)
        places[pairs] = torch.arange(pairs.shape[0], device=pairs.device)
        wide = found.float() if found.device.type == "cpu" else found.int()
        ends = torch.histc(wide, bins=EXPERTS, min=0, max=EXPERTS - 1).cumsum(0, dtype=torch.int32)
        return self.grouped(self.rows(x)[pairs], weights, ends)[places]


class GroupedTurned(Grouped):
    shape = Batched.shape

    def grouped(self, rows, weights, ends):
        return super().grouped(rows, weights.transpose(1, 2), ends)


class OtherEnds(Grouped):
    """The rows end elsewhere than the experts' do."""

    def grouped(self, rows, weights, ends):
        return super().grouped(rows, weights, ends.flip(0).cumsum(0, dtype=torch.int32).clamp(max=len(rows)))


def grouped_products(graph):
    return [node for node in graph.graph.nodes if node.target is aten._grouped_mm.default]


@pytest.mark.parametrize("tokens", [1, 4])
@pytest.mark.parametrize("form", [Grouped, GroupedTurned])
def test_few_rows_of_a_grouped_product_are_multiplied_by_the_op(form, tokens):
    graph = check(form(), {FEW: 1, ORDER: 1}, inputs=given(tokens, form.shape))
    assert not grouped_products(graph)


@pytest.mark.parametrize(("form", "tokens"), [(Grouped, 5), (OtherEnds, 2)])
def test_a_grouped_product_of_many_rows_or_of_other_ends_stays(form, tokens):
    with torch.no_grad():
        expected = form()(*given(tokens, form.shape))
    result, record, graph = seen(form(), *given(tokens, form.shape))
    torch.testing.assert_close(result, expected)
    assert record.chains == {ORDER: 1}
    assert len(grouped_products(graph)) == 1


class MoreRows(Grouped):
    """Rows of no expert are behind those of the choices."""

    def grouped(self, rows, weights, ends):
        return super().grouped(nn.functional.pad(rows, (0, 0, 0, 2)), weights, ends)[: len(rows)]


def test_a_grouped_product_of_more_rows_than_choices_stays():
    inputs = given(1, MoreRows.shape)
    result, record, graph = seen(MoreRows(), *inputs)
    torch.testing.assert_close(result, MoreRows()(*inputs))
    assert record.chains == {ORDER: 1}
    assert len(grouped_products(graph)) == 1


class LowRank(Grouped):
    """The second product takes the first one as it is."""

    def grouped(self, rows, weights, ends):
        return super().grouped(super().grouped(rows, weights, ends), weights.transpose(1, 2), ends)


def test_a_grouped_product_of_a_grouped_product():
    graph = check(LowRank(), {FEW: 2, ORDER: 1}, inputs=given(1, LowRank.shape))
    assert not grouped_products(graph)


class NamesDistance(GroupedTurned):
    def grouped(self, rows, weights, ends):
        result = super().grouped(rows, weights, ends)
        return result.as_strided(result.shape, result.stride()) * 2


@pytest.mark.parametrize("cuda", ["13.0", None])
@pytest.mark.parametrize("form", [GroupedTurned, NamesDistance])
def test_a_grouped_product_whose_result_has_gaps_stays(form, cuda, monkeypatch):
    if form is NamesDistance and cuda is None:
        pytest.skip("the strides that PyTorch traces without CUDA are not those of the result")
    monkeypatch.setattr("torch.version.cuda", cuda)  # by which PyTorch traces the strides of the result
    inputs = given(1, (EXPERTS, 20, WIDE))
    result, record, graph = seen(form(), *inputs)
    torch.testing.assert_close(result, form()(*inputs))
    assert record.chains == {ORDER: 1}
    assert record.left == {(FEW, GAPS): 1}
    assert len(grouped_products(graph)) == 1


class OfColumns(Batched):
    """The rows are the columns of a matrix, and nobody knows how far its rows are apart."""

    def choose(self, gates):
        return gates.topk(1).indices.reshape(-1)

    def rows(self, x):
        return x.mT[:K]


class WithGaps(Batched):
    """Nobody knows how far the elements of a row are apart."""

    def gather(self, weights, ids):
        return weights[..., 0][ids]


@pytest.mark.parametrize("form", [OfColumns, WithGaps, Batched])
def test_few_rows_of_unknown_sizes_or_strides_stay(form):
    x, gates, weights = given(1, dtype=torch.float32)
    if form is OfColumns:
        x, gates = torch.randn(WIDE, 37), gates.expand(K, -1).contiguous()
    elif form is WithGaps:
        weights = torch.randn(*weights.shape, 3)
    torch._dynamo.mark_dynamic(*{OfColumns: (x, 1), WithGaps: (weights, 3), Batched: (weights, 1)}[form])
    check(form(), {}, "grouped products are compiled in bfloat16 alone", [x, gates, weights])


@pytest.mark.parametrize("sizes", [(0, WIDE), (HIGH, 0)])
def test_few_rows_of_matrices_without_elements(sizes):
    check(Batched(), {FEW: 1}, inputs=given(1, (EXPERTS, *sizes), sizes[1]))


@pytest.mark.parametrize("form", [Batched, Grouped])
def test_weights_that_are_written_after_the_product(form):
    class Written(form):
        def forward(self, x, gates, weights):
            result = super().forward(x, gates, weights)
            weights.mul_(2)
            return result

    inputs = given(1, form.shape)
    expected, doubled = form()(*inputs), inputs[2] * 2
    result, record, _ = seen(Written(), *inputs)
    torch.testing.assert_close((result, inputs[2]), (expected, doubled))
    assert record.chains[FEW] == 1


@pytest.mark.parametrize(("devices", "rows"), [({"cpu"}, 2 * K), (set(), 1)])
def test_few_rows_are_tried_with_their_number_where_it_chooses_the_kernel(devices, rows, monkeypatch):
    tried = []
    monkeypatch.setattr("sgljit_compile.ops._answers", {})
    monkeypatch.setattr("sgljit_compile.ops._try", lambda op, arguments, most: tried.append(most))
    for module in (experts, ops):
        monkeypatch.setattr(module, "BY_ROWS", devices)
    assert seen(Batched(), *given(2), ops={"expert_matvec": EVERYWHERE["expert_matvec"]})[1].chains == {FEW: 1}
    assert tried == [rows]


def test_few_rows_of_other_ids_stay():
    _, record, graph = seen(Given(), *given(1))
    assert record.chains == {}
    assert record.left == {(FEW, OTHER_IDS): 1, (PART, OTHER_IDS): 1}
    assert copies(graph)


@pytest.mark.parametrize("form", [Batched, RowsFirst])
def test_a_number_of_tokens_that_changes(form):
    inputs = given(6, form.shape)
    for x in inputs[:2]:
        torch._dynamo.mark_dynamic(x, 0)
    graph = check(form(), inputs=inputs)
    assert any("sym_size" in str(node.target) for node in graph.graph.nodes)


class Layer(Batched):
    """Two products of the same ids, with biases, an activation and the sum of a token's experts, as in gpt-oss."""

    def forward(self, x, gates, up, up_bias, down, down_bias):
        chosen, ids = torch.topk(gates, K, dim=-1)
        ids = ids.reshape(-1)
        wide = self.product(self.rows(x), self.gather(up, ids)) + up_bias[ids]
        back = self.product(wide.relu(), self.gather(down, ids)) + down_bias[ids]
        scaled = back * chosen.softmax(-1).to(x.dtype).reshape(-1, 1)
        return scaled.view(*chosen.shape, -1).sum(1)


def of_a_layer(tokens=7, device="cpu"):
    x, gates, up = given(tokens, device=device)
    _, _, down = given(tokens, (EXPERTS, WIDE, HIGH), device=device)
    return [x, gates, up, up[:, :, 0].contiguous(), down, down[:, :, 0].contiguous()]


def test_products_of_the_same_ids_share_their_order():
    graph = check(Layer(), {PART: 2, ORDER: 1, "routing": 1}, inputs=of_a_layer())
    assert not copies(graph)


def test_the_order_is_left_to_the_compiler_where_its_op_takes_no_such_choice(monkeypatch):
    monkeypatch.setattr("sgljit_compile.sorting.works", lambda *args, **options: False)
    record = seen(Layer(), *of_a_layer())[1]
    assert record.chains == {PART: 2, "routing": 1}
    assert record.left == {(ORDER, "sort_by_expert does not take it, or cannot be built"): 1}


class Clamped(Batched):
    """As with experts on several devices: an id may be none of these experts'."""

    def choose(self, gates):
        return super().choose(gates).clamp(max=EXPERTS - 1)


class Padded(Batched):
    """There are more weights than experts to choose from."""

    shape = (EXPERTS + 1, HIGH, WIDE)


class Given(Batched):
    """Any id may be there."""

    def choose(self, gates):
        return gates[:, :K].long().reshape(-1)


@pytest.mark.parametrize("form", [Clamped, Padded, Given])
def test_other_ids_stay(form):
    graph = check(form(), {}, OTHER_IDS)
    assert copies(graph)


class Returned(Batched):
    def forward(self, x, gates, weights):
        gathered = self.gather(weights, self.choose(gates))
        return self.product(self.rows(x), gathered), gathered


class ReturnedTurned(RowsFirst):
    shape = Batched.shape

    def forward(self, x, gates, weights):
        turned = self.gather(weights, self.choose(gates)).transpose(1, 2)
        return self.product(self.rows(x), turned), turned * 2


@pytest.mark.parametrize("form", [Returned, ReturnedTurned])
def test_gathered_weights_that_are_used_elsewhere_stay(form):
    check(form(), {}, "something else takes the gathered weights")


def test_weights_that_the_graph_computes_stay():
    """The compiler computes those of the chosen experts alone."""

    class Scaled(Batched):
        def gather(self, weights, ids):
            return (weights * 2)[ids]

    check(Scaled(), {}, "its weights are computed in the graph")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_another_dtype_stays(dtype):
    check(Batched(), {}, "grouped products are compiled in bfloat16 alone", given(dtype=dtype))


@pytest.mark.parametrize("sizes", [(12, WIDE), (HIGH, 12), (0, WIDE)])
def test_rows_that_do_not_begin_at_16_bytes_stay(sizes):
    check(Batched(), {}, ALIGNMENT, given(shape=(EXPERTS, *sizes), wide=sizes[1]))


@pytest.mark.parametrize(("offset", "reason"), [(8, None), (4, ALIGNMENT)])
def test_weights_may_be_a_part_of_a_tensor(offset, reason):
    x, gates, weights = given()
    memory = torch.zeros(weights.numel() + offset, dtype=weights.dtype)
    part = memory[offset:].view_as(weights).copy_(weights)
    check(Batched(), {} if reason else None, reason, [x, gates, part])


def test_weights_may_be_a_view_of_an_input():
    class Packed(Batched):
        """Several matrices in one line each, those of two layers in one tensor."""

        def gather(self, weights, ids):
            return weights.view(2, -1, HIGH, WIDE)[1][ids]

    x, gates, _ = given()
    check(Packed(), inputs=[x, gates, given(shape=(2, EXPERTS, HIGH * WIDE))[2]])


def test_weights_in_another_layout_stay():
    x, gates, weights = given(shape=(EXPERTS, HIGH, 2 * WIDE))
    check(Batched(), {}, LAYOUT, [x, gates, weights[:, :, :WIDE]])


def test_rows_in_another_layout_stay():
    class Columns(Batched):
        def rows(self, x):
            return x.mT.repeat_interleave(K, dim=1).mT

    check(Columns(), {}, LAYOUT)


def test_no_rows_stay():
    check(Batched(), {}, "it has no rows", given(0))


def test_more_experts_than_the_kernel_takes_stay():
    count = experts._MOST + 1
    for known, chains in ((count - 1, None), (count, {})):
        x, _, weights = given(20, (known, 8, WIDE))
        gates = torch.arange(known).flip(0).expand(20, -1).float().contiguous()
        reason = None if chains is None else "it has more experts than the kernel takes"
        check(Batched(), chains, reason, [x, gates, weights])


def test_a_device_without_the_kernel_stays(monkeypatch):
    monkeypatch.setattr(experts, "has_kernel", lambda device: False)
    check(Batched(), {}, "PyTorch has no kernel for grouped products on this device")


@pytest.mark.parametrize(
    ("capability", "hip", "has"),
    [((9, 0), None, True), ((10, 3), None, True), ((8, 9), None, False), ((12, 0), None, False), ((9, 4), "6", False)],
)
def test_devices_with_the_kernel(monkeypatch, capability, hip, has):
    monkeypatch.undo()
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: capability)
    monkeypatch.setattr("torch.version.hip", hip)
    assert experts.has_kernel(torch.device("cuda", 0)) == has
    assert not experts.has_kernel(torch.device("cpu"))


def test_what_torch_does_not_take_stays(monkeypatch):
    monkeypatch.setattr(experts, "grouped_product", lambda: aten.bmm.default)
    _, record, graph = seen(Batched(), *given())
    assert not record.chains
    ((part, reason),) = record.left
    assert part == PART
    assert "RuntimeError" in reason
    assert copies(graph)
    assert not {aten.sort.default, aten.histc.default} & {node.target for node in graph.graph.nodes}


class Several(Batched):
    """Two columns of each row."""

    def product(self, rows, matrices):
        return torch.bmm(matrices, torch.stack((rows, rows * 2), -1))


class Summed(Batched):
    """The compiler fuses the gathering into the sum."""

    def product(self, rows, matrices):
        return (matrices * rows.unsqueeze(1)).sum(-1)


class ByRows(Batched):
    """A matrix is gathered from each row of the weights."""

    shape = (7 * K, EXPERTS, WIDE)

    def gather(self, weights, ids):
        return weights[:, ids]

    def product(self, rows, matrices):
        return torch.bmm(matrices, rows.unsqueeze(-1))


class SelectedByRows(ByRows):
    def gather(self, weights, ids):
        return torch.index_select(weights, 1, ids)


class Reshaped(RowsFirst):
    """The elements of each matrix in other places, without a transposition."""

    shape = Batched.shape

    def gather(self, weights, ids):
        return weights[ids].view(-1, WIDE, HIGH)


class OfATable(Batched):
    """The ids name the rows of the matrices."""

    shape = (EXPERTS, WIDE)

    def rows(self, x):
        return x.repeat_interleave(K // 2, dim=0)

    def gather(self, weights, ids):
        return weights[ids.view(-1, 2)]


class Shared(Batched):
    """One matrix for all."""

    def gather(self, weights, ids):
        return weights[:1].expand(ids.size(0), -1, -1)


@pytest.mark.parametrize("form", mostly_slow(Several, Summed, ByRows, SelectedByRows, Reshaped, OfATable, Shared))
def test_another_computation_stays(form):
    check(form(), {})


def test_what_is_switched_off_stays():
    ops = {op: devices for op, devices in EVERYWHERE.items() if op != "sort_by_expert"}
    for chosen in (ops, dict.fromkeys(EVERYWHERE, frozenset({"cuda"}))):
        assert copies(check(Batched(), {}, ops=chosen))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt_oss", "qwen3_moe"])
def test_experts_of_a_model(name):
    net, ids = model(name, torch.bfloat16), prompt(40, 1)
    net.set_experts_implementation("batched_mm")

    def logits(ids):
        return net(ids, use_cache=False).logits

    with torch.no_grad():
        expected = logits(ids)
    ops = {op: EVERYWHERE[op] for op in ("sort_by_expert", "topk_softmax")}  # norms and rotations round otherwise
    result, record, graph = seen(logits, ids, ops=ops)
    torch.testing.assert_close(result, expected)
    assert {part: record.chains[part] for part in (PART, ORDER)} == {PART: 4, ORDER: 2}
    assert not [node for node in copies(graph) if node.args[0].op == "placeholder"]


def error(actual, inputs):
    """How far a result is from the exact one."""
    with torch.no_grad():
        exact = Layer()(*(x.double() for x in inputs))
    return (actual - exact).square().mean().sqrt()


@pytest.mark.slow
def test_compiled_with_a_number_of_tokens_that_changes():
    torch.compiler.reset()
    call = torch.compile(Layer(), backend="sgljit", options={"chains": "moe", "force_disable_caches": True})
    inputs, others = of_a_layer(6), of_a_layer(20)
    for x in inputs[:2]:
        torch._dynamo.mark_dynamic(x, 0)
    with torch.no_grad():
        actual, (code,) = run_and_get_code(call, *inputs)
        assert error(actual, inputs) < 1.2 * error(Layer()(*inputs), inputs)
        count = len(sgljit_compile.explain())
        assert error(call(*others), others) < 1.2 * error(Layer()(*others), others)
        assert len(sgljit_compile.explain()) == count
    assert sgljit_compile.explain()[-1].chains == {PART: 2, ORDER: 1, "routing": 1}
    assert code.count("sgljit_sort_by_expert(") == 1
    assert code.count("extern_kernels._grouped_mm(") == 2


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 4, 8, 100])
def test_on_a_gpu(tokens):
    if not torch.cuda.is_available():  # outside of the checkout nobody else asks
        pytest.skip("no CUDA device")
    if not experts.has_kernel(torch.device("cuda")):
        pytest.skip("PyTorch has no kernel for grouped products on this device")
    is_few = tokens * K <= EXPERTS
    for form in FORMS:
        check(form(), {FEW: 1} if is_few else None, inputs=given(tokens, form.shape, device="cuda"))
    products = {FEW: 2} if is_few else {PART: 2, ORDER: 1}
    check(Layer(), {**products, "routing": 1}, inputs=of_a_layer(tokens, "cuda"))
