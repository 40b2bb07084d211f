"""A stranger's plugin, on either road: built elsewhere, installed, found, run, and gone when uninstalled."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

import isolated
import pytest


@dataclass(frozen=True)
class Example:
    family: str
    use: str
    prints: str
    op: str = ""

    @property
    def package(self) -> str:
        return f"sgljit_{self.family}"

    @property
    def distribution(self) -> str:
        return self.package.replace("_", "-")


GEMMA3 = "x, sum = torch.zeros(1, 2), torch.ones(1, 2); op(x, sum, x[0].clone(), sum[0].clone()); print(x.round(), sum)"
EXAMPLES = [
    Example("add_constant", "print(op(torch.arange(3, dtype=torch.int32), 40).tolist())", "[40, 41, 42]\n"),
    Example(
        "silu_and_mul", "out = torch.ones(1, 2); op(torch.zeros(1, 4), out); print(out.tolist())", "[[0.0, 0.0]]\n"
    ),
    Example("prologues", GEMMA3, "tensor([[2., 2.]]) tensor([[1., 1.]])\n", op="gemma3"),
]


@pytest.fixture(scope="module", params=EXAMPLES, ids=lambda example: example.family)
def example(request) -> Example:
    return request.param


@pytest.fixture(scope="module")
def plugin(example, tmp_path_factory) -> isolated.Built:
    source = isolated.ROOT / "examples" / example.distribution
    copy = isolated.copy_sources(source, tmp_path_factory.mktemp("elsewhere"))
    return isolated.build(copy, tmp_path_factory.mktemp("built"))


def test_the_wheel_has_all_its_sources(example, plugin):
    package = plugin.project / example.package
    sources = {path.relative_to(plugin.project).as_posix() for path in package.rglob("*") if path.is_file()}
    assert len({path.suffix for path in (package / "csrc").iterdir()}) > 1, "sources and headers"
    assert {name for name in plugin.wheel_files if ".dist-info/" not in name} == sources
    assert sources <= plugin.sdist_files


@pytest.mark.slow
def test_installed_it_is_found_and_runs_and_uninstalled_it_is_gone(example, distribution, plugin, tmp_path):
    own = [distribution(name) for name in ("sgljit-core", "sgljit-engines", "sgljit-tools")]
    environment = isolated.Environment(
        tmp_path / "environment", [*own, plugin], extra=["pytest", *isolated.cuda_compilers()]
    )
    environment.install(*own)
    families = "import sgljit_core; print(list(sgljit_core.ops))"
    assert environment.run_code(families) == "[]\n"

    environment.install(plugin)
    assert environment.run_code(families) == f"['{example.family}']\n"
    op = f"import sgljit_core, torch; op = sgljit_core.ops['{example.family}'].{example.op or example.family}"
    assert environment.run_code(f"{op}\n{example.use}") == example.prints

    # Its own tests, as its user would run them.
    options = ("-c", plugin.project / "pyproject.toml", "--rootdir", environment.home, "-p", "no:cacheprovider")
    tests = environment.run(environment.python, "-m", "pytest", *options, "--pyargs", example.package)
    assert " passed" in tests
    assert " failed" not in tests

    environment.pip("uninstall", "--yes", example.distribution)
    assert environment.run_code(families) == "[]\n"
    missing = f"""
        import sgljit_core
        try:
            sgljit_core.ops["{example.family}"]
        except KeyError as error:
            print(error)
    """
    printed = environment.run_code(textwrap.dedent(missing))
    assert example.family in printed
    assert "If it is yours: its pyproject needs" in printed
