"""The backend: how it is found and switched, and what it says."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import textwrap
from collections import Counter

import pytest
import torch
from torch._inductor.custom_graph_pass import CustomGraphPass

import sgljit_compile
import sgljit_engines
from sgljit_compile import adapter, calls, inductor, ops, rewriting
from sgljit_compile.experts import EXPERTS
from sgljit_compile.graphs import Refused
from sgljit_compile.records import Graph
from sgljit_core import ops as families
from sgljit_core.errors import ArtifactLoadError, ConfigError

from .test_heads import Prologue, given
from .test_norms import Norm, block, inputs

FRESH = {"force_disable_caches": True}
ON = {"chains": "on", **FRESH}


def run(function=None, arguments=None, **options):
    """The result of a small function, and what the backend did."""
    torch.compiler.reset()
    arguments = arguments or inputs()
    function = function or block(Norm())
    with torch.no_grad():
        actual = torch.compile(function, backend="sgljit", fullgraph=True, **options)(*arguments)
        torch.testing.assert_close(actual, function(*arguments), rtol=1e-5, atol=1e-5)
    return sgljit_compile.explain()[-1]


@pytest.fixture(autouse=True)
def own_lost():
    """Each test begins with all ops: one that failed in a test before is tried again."""
    before = dict(adapter.ADAPTER.lost)
    ops._answers.clear()
    yield
    adapter.ADAPTER.lost.clear()
    adapter.ADAPTER.lost.update(before)
    ops._answers.clear()


def test_torch_finds_it_by_its_entry_point():
    assert "sgljit" in torch.compiler.list_backends()


def test_importing_the_package_imports_no_torch():
    code = "import sys, sgljit_compile; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


@pytest.mark.slow
def test_on_the_cpu_nothing_is_used_unless_it_is_named():
    assert "nothing is used on this device" in run(options=FRESH).note
    assert run(options=ON).chains == {"add + norm": 1}
    assert run(options={"chains": "norm", **FRESH}).chains == {"add + norm": 1}


@pytest.mark.slow
def test_what_is_switched_off_stays(monkeypatch):
    assert run(options={"chains": "-fused_add_rmsnorm", **FRESH}).left == {("add + norm", "switched off"): 1}
    monkeypatch.setenv("SGLJIT_ENGINES", "off")
    record = run(options=ON)
    assert not record.chains
    assert record.note.startswith("nothing is used: it is switched off")
    monkeypatch.setenv("SGLJIT_ENGINES", "rope")
    assert run(options=ON).left == {("add + norm", "switched off"): 1}


def test_a_name_that_no_adapter_has_is_an_error():
    with pytest.raises(Exception, match=r"No adapter has 'layernorm'") as info:
        run(options={"chains": "layernorm"})
    assert isinstance(getattr(info.value, "inner_exception", info.value), ConfigError)


@pytest.mark.slow
def test_modes_and_options_are_inductors():
    assert run(mode="max-autotune-no-cudagraphs").note
    assert run(options={"mode": "max-autotune-no-cudagraphs", **ON}).chains
    assert inductor.mode_options("reduce-overhead") == {"triton.cudagraphs": True}
    with pytest.raises(Exception, match="no_such_option"):
        run(options={"no_such_option": 1})


class _Counting(CustomGraphPass):
    calls = 0

    def __call__(self, graph):
        _Counting.calls += 1

    def uuid(self):
        return "counting"


def test_a_pass_of_the_users_own_runs_too():
    before = _Counting.calls
    assert run(options={**ON, "post_grad_custom_pre_pass": _Counting()}).chains == {"add + norm": 1}
    assert _Counting.calls == before + 1


def dispatched(function=None, **options):
    """The ops of ours in a compiled call that PyTorch's dispatcher has seen."""
    torch.compiler.reset()
    compiled = torch.compile(function or block(Norm()), backend="sgljit", options={**ON, **options})
    with torch.no_grad():
        compiled(*inputs())
        assert sgljit_compile.explain()[-1].chains
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            compiled(*inputs())
    return {event.key for event in profile.key_averages() if event.key.startswith("sgljit_")}


def test_a_graph_calls_the_functions_of_ops_without_the_dispatcher():
    assert dispatched() == set()


def twice(function):
    """Two calls of a region that is compiled once: with one call the compiler would put it into the graph."""
    region = torch.compiler.nested_compile_region(function)

    def call(x, *rest):
        first, second = region(x, *rest), region(x * 2, *rest)
        return tuple(one + other for one, other in zip(first, second, strict=True))

    return call


@pytest.mark.slow
def test_a_region_that_is_compiled_once_calls_them_too():
    assert dispatched(twice(block(Norm()))) == set()


@pytest.mark.slow
def test_a_region_that_is_compiled_once_needs_no_constant():
    """Inductor binds the constants of the whole graph alone."""
    module, (x, positions, *_) = Prologue(stored=False), given()

    def region(x, positions):
        return module.parts(x, positions)

    call = twice(region)
    torch.compiler.reset()
    with torch.no_grad():
        result = torch.compile(call, backend="sgljit", fullgraph=True, options=ON)(x, positions)
        torch.testing.assert_close(result, call(x, positions), rtol=1e-4, atol=1e-4)
    assert sgljit_compile.explain()[-1].chains == {"qk-norm + rope": 1}


@pytest.mark.slow
def test_halves_whose_size_is_not_known_stay():
    def rotate(x, cos, sin):
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

    arguments = torch.randn(2, 3, 4, 16), torch.randn(2, 1, 4, 8), torch.randn(2, 1, 4, 8)
    torch.compiler.reset()
    result = torch.compile(rotate, backend="sgljit", options=ON, dynamic=True)(*arguments)
    torch.testing.assert_close(result, rotate(*arguments), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [0, 4])
def test_rows_that_are_apart_may_be_none(tokens):
    def choose(x, matrix):
        gates = (x @ matrix)[:, :8]
        weights, ids = torch.topk(torch.softmax(gates, -1, dtype=torch.float32), 2, dim=-1)
        return weights / weights.sum(-1, keepdim=True), ids

    arguments = torch.randn(tokens, 16), torch.randn(16, 12)
    torch.compiler.reset()
    with torch.no_grad():
        result = torch.compile(choose, backend="sgljit", options=ON)(*arguments)
    torch.testing.assert_close(result, choose(*arguments), rtol=1e-5, atol=1e-5)


def test_an_op_for_whose_trial_no_memory_is_left_is_tried_again(monkeypatch):
    arguments = {"input": torch.ones(2, 72), "residual": torch.ones(2, 72), "weight": torch.ones(72), "eps": 1e-6}

    def full(*_, **__):
        raise torch.OutOfMemoryError("full")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "zeros", full)
        with pytest.raises(Refused, match="no memory was left to try it"):
            ops.works("fused_add_rmsnorm", (72,), arguments)
    assert ops.works("fused_add_rmsnorm", (72,), arguments)


ROWS = {
    "few": (3, [3]),
    "many": (5000, [5000]),
    "more than there is room for": (1 << 20, [(1 << 24) // 72]),
    "none": (0, [1]),
}


def added(rows) -> dict[str, object]:
    return {"input": rows, "residual": rows, "weight": torch.empty(72, device="meta"), "eps": 1e-6}


@pytest.fixture
def tried(monkeypatch):
    """The rows of the trials of an op where these choose its kernel."""
    found = []
    monkeypatch.setattr(ops, "BY_ROWS", {"meta"})
    monkeypatch.setattr(ops, "_try", lambda _op, _arguments, most: found.append(most))
    return found


@pytest.mark.parametrize(("rows", "expected"), ROWS.values(), ids=ROWS)
def test_an_op_is_tried_with_as_many_rows_as_a_graph_has(rows, expected, tried):
    for _ in range(2):
        assert ops.works("fused_add_rmsnorm", (72,), added(torch.empty(rows, 72, device="meta")))
    assert tried == expected, "once for each number"
    assert ops.works("fused_add_rmsnorm", (72,), added(torch.empty(rows + 100, 72, device="meta")))
    assert len(tried) == 2


def test_an_op_is_tried_with_the_rows_that_its_caller_names(tried):
    assert ops.works("fused_add_rmsnorm", (72,), added(torch.empty(128, 72, device="meta")), most=64)
    assert tried == [64]


def test_the_memory_between_rows_counts_for_a_trial(tried):
    apart = torch.empty_strided((1 << 17, 72), (1 << 13, 1), device="meta")
    assert ops.works("fused_add_rmsnorm", (72,), added(apart))
    assert tried == [(1 << 24) >> 13]


def test_an_op_is_tried_with_few_rows_and_many_where_a_graph_does_not_know(tried, monkeypatch):
    def try_rows(call, size, device):
        assert (size, device) == (1, "meta")
        for rows in (1, 64, 5000, 1 << 20):
            call(rows)

    monkeypatch.setattr(ops, "try_rows", try_rows)
    monkeypatch.setattr(ops, "is_known", lambda size: size == 72)
    assert ops.works("fused_add_rmsnorm", (72,), added(torch.empty(3, 72, device="meta")))
    assert tried == [1, 64, 5000], "as far as there is room"


def test_an_op_without_a_kernel_for_so_many_rows_is_left_to_the_compiler(monkeypatch, caplog):
    """In place of an error of the compiled graph at its first call."""

    def refuse(_op, _arguments, most):
        if most > 64:
            raise ArtifactLoadError("no compiler")

    monkeypatch.setattr(ops, "BY_ROWS", {"cpu"})
    monkeypatch.setattr(ops, "_try", refuse)
    record = run(arguments=inputs(batch=32), options=ON)
    assert record.left["add + norm", "fused_add_rmsnorm does not take it, or cannot be built"] == 1
    assert len([r for r in caplog.records if r.levelname == "WARNING" and "sgljit" in r.name]) == 1


def test_numbers_of_rows_that_are_known_and_not_have_trials_of_their_own(tried, monkeypatch):
    """Of tensors whose first size is 1, too, such as heads [1, heads, tokens, size]."""
    monkeypatch.setattr(ops, "try_rows", lambda call, size, device: call(1))
    monkeypatch.setattr(ops, "is_known", lambda size: size != 65)
    for tokens in (64, 65, 66):
        heads = torch.empty(1, 2, tokens, 8, device="meta")
        assert ops.works("apply_rope_inplace", (8,), {"q": heads, "k": heads})
    assert len(tried) == 3


def test_a_trial_is_a_literal_of_python(tried):
    rows = torch.empty_strided((3, 72), (144, 1), dtype=torch.bfloat16, device="meta")
    ops.TRIALS.clear()
    assert ops.works("fused_add_rmsnorm", (72, rows.dtype, rows.device), added(rows))
    assert len(tried) == 1
    (trial,) = ops.TRIALS
    assert ops.Trial.from_literal(*ast.literal_eval(trial.literal())) == trial
    _, line = ops.lines()
    assert line.startswith(
        "sgljit_check('fused_add_rmsnorm', ('72', 'bfloat16', 'meta'), {'input': ((3, 72), (144, 1),"
    )
    calls.check(*ast.literal_eval(trial.literal()))
    assert len(tried) == 1, "a trial is made once in a process"


def test_a_graph_of_torchs_caches_names_the_ops_that_fail(monkeypatch):
    def fail(*_args):
        raise ArtifactLoadError("no compiler")

    ops.FAILED.clear()
    monkeypatch.setattr(ops, "_try", fail)
    calls.check("fused_add_rmsnorm", ("72",), {"input": ((3, 72), (72, 1), "float32", "cpu"), "eps": 1e-6}, None)
    assert {"fused_add_rmsnorm"} == ops.FAILED


def test_what_attention_may_run_on_is_in_the_key_of_torchs_caches(monkeypatch):
    identities = []

    def compile_graph(module, inputs, options, rewrite, identity, *_):
        identities.append(identity)
        return module.forward

    monkeypatch.setattr(inductor, "compile_graph", compile_graph)
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        for enabled in (True, False):
            torch.backends.cuda.enable_cudnn_sdp(enabled)
            run(options=ON)
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
    assert len({*identities}) == 2


@pytest.mark.slow
def test_code_in_cpp_has_the_dispatcher():
    """It cannot call Python's functions."""
    assert dispatched(cpp_wrapper=True) == {"sgljit_norm::fused_add_rmsnorm"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning")  # torch, of itself
def test_a_package_of_aotinductor_has_the_ops_of_an_exported_program(tmp_path):
    class Block(torch.nn.Module):
        def forward(self, x, weight):
            normed = torch.full_like(x, torch.nan)
            families["norm"].rmsnorm(x * 2, weight, normed, 1e-6)
            return normed + 1

    x, weight = torch.randn(3, 64), torch.rand(64)
    with torch.no_grad():
        program = torch.export.export(Block(), (x, weight))
        file = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "block.pt2"))
        actual = torch._inductor.aoti_load_package(file)(x, weight)
    torch.testing.assert_close(actual, torch.nn.functional.rms_norm(x * 2, (64,), weight, 1e-6) + 1)


def test_a_pass_of_the_users_own_over_the_schedule_leaves_the_dispatcher():
    seen = []

    def own(nodes):
        seen.extend(nodes)
        return nodes

    assert dispatched(_pre_fusion_custom_pass=own) == {"sgljit_norm::fused_add_rmsnorm"}
    assert seen


def test_the_code_of_a_graph_imports_the_functions_of_ops():
    assert calls.fused_add_rmsnorm is families["norm"].fused_add_rmsnorm
    with pytest.raises(AttributeError, match=r"'sgljit_compile\.calls' has no attribute 'rmsnorm'"):
        _ = calls.rmsnorm


@pytest.mark.slow
def test_where_every_rounding_counts_nothing_is_put_in():
    record = run(options={**ON, "emulate_precision_casts": True})
    assert "emulate_precision_casts" in record.note
    assert not record.chains


@pytest.mark.slow
def test_where_products_become_parts_of_one_nothing_is_put_in():
    record = run(
        options={**ON, "post-grad-fusion-options": {"batch_linear_post_grad": {}}}
    )  # as torch.compile, with "-"
    assert "post_grad_fusion_options" in record.note
    assert not record.chains


@pytest.mark.slow
def test_a_training_step_stays_as_it_is():
    torch.compiler.reset()
    norm = Norm()
    norm.weight.requires_grad_(True)
    given = [tensor.requires_grad_() for tensor in inputs()]
    call = block(norm, use=lambda normed, total: (normed * total).sum())
    expected = torch.autograd.grad(call(*given), [*given, norm.weight])
    loss = torch.compile(call, backend="sgljit", options=ON)(*given)
    torch.testing.assert_close(torch.autograd.grad(loss, [*given, norm.weight]), expected, rtol=1e-4, atol=1e-4)
    record = sgljit_compile.explain()[-1]
    assert "gradients" in record.note
    assert not record.chains


def test_a_graph_that_runs_twice_gives_the_same():
    function, given = block(Norm()), inputs()
    torch.compiler.reset()
    call = torch.compile(function, backend="sgljit", options=ON)
    with torch.no_grad():
        first, second = call(*given), call(*given)
        torch.testing.assert_close(first, second, rtol=0, atol=0)
        torch.testing.assert_close(second, function(*given), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("stored", [pytest.param(False, marks=pytest.mark.slow), True])
def test_results_have_the_strides_that_they_had(stored):
    class Returning(Prologue):
        def forward(self, x, positions, keys, values, start):
            q, k, v = self.parts(x, positions)
            if not self.stored:
                return q, k, v
            places = torch.arange(x.shape[1]) + start
            keys.index_copy_(2, places, k)
            values.index_copy_(2, places, v)
            return q, keys.sum(2)

    function, arguments = Returning(stored=stored), given()
    expected = function(*(x.clone() for x in arguments))
    torch.compiler.reset()
    with torch.no_grad():
        actual = torch.compile(function, backend="sgljit", options=ON)(*arguments)
    assert sum(sgljit_compile.explain()[-1].chains.values()) == 1
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    assert [x.stride() for x in actual] == [x.stride() for x in expected]


def test_an_op_that_cannot_be_built_is_one_warning(monkeypatch, caplog):
    error = ArtifactLoadError("no compiler")

    def fail(*_args, **_kwargs):
        raise error

    monkeypatch.setattr(ops, "_try", fail)
    two = block(Norm())

    def function(*given):
        first, _ = two(*given)
        return two(first, *given[1:])

    record = run(function=function, options=ON)
    assert record.left["add + norm", "fused_add_rmsnorm does not take it, or cannot be built"] == 2
    warnings = [record for record in caplog.records if record.levelname == "WARNING" and "sgljit" in record.name]
    assert len(warnings) == 1
    assert "runs on the engine's own code" in warnings[0].getMessage()


def test_the_report_has_the_parts_that_kernels_of_pytorch_compute(monkeypatch):
    monkeypatch.setattr("sgljit_engines.adapter.USES", uses := {})
    record = Graph()
    for why in ("", "", "its weights are not side by side"):
        rewriting._note(record, EXPERTS, why)
    assert record == Graph(
        chains=Counter({EXPERTS: 2}), left=Counter({(EXPERTS, "its weights are not side by side"): 1})
    )
    assert [" ".join(str(use).split()) for use in uses.values()] == [
        "sgljit-compile: grouped experts (any) runs on PyTorch's kernel of grouped experts (2 layers)",
        "sgljit-compile: grouped experts (left) runs on the engine's own code, not PyTorch's kernel of grouped experts"
        ": its weights are not side by side (1 call of its own code)",
    ]


@pytest.mark.slow
def test_a_host_part_that_cannot_be_built_is_inductor_alone(monkeypatch, caplog):
    class Broken:
        def __getattr__(self, name):
            def fail(*_args, **_kwargs):
                raise ArtifactLoadError("no compiler")

            return fail

    monkeypatch.setattr(ops, "families", {"kvcache": Broken(), "norm": Broken(), "rope": Broken(), "moe": Broken()})
    record = run(options=ON)
    assert not record.chains
    assert len([r for r in caplog.records if r.levelname == "WARNING" and "sgljit" in r.name]) == 1


def test_beside_another_torch_it_is_inductor_alone(monkeypatch, caplog):
    monkeypatch.setattr("sgljit_engines.adapter._installed", lambda name: "9.9" if name == "torch" else "0.1.0")
    assert not run(options=ON).chains
    assert "torch 9.9 is installed" in caplog.text


def test_the_report_and_the_log_say_what_was_put_in(caplog):
    caplog.set_level("INFO", "sgljit")
    run(options=ON)
    assert "cpu: 1 x add + norm" in caplog.text
    text = " ".join(str(sgljit_engines.report()).split())
    assert "sgljit-compile: add + norm (64 float32 cpu) runs on fused_add_rmsnorm" in text


@pytest.mark.slow
def test_a_graph_from_torchs_caches_has_the_ops(tmp_path):
    """The second process loads the graph: the ops must be known there before. Both are forked before any compiling."""
    code = """
        import os, sys
        import torch, sgljit_compile
        from sgljit_compile.tests.test_heads import Prologue, given
        from sgljit_compile.tests.test_norms import Norm, block, inputs

        def compare():
            for function, arguments in ((block(Norm()), inputs()), (Prologue(), given())):
                expected = function(*(x.clone() for x in arguments))
                with torch.no_grad():
                    actual = torch.compile(function, backend="sgljit", options={"chains": "on"})(*arguments)
                torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
            print(*sgljit_compile.explain(), sep=" | ", flush=True)

        for _ in range(2):
            if os.fork() == 0:
                compare()
                os._exit(0)
            assert os.wait()[1] == 0
    """
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    texts = [line for line in done.stdout.splitlines() if " | " in line]
    assert texts[0].startswith("cpu: 1 x add + norm | cpu: 1 x qk-norm + rope + store")
    assert texts[1].count("a graph from torch's caches") == 2


@pytest.mark.slow
def test_a_graph_whose_kernels_were_lost_is_compiled_anew(tmp_path):
    """Its code tries them when it is loaded, before its first step: with none, the engine goes on with a warning."""
    code = """
        import os, sys
        import torch, sgljit_compile
        from sgljit_compile import ops
        from sgljit_compile.tests.test_norms import Norm, block, inputs
        from sgljit_core.errors import ArtifactLoadError

        plain, tried = ops._try, []

        def forbid(*_):
            raise ArtifactLoadError("planted")

        def count(*arguments):
            tried.append(arguments)
            plain(*arguments)

        def compare(trial):
            ops._try = trial
            function, arguments = block(Norm()), inputs()
            with torch.no_grad():
                call = torch.compile(function, backend="sgljit", options={"chains": "on"})
                torch.testing.assert_close(call(*arguments), function(*arguments), rtol=1e-5, atol=1e-5)
            print("RESULT", len(tried), sgljit_compile.explain()[-1], flush=True)

        for trial in (count, forbid, count):
            if os.fork() == 0:
                compare(trial)
                os._exit(0)
            assert os.wait()[1] == 0
    """
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    first, second, third = (line for line in done.stdout.splitlines() if line.startswith("RESULT"))
    assert first == "RESULT 1 cpu: 1 x add + norm"
    assert second == "RESULT 0 cpu: nothing on ops of ours; 1 x add + norm left: fused_add_rmsnorm cannot be built"
    assert third.startswith("RESULT 1 a graph from torch's caches"), "it is tried, and used"
    assert done.stderr.count("fused_add_rmsnorm failed") == 1


@pytest.mark.gpu
def test_kernels_that_were_lost_are_built_when_a_graph_of_a_gpu_is_loaded(tmp_path):
    """Before its first step: a graph of torch's caches calls them without a question."""
    if not torch.cuda.is_available():  # outside of the checkout nobody else asks
        pytest.skip("no CUDA device")
    code = """
        import torch, sgljit_compile
        from sgljit_compile import ops
        from sgljit_compile.tests.test_norms import Norm, block, inputs

        plain, tried = ops._try, []

        def count(*arguments):
            tried.append(arguments)
            plain(*arguments)

        ops._try = count
        function, arguments = block(Norm().cuda()), [x.cuda() for x in inputs()]
        with torch.no_grad():
            call = torch.compile(function, backend="sgljit", options={"chains": "on"})
            torch.testing.assert_close(call(*arguments), function(*arguments), rtol=1e-4, atol=1e-4)
        print("RESULT", len(tried), sgljit_compile.explain()[-1], flush=True)
    """
    results = []
    for kernels in ("one", "other"):
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "torch")}
        environment["SGLJIT_CACHE_DIR"] = str(tmp_path / kernels)
        command = [sys.executable, "-c", textwrap.dedent(code)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        results += [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert results[0] == "RESULT 1 cuda: 1 x add + norm"
    assert results[1].startswith("RESULT 1 a graph from torch's caches")
