"""The project uses no private name of torch, but for those of a backend of torch.compile, in one module."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("sgljit_core", "tools", "plugins", "engines", "examples", "bench", "tests", "conftest.py")
# Tests may make fake tensors and GPU work that takes long, for which torch has no public name.
ALLOWED_IN_TESTS = {"torch._subclasses.FakeTensorMode", "torch.cuda._sleep"}
# torch has these for extensions, without a public place: its own pages name them.
ALLOWED_IN = {
    "engines/sgljit-compile/sgljit_compile/inductor.py": (
        "torch._inductor",
        "torch._subclasses.fake_tensor.unset_fake_temporarily",
    ),
    "engines/sgljit-compile/sgljit_compile/tests": (
        "torch._dynamo",
        "torch._inductor",
        "torch._subclasses.fake_tensor.unset_fake_temporarily",
    ),
}
# What a module has of the objects that torch.library and torch.ops hand out.
PRIVATE_OF_OBJECTS = {
    "_schema",
    "_torchdynamo_inline",
    "_dynamo_marked_constant",
    "_handle",
    "_version",
    "_register_fake",
}


def private_names(tree: ast.AST) -> set[str]:
    """What a module reaches through torch with a component that begins with one underscore."""
    found, modules = set(), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                modules[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
                found.add(alias.name)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                found.add(f"{node.module}.{alias.name}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            found.add(dotted(node, modules))
            if node.attr in PRIVATE_OF_OBJECTS:
                found.add(f"torch.object.{node.attr}")
    return {name for name in found if name.split(".")[0] == "torch" and any(map(is_private, name.split(".")))}


def allowed_in(file: str, name: str) -> bool:
    places = (names for place, names in ALLOWED_IN.items() if file == place or file.startswith(f"{place}/"))
    return any(name == one or name.startswith(f"{one}.") for names in places for one in names)


def dotted(node: ast.expr, modules: dict[str, str]) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value, modules)}.{node.attr}"
    return modules.get(node.id, "") if isinstance(node, ast.Name) else ""


def is_private(component: str) -> bool:
    return component.startswith("_") and not (component.startswith("__") and component.endswith("__"))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import torch\ntorch._C._dispatch()", "torch._C._dispatch"),
        ("import torch.utils._pytree", "torch.utils._pytree"),
        ("from torch import ops as o\no._x", "torch.ops._x"),
        ("from torch._dynamo import reset", "torch._dynamo.reset"),
        ("overload._schema.arguments", "torch.object._schema"),
        ("f._torchdynamo_inline = g", "torch.object._torchdynamo_inline"),
    ],
)
def test_a_private_name_is_noticed(text, name):
    assert name in private_names(ast.parse(text))


def test_public_names_and_those_of_others_are_not():
    assert not private_names(ast.parse("import torch\ntorch.ops.x.__name__, self._torch, other._schematic"))


@pytest.mark.parametrize("place", PLACES)
def test_the_project_uses_none(place):
    files = [ROOT / place] if place.endswith(".py") else sorted((ROOT / place).rglob("*.py"))
    assert files
    used = {}
    for file in files:
        allowed = ALLOWED_IN_TESTS if "tests" in file.relative_to(ROOT).parts else set()
        path = file.relative_to(ROOT).as_posix()
        names = private_names(ast.parse(file.read_text(encoding="utf-8"))) - allowed
        if names := {name for name in names if not allowed_in(path, name)}:
            used[path] = sorted(names)
    assert used == {}
