"""The choice of experts: what is put on an op, and what is not."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.utils import run_and_get_code
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import softmax

import sgljit_compile
from sgljit_compile.records import Graph
from sgljit_compile.rewriting import rewrite

from .tiny import EVERYWHERE, mostly_slow, seen

PART = "routing"
TAKEN = "something takes a value inside of it, such as all probabilities"
REFUSED = "topk_softmax does not take it, or cannot be built"
HIDDEN, EXPERTS, K = 32, 16, 4
aten = torch.ops.aten


class Router(nn.Module):
    """Qwen3-MoE's router. Its parts are methods and attributes, which subclasses and tests replace."""

    k, options = K, {"dim": -1}

    def best(self, x):
        return torch.topk(x, self.k, **self.options)

    def probabilities(self, logits):
        return softmax(logits, dtype=torch.float, dim=-1)

    def divide(self, values):
        return values / values.sum(dim=-1, keepdim=True)

    def choose(self, logits):
        values, ids = self.best(self.probabilities(logits))
        return self.divide(values).to(logits.dtype), ids

    def forward(self, x, matrix):
        return self.choose(x @ matrix)


class NotDivided(Router):
    def divide(self, values):
        return values


class OfTheChosen(Router):
    """gpt-oss's router."""

    def scores(self, values):
        return softmax(values, dim=1, dtype=values.dtype)

    def choose(self, logits):
        values, ids = self.best(logits)
        return self.scores(values), ids


class InFloat32(OfTheChosen):
    def scores(self, values):
        return softmax(values.float(), dim=-1)


FORMS = [Router, OfTheChosen, *(pytest.param(form, marks=pytest.mark.slow) for form in (NotDivided, InFloat32))]
DTYPES = [torch.float32, torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)]


def given(dtype=torch.float32, tokens=3, experts=EXPERTS):
    """Tokens and a matrix. All products are exact, and no two gates of a token or of an expert are equal."""
    generator = torch.Generator().manual_seed(0)
    x, matrix = torch.zeros(tokens, HIDDEN), torch.zeros(HIDDEN, experts)
    for token in range(tokens):
        x[token, token % HIDDEN] = 1
    for i, row in enumerate(matrix):
        row.copy_(torch.randperm(experts, generator=generator) / 8 * (1 + i / 256))
    return [x.to(dtype), matrix.to(dtype)]


def check(module, part=PART, inputs=None, **options):
    inputs = given() if inputs is None else inputs
    with torch.no_grad():
        expected = module(*inputs)
    result, record, graph = seen(module, *inputs, **options)
    for actual, wanted in zip(result, expected, strict=True):
        assert actual.dtype == wanted.dtype
        assert actual.stride() == wanted.stride()
        tolerance = {torch.bfloat16: 1e-2, torch.float16: 2e-3}.get(wanted.dtype, 1e-5)
        torch.testing.assert_close(actual, wanted, rtol=tolerance, atol=tolerance)
    assert record.chains == ({part: 1} if part else {})
    targets = [node.target for node in graph.graph.nodes]
    assert (aten.topk.default in targets, aten.empty.memory_format in targets) == (not part, bool(part))
    return record, graph


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
def test_each_form(form, dtype):
    _, graph = check(form(), inputs=given(dtype))
    # Nothing of the softmax is left, and the op gets the gates as the product has them.
    assert not {aten.amax.default, aten.exp.default, aten.sum.dim_IntList} & {n.target for n in graph.graph.nodes}
    (call,) = (node for node in graph.graph.nodes if "gating_output" in node.kwargs)
    assert call.kwargs["gating_output"].target is aten.mm.default
    assert call.kwargs["renormalize"] is (form is not NotDivided)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tokens", [1, 100])
def test_one_token_and_many(form, tokens):
    check(form(), inputs=given(tokens=tokens))


@pytest.mark.parametrize("form", [Router, OfTheChosen])
@pytest.mark.parametrize(("k", "experts"), [(1, 1), (1, 8), (8, 8), (8, 128), (32, 48)])
def test_other_numbers_of_experts(form, k, experts):
    module = form()
    module.k = k
    check(module, inputs=given(experts=experts))


@pytest.mark.parametrize("form", [Router, OfTheChosen])
def test_more_experts_of_a_token_than_the_op_takes_stay(form):
    module = form()
    module.k = 33
    record, _ = check(module, None, given(experts=48))
    assert record.left == {(PART, REFUSED): 1}


@pytest.mark.parametrize("form", FORMS)
def test_a_number_of_tokens_that_changes(form):
    inputs = given(tokens=6)
    torch._dynamo.mark_dynamic(inputs[0], 0)
    _, graph = check(form(), inputs=inputs)
    assert any("sym_size" in str(node.target) for node in graph.graph.nodes)


@pytest.mark.parametrize("form", FORMS)
def test_a_number_of_experts_that_changes_stays(form):
    inputs = given()
    torch._dynamo.mark_dynamic(inputs[1], 1)
    record, _ = check(form(), None, inputs)
    assert not record.left


@pytest.mark.parametrize("form", FORMS)
def test_a_number_of_chosen_that_changes_stays(form):
    class Many(form):
        def best(self, x):
            return torch.topk(x, x.shape[0])

    inputs = given(tokens=6)
    torch._dynamo.mark_dynamic(inputs[0], 0)
    record, _ = check(Many(), None, inputs)
    assert not record.left


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("option", [{"dim": 0}, {"largest": False}, {"sorted": False}])
def test_another_choice_stays(form, option):
    class Other(form):
        def best(self, x):
            values, ids = super().best(x)
            if option == {"sorted": False}:  # for the comparison alone: topk promises no order
                ids = ids + 0
            return values, ids

    module = Other()
    module.options = {"dim": -1, **option}
    record, _ = check(module, None, given(tokens=EXPERTS))
    assert not record.left


@pytest.mark.parametrize("named", [{}, {"largest": False}])
def test_options_by_their_names_stay(named):
    """torch writes none so; a pass of the user's own may."""
    options = {"decomposition_table": select_decomp_table(), "tracing_mode": "fake"}

    def choose(x, matrix):
        return Router()(x, matrix)

    module = make_fx(choose, **options)(*given())
    (node,) = (node for node in module.graph.nodes if node.target is aten.topk.default)
    node.kwargs, record = named, Graph()
    rewrite(module.graph, EVERYWHERE, record)
    assert record.chains == ({} if named else {PART: 1})


@pytest.mark.parametrize("form", FORMS)
def test_the_dimension_may_be_counted_from_the_front(form):
    module = form()
    module.options = {"dim": 1}
    check(module)


class OfTokens(Router):
    def probabilities(self, logits):
        return softmax(logits, dtype=torch.float, dim=0)


class OfTokensOfTheChosen(OfTheChosen):
    def scores(self, values):
        return softmax(values, dim=0)


class Sigmoid(Router):
    def probabilities(self, logits):
        return logits.float().sigmoid()


class Powers(Router):
    """No exponentials of differences."""

    def probabilities(self, logits):
        powers = logits.float().exp()
        return powers / powers.sum(-1, keepdim=True)


class Differences(Router):
    """The steps of a softmax, one by one."""

    def peak(self, logits):
        return logits.amax(-1, keepdim=True)

    def shifted(self, logits, peak):
        return logits - peak

    def power(self, shifted):
        return shifted.exp()

    def total(self, powers):
        return powers.sum(-1, keepdim=True)

    def divided(self, powers, total):
        return powers / total

    def probabilities(self, logits):
        logits = logits.float()
        powers = self.power(self.shifted(logits, self.peak(logits)))
        return self.divided(powers, self.total(powers))


class OfAnother(Differences):
    def peak(self, logits):
        return (logits + 1).amax(-1, keepdim=True)


class PeakOfTokens(Differences):
    def peak(self, logits):
        return logits.amax(0, keepdim=True)


class PeakOfAll(Differences):
    def peak(self, logits):
        return logits.amax()


class SumOfTokens(Differences):
    def total(self, powers):
        return powers.sum(0, keepdim=True)


class SumAsARow(Differences):
    """For as many tokens as experts."""

    def total(self, powers):
        return powers.sum(-1)


class SumInBfloat16(Differences):
    def total(self, powers):
        return powers.sum(-1, keepdim=True, dtype=torch.bfloat16)


class Doubled(Differences):
    """torch.sub has a factor for its second operand."""

    def shifted(self, logits, peak):
        return torch.sub(logits, peak, alpha=2)


class Sums(Differences):
    def shifted(self, logits, peak):
        return logits + peak


class Sigmoids(Differences):
    def power(self, shifted):
        return shifted.sigmoid()


class SumOfOthers(Differences):
    def divided(self, powers, total):
        return powers / (total + 1)


class Inverse(Differences):
    def divided(self, powers, total):
        return total / powers


class InFloat64(Router):
    def probabilities(self, logits):
        return softmax(logits.double(), dim=-1)


class OfTheChosenInFloat64(OfTheChosen):
    def scores(self, values):
        return softmax(values.double(), dim=-1)


class Scaled(OfTheChosen):
    def scores(self, values):
        return softmax(values * 2, dim=-1)


class Ranked(Router):
    """DeepSeek's: a bias counts for the choice."""

    def best(self, x):
        return super().best(x + torch.arange(x.shape[-1], device=x.device) / 100)


@pytest.mark.parametrize(
    "form",
    mostly_slow(
        OfTokens,
        OfTokensOfTheChosen,
        Sigmoid,
        Powers,
        OfAnother,
        PeakOfTokens,
        PeakOfAll,
        SumOfTokens,
        SumAsARow,
        SumInBfloat16,
        Doubled,
        Sums,
        Sigmoids,
        SumOfOthers,
        Inverse,
        InFloat64,
        OfTheChosenInFloat64,
        Scaled,
        Ranked,
    ),
)
def test_another_formula_stays(form):
    record, _ = check(form(), None, given(tokens=EXPERTS))
    assert not record.left


def test_the_steps_of_a_softmax_written_out():
    check(Differences())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_probabilities_that_are_rounded_before_the_choice_stay(dtype):
    """More experts are equal then."""

    class Rounded(Router):
        def probabilities(self, logits):
            return softmax(logits, dim=-1)

    record, _ = check(Rounded(), None, given(dtype))
    assert not record.left


def test_gates_in_float64():
    inputs = given(torch.float64)
    _, graph = check(Router(), inputs=inputs)  # the op gets them in float32, as the softmax does
    (call,) = (node for node in graph.graph.nodes if "gating_output" in node.kwargs)
    assert call.kwargs["gating_output"].meta["val"].dtype == torch.float32
    check(OfTheChosen(), None, inputs)
    record, _ = check(InFloat32(), None, inputs)
    assert record.left == {(PART, REFUSED): 1}


def test_gates_in_another_layout_stay():
    class Turned(OfTheChosen):
        def forward(self, x, matrix):
            return self.choose((matrix.T @ x.T).T)

    record, _ = check(Turned(), None)
    assert record.left == {(PART, REFUSED): 1}


def test_gates_may_be_a_part_of_something():
    class Part(OfTheChosen):
        def forward(self, x, matrix):
            return self.choose((x @ matrix)[:, : EXPERTS // 2])

    check(Part())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("index", [0, None])
def test_gates_with_fewer_or_more_dimensions_stay(form, index):
    class Batched(form):
        def forward(self, x, matrix):
            return self.choose((x @ matrix)[index])

    module = Batched()
    if isinstance(module, OfTheChosen):
        module.scores = lambda values: softmax(values, dim=-1)
    record, _ = check(module, None)
    assert not record.left


@pytest.mark.parametrize("form", FORMS)
def test_gates_may_be_used_elsewhere(form):
    class Returned(form):
        def forward(self, x, matrix):
            logits = x @ matrix
            return *self.choose(logits), logits, logits.float() * 2

    check(Returned())
    check(Returned(), inputs=given(torch.bfloat16))


def test_gates_may_be_an_input():
    class Alone(Router):
        def forward(self, logits):
            return self.choose(logits)

    inputs = [given()[1]]
    check(Alone(), inputs=inputs)
    assert torch.equal(inputs[0], given()[1])


@pytest.mark.parametrize("form", [Router, NotDivided])
@pytest.mark.parametrize("inner", ["probabilities", "powers"])
def test_probabilities_that_are_used_elsewhere_stay(form, inner):
    class Taken(form):
        def forward(self, x, matrix):
            logits = x @ matrix
            peak = logits.amax(-1, keepdim=True)
            powers = (logits - peak).exp()
            probabilities = powers / powers.sum(-1, keepdim=True)
            values, ids = self.best(probabilities)
            return self.divide(values), ids, {"probabilities": probabilities, "powers": powers}[inner] * 2

    record, _ = check(Taken(), None)
    assert record.left == {(PART, TAKEN): 1}


@pytest.mark.parametrize(("form", "dtype"), [(OfTheChosen, torch.float32), (InFloat32, torch.bfloat16)])
def test_chosen_gates_that_are_used_elsewhere_stay(form, dtype):
    class Taken(form):
        def choose(self, logits):
            values, ids = self.best(logits)
            return self.scores(values), ids, values.float() * 2

    record, _ = check(Taken(), None, given(dtype))
    assert record.left == {(PART, TAKEN): 1}


def test_two_choices_from_the_same_probabilities_stay():
    class Twice(Router):
        def choose(self, logits):
            probabilities = self.probabilities(logits)
            return *self.best(probabilities), *torch.topk(probabilities, 2)

    record, _ = check(Twice(), None)
    assert record.left == {(PART, TAKEN): 2}


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("form", [NotDivided, OfTheChosen])
def test_a_choice_of_which_one_result_is_used_stays(form, which):
    class One(form):
        def choose(self, logits):
            return (super().choose(logits)[which],)

    record, _ = check(One(), None)
    assert not record.left


class Kept(Router):
    """Something else takes the values, too."""

    def choose(self, logits):
        values, ids = self.best(self.probabilities(logits))
        return self.divide(values), ids, values * 2


class KeptSum(Router):
    def choose(self, logits):
        values, ids = self.best(self.probabilities(logits))
        total = values.sum(-1, keepdim=True)
        return values / total, ids, total * 2


class Epsilon(Router):
    def divide(self, values):
        return values / (values.sum(-1, keepdim=True) + 0.1)


class ByTokens(Router):
    def divide(self, values):
        return values / values.sum(0, keepdim=True)


class ByRoundedSum(Router):
    def divide(self, values):
        return values / values.sum(-1, keepdim=True, dtype=torch.bfloat16)


class TurnedOver(Router):
    def divide(self, values):
        return values.sum(-1, keepdim=True) / values


@pytest.mark.parametrize("form", [Kept, KeptSum, Epsilon, ByTokens, ByRoundedSum, TurnedOver])
def test_another_division_stays_behind_the_op(form):
    _, graph = check(form(), inputs=given(tokens=K))
    (call,) = (node for node in graph.graph.nodes if "gating_output" in node.kwargs)
    assert call.kwargs["renormalize"] is False
    assert aten.div.Tensor in {node.target for node in graph.graph.nodes}


def test_a_softmax_of_chosen_probabilities_stays_behind_the_op():
    class Again(Router):
        def divide(self, values):
            return softmax(values, dim=-1)

    _, graph = check(Again())
    assert aten.exp.default in {node.target for node in graph.graph.nodes}


def test_one_choice_may_need_another():
    class Narrower(Router):
        def choose(self, logits):
            values, ids = self.best(logits)
            again, of_these = torch.topk(softmax(values, dim=-1), 2)
            return again, ids.gather(-1, of_these)

    class Chain(Router):
        def choose(self, logits):
            values, ids = super().choose(logits)
            weights, of_these = torch.topk(softmax(values, dim=-1), 2)
            return weights, ids.gather(-1, of_these)

    for module, chains in ((Narrower(), 1), (Chain(), 2)):
        inputs = given()
        with torch.no_grad():
            expected = module(*inputs)
        result, record, _ = seen(module, *inputs)
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6)
        assert record.chains == {PART: chains}


@pytest.mark.parametrize("form", [Router, OfTheChosen])
def test_what_is_equal_or_no_number(form):
    """Of equal gates any may be chosen; behind a product with a NaN all are NaN."""
    x, matrix = given()
    x[1] = 0
    x[2] = float("nan")
    expected, theirs = form()(x, matrix)
    (weights, ids), record, _ = seen(form(), x, matrix)
    assert record.chains == {PART: 1}
    torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-6, equal_nan=True)
    assert torch.equal(ids[0], theirs[0])
    assert ids[1].tolist() == ids[2].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("form", [Router, OfTheChosen])
def test_one_nan_is_chosen_last(form):
    """topk ranks it first; all weights are NaN then."""
    _, matrix = given()
    matrix[1, 3] = float("nan")
    theirs, _ = form().choose(matrix[1:2])
    assert theirs.isnan().all()

    class Alone(form):
        def forward(self, logits):
            return self.choose(logits)

    (weights, ids), _, _ = seen(Alone(), matrix[1:2].clone())
    torch.testing.assert_close(weights.sum().item(), 1.0)
    assert 3 not in ids.tolist()[0]


def test_what_is_switched_off_stays():
    ops = {op: devices for op, devices in EVERYWHERE.items() if op != "topk_softmax"}
    for chosen in (ops, dict.fromkeys(EVERYWHERE, frozenset({"cuda"}))):
        record, _ = check(Router(), None, ops=chosen)
        assert record.left == {(PART, "switched off"): 1}


@pytest.mark.parametrize(("form", "changes"), [(Router, False), (OfTheChosen, True)])
def test_compiled_the_outputs_are_no_copies(form, changes):
    """Nothing fills the tensors that the op writes, and no copy of them is made."""
    torch.compiler.reset()
    call = torch.compile(form(), backend="sgljit", options={"chains": "moe", "force_disable_caches": True})
    inputs = given(tokens=6)
    if changes:
        torch._dynamo.mark_dynamic(inputs[0], 0)
    with torch.no_grad():
        actual, (code,) = run_and_get_code(call, *inputs)
        torch.testing.assert_close(actual, form()(*inputs), rtol=1e-5, atol=1e-6)
        if changes:
            others, count = given(tokens=20), len(sgljit_compile.explain())
            torch.testing.assert_close(call(*others), form()(*others), rtol=1e-5, atol=1e-6)
            assert len(sgljit_compile.explain()) == count
    assert sgljit_compile.explain()[-1].chains == {PART: 1}
    assert code.count("sgljit_topk_softmax(") == 1
    assert "cpp_fused" not in code, "a loop fills or copies what the op writes"


@pytest.mark.gpu
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tokens", [1, 100])
def test_on_a_gpu(form, tokens):
    if not torch.cuda.is_available():  # outside of the checkout nobody else asks
        pytest.skip("no CUDA device")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        check(form(), inputs=[x.cuda() for x in given(dtype, tokens)])
