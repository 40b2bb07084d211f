"""Every op of every family of the repository in every kind of graph: the results of an eager call."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch
from kit import mostly_slow
from torch._subclasses import FakeTensorMode  # it has no public name
from torch.fx.experimental.proxy_tensor import make_fx

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FAMILIES = {
    "activation": 8,
    "norm": 12,
    "quant": 6,
    "rope": 7,
    "kvcache": 7,
    "moe": 7,
    "sampling": 2,
    "hicache": 5,
    "wait_value": 3,
    "add_constant": 1,
    "silu_and_mul": 1,
    "prologues": 6,
}
ARGUMENTS = {"can_use_hicache_jit_kernel": [{"element_size": 1024}], "check_timeouts": [{}]}


def declared(family):
    example = EXAMPLES / f"sgljit-{family.replace('_', '-')}"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(example if example.exists() else EXAMPLES)
        return importlib.import_module(f"sgljit_{family}.plugin").FAMILY.declared()


OPS = [pytest.param(op, id=f"{family}.{op.name}") for family in FAMILIES for op in declared(family).values()]


def form(op):
    """What ops differ in on their way into a graph."""
    (form, *others) = op.library.forms
    return len(others), len(form.mutates)


def first_of_each(kind, without=()):
    """All ops but some; the quick tests take the first of each kind, the slow ones the others."""
    seen = set()
    for param in OPS:
        (op,) = param.values
        if op.name in without:
            continue
        marks = [pytest.mark.slow] if kind(op) in seen else []
        seen.add(kind(op))
        yield pytest.param(op, id=param.id, marks=marks)


each_op = pytest.mark.parametrize("op", list(first_of_each(form)))
each_op_of_tensors = pytest.mark.parametrize("op", list(first_of_each(form, ARGUMENTS)))


UTILS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


def samples(op, count):
    """Some of the op's samples, from the first to the last, such that one is at work on something."""
    if op.samples is None:
        return ARGUMENTS[op.name]
    torch.manual_seed(1)
    found = list(op.samples(torch.device("cpu")))
    return [found[min(len(found) * number // count + number, len(found) - 1)] for number in range(count)]


def test_none_is_left_out():
    counts = {family: len(declared(family)) for family in FAMILIES}
    assert counts == FAMILIES


def fresh(arguments):
    """Copies with the same strides; a table of addresses as it is, for the sake of what it points to."""

    def copied(value):
        if not isinstance(value, torch.Tensor) or hasattr(value, "memory"):
            return value
        if value.numel() == 0:  # opcheck and torch.export compute a negative size from the strides of an empty view
            return torch.empty(value.shape, dtype=value.dtype)
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).copy_(value)

    return {name: copied(value) for name, value in arguments.items()}


@each_op
def test_opcheck_finds_nothing(op):
    for overload, form in zip(op.library.overloads, op.library.forms, strict=True):
        own_names = dict(zip(form.names, (parameter.name for parameter in form.parameters), strict=True))
        required = [parameter.name for parameter in form.parameters if parameter.default is parameter.empty]
        checked = 0
        for arguments in samples(op, 4):
            left_out = {name for name in set(arguments) - set(own_names) if arguments[name] is None}
            passed = {own_names[name]: value for name, value in fresh(arguments).items() if name in own_names}
            if "sgl_order" in required:
                passed["sgl_order"] = torch.empty(0)
            if len(passed) + len(left_out) < len(arguments) or passed.get("out", ...) is None:
                continue  # these are arguments of the other overload
            passed = {**dict.fromkeys(required), **passed}
            # To compare with the schema it multiplies what the op wrote, which torch cannot for float8.
            is_float8 = any(getattr(value, "dtype", None) is torch.float8_e4m3fn for value in passed.values())
            results = torch.library.opcheck(overload, (), passed, test_utils=UTILS[is_float8:])
            assert set(results.values()) == {"SUCCESS"}
            checked += 1
        assert checked, overload


@pytest.mark.parametrize("op", list(first_of_each(lambda op: None, ARGUMENTS)))
def test_a_call_writes_to_what_the_schema_names_and_to_nothing_else(op):
    """What opcheck's test_schema asks, of every dtype and of every sample."""
    (form, *others) = op.library.forms
    for arguments in op.samples(torch.device("cpu")):
        before, passed = fresh(arguments), fresh(arguments)
        op.function(**passed)
        used = others[0] if others and arguments["out"] is None else form
        for name, value in before.items():
            if isinstance(value, torch.Tensor) and name not in used.mutates:
                torch.testing.assert_close(passed[name], value, rtol=0, atol=0, equal_nan=True)


class Calls(torch.nn.Module):
    """One call; the tensors are the inputs, copies of them, which it writes to, and its result the outputs."""

    def __init__(self, op, arguments):
        super().__init__()
        self.op = op.function
        self.names = [name for name, value in arguments.items() if isinstance(value, torch.Tensor)]
        self.others = {name: value for name, value in arguments.items() if name not in self.names}

    def forward(self, *given):
        tensors = [tensor.clone() for tensor in given]
        result = self.op(**dict(zip(self.names, tensors, strict=True)), **self.others)
        return result if isinstance(result, torch.Tensor) else given[0].clone() if given else None, *tensors


def compiled(dynamic):
    return lambda calls, given: torch.compile(calls, fullgraph=True, dynamic=dynamic, backend="aot_eager")(*given)


def exported(strict):
    return lambda calls, given: torch.export.export(calls, tuple(given), strict=strict).module()(*given)


def made(mode):
    return lambda calls, given: make_fx(calls, tracing_mode=mode)(*given)(*given)


WAYS = {
    "compiled, dynamic": compiled(True),
    "exported, strict": exported(True),
    "make_fx, symbolic": made("symbolic"),
    "compiled": compiled(False),
    "exported": exported(False),
    "make_fx, fake": made("fake"),
}


@pytest.mark.parametrize("way", mostly_slow(*WAYS, quick=3))
@each_op_of_tensors
def test_every_graph_gives_the_results_of_an_eager_call(op, way):
    torch.compiler.reset()
    for arguments in map(fresh, samples(op, 3)[1:]):
        calls = Calls(op, arguments)
        given = [arguments[name] for name in calls.names]
        expected = calls(*given)
        found = WAYS[way](calls, given)
        torch.testing.assert_close(list(found), list(expected), rtol=0, atol=0, equal_nan=True)


@each_op_of_tensors
def test_fake_tensors_give_the_shape_of_an_eager_call_and_run_nothing(op):
    arguments = samples(op, 3)[1]
    expected, given = op.function(**fresh(arguments)), fresh(arguments)
    with FakeTensorMode() as mode:
        fakes = {name: mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for name, v in given.items()}
        result = op.function(**fakes)
    assert type(result).__name__ == ("NoneType" if expected is None else "FakeTensor")
    if expected is not None:
        assert (result.shape, result.dtype, result.stride()) == (expected.shape, expected.dtype, expected.stride())
