"""``sgljit new``: its output is right at once, is the same as the examples, and is written whole or not at all."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import from_checkout
import isolated
import pytest

from sgljit_tools.cli import new
from sgljit_tools.cli.new import Road
from sgljit_tools.errors import NewDistributionError

ROADS = list(Road)
# The files that the author of an example has written for its op; the others are as `sgljit new` writes them.
REWRITTEN = re.compile(r"README\.md|\w+/(ops|reference|calls|bench)\.py|\w+/(csrc|kernels)/.*|\w+/tests/test_.*\.py")
EXAMPLES = {  # by project: the family, the op and the road
    "sgljit-silu-and-mul": ("silu_and_mul", "silu_and_mul", Road.VARIANTS),
    "sgljit-add-constant": ("add_constant", "add_constant", Road.LOAD_JIT),
    "sgljit-triton-example": ("triton_example", "moe_sum", Road.TRITON),
}


def sgljit(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sgljit_core", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **variables}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


def refused(capture: pytest.ExceptionInfo[NewDistributionError], directory: Path) -> str:
    assert list(directory.iterdir()) == []
    return str(capture.value)


@pytest.fixture(params=ROADS, ids=lambda road: road.value)
def road(request) -> Road:
    return request.param


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """The working directory, empty."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.mark.parametrize("project", EXAMPLES)
def test_an_example_is_its_output_but_for_what_its_author_has_written(project):
    written = new.files(project, *EXAMPLES[project])
    example = isolated.ROOT / "examples" / project
    for place, text in written.items():
        if REWRITTEN.fullmatch(place):
            assert (example / place).is_file() or "/csrc/" in place, place
        else:
            assert (example / place).read_text() == text, f"{example / place} is not what `sgljit new` writes"
    listed = isolated.run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=example).split()
    assert [place for place in listed if place not in written and not REWRITTEN.fullmatch(place)] == []


def test_its_templates_are_in_the_wheel(distribution):
    tools = isolated.ROOT / isolated.PROJECTS["sgljit-tools"]
    held = distribution("sgljit-tools").wheel_files
    templates = {path.relative_to(tools).as_posix() for path in new.TEMPLATES.rglob("*") if path.is_file()}
    assert len(templates) > 10
    assert templates <= held


def test_the_files_are_few_and_short(road):
    written = new.files("acme-kernels", "acme", "row_sum", road)
    package = [place for place, text in written.items() if place.startswith("acme_kernels/") and text]
    assert len(package) == (7 if road is Road.TRITON else 8)  # whose kernel is one file
    assert len(written) + (road is not Road.TRITON) <= 12  # and .clangd
    assert max(text.count("\n") for text in written.values()) <= 80


def test_an_op_cannot_have_a_name_that_the_files_use(road):
    """A function of such a name would hide what the rest of its file means by it."""
    written = new.files("acme-kernels", "acme", "an_op_name", road)
    names = {Path(place).stem for place in written if re.fullmatch(r"acme_kernels/\w+\.py", place)}
    for module in ("__init__", "ops", "reference"):
        for node in ast.walk(ast.parse(written[f"acme_kernels/{module}.py"])):
            if isinstance(node, ast.FunctionDef | ast.alias):
                names.add(node.name)
    names |= {Path(place).parts[1] for place in written if re.match(r"acme_kernels/\w+/", place)}
    public = {name for name in names if re.fullmatch(r"[a-z][a-z0-9_]*", name) and "an_op_name" not in name}
    assert public - {"annotations"} <= new.NAMES_OF_TEMPLATES


@pytest.mark.parametrize(
    ("project", "family", "op", "text"),
    [
        ("../acme", "acme", "row_sum", "project name '../acme': expected letters, digits"),
        ("-acme", "acme", "row_sum", "project name '-acme': expected letters, digits"),
        ("3d-kernels", "acme", "row_sum", "its package would be '3d_kernels', which cannot be imported or is Python's"),
        ("json", "acme", "row_sum", "its package would be 'json', which cannot be imported or is Python's own"),
        ("lambda", "acme", "row_sum", "its package would be 'lambda', which cannot be imported"),
        ("sgljit.core", "acme", "row_sum", r"(?s)its package 'sgljit_core' is there already, in .*sgljit_core"),
        ("torch", "acme", "row_sum", r"its package 'torch' is there already"),
        ("acme", "Acme", "row_sum", "family name 'Acme': expected lower-case words with '_' between them"),
        (
            "acme",
            "is",
            "row_sum",
            "family name 'is': expected lower-case words .* no keyword of Python",
        ),
        ("acme", "acme", "row-sum", "op name 'row-sum': expected lower-case words"),
        ("acme", "acme", "row__sum", "op name 'row__sum': expected lower-case words"),
        ("acme", "acme", "lambda", "op name 'lambda': expected lower-case words"),
        ("acme", "acme", "name", r"op name 'name' is an attribute of PyTorch's own in torch\.ops\.sgljit_acme; choose"),
        ("acme", "acme", "reference", "op name 'reference' is used in the files of the distribution itself"),
        ("acme", "norm", "row_sum", r"family name 'norm' is that of sgljit-norm \d.*two distributions of one family"),
    ],
)
def test_a_name_that_cannot_be_is_refused_before_anything_is_written(here, project, family, op, text):
    with pytest.raises(NewDistributionError, match=text) as capture:
        new.new_distribution(project, family, op)
    refused(capture, here)


def test_a_family_of_the_project_is_taken_where_it_is_not_installed(here, monkeypatch):
    monkeypatch.setattr(new.discovery, "installed", dict)
    with pytest.raises(NewDistributionError, match="family name 'wait_value' is that of sgljit-wait-value;") as capture:
        new.new_distribution("acme", "wait_value", "row_sum")
    refused(capture, here)


def test_a_directory_that_exists_is_kept(here):
    (here / "acme-kernels").mkdir()
    (here / "acme-kernels" / "mine").write_text("mine")
    with pytest.raises(NewDistributionError, match=f"{here}/acme-kernels exists, and is kept"):
        new.new_distribution("acme-kernels", "acme", "row_sum")
    assert [path.name for path in here.rglob("*")] == ["acme-kernels", "mine"]


@pytest.mark.parametrize("files", [0, 1, 9])
def test_a_write_that_fails_leaves_nothing_behind(here, monkeypatch, files):
    written, write = [], Path.write_text

    def fail(path: Path, text: str, **options: str) -> int:
        written.append(path)
        if len(written) > files:
            raise OSError(28, "No space left on device")
        return write(path, text, **options)

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(NewDistributionError, match=r"acme-kernels cannot be written, .*No space left") as capture:
        new.new_distribution("acme-kernels", "acme", "row_sum")
    refused(capture, here)
    assert len(written) == files + 1


def test_the_command_says_what_to_do_next(here):
    done = sgljit("new", "acme-kernels", "--family", "acme", "--op", "row_sum", cwd=here)
    assert done.returncode == 0, done.stderr
    assert 'pip install --editable "./acme-kernels[test]"' in done.stdout
    assert "sgljit test acme" in done.stdout
    assert oct((here / "acme-kernels").stat().st_mode & 0o777) == oct((here).stat().st_mode & 0o777)
    assert [path.name for path in here.iterdir()] == ["acme-kernels"]
    assert "--cuda-gpu-arch=" in (here / "acme-kernels" / ".clangd").read_text()
    again = sgljit("new", "acme-kernels", "--family", "acme", "--op", "row_sum", cwd=here)
    assert again.returncode == 1
    assert again.stderr.startswith(f"error: {here}/acme-kernels exists, and is kept")


@pytest.mark.parametrize(
    ("device", "chosen"),
    [
        pytest.param("cpu", "by_hand or refused or signatures or dry_run", marks=pytest.mark.slow),
        pytest.param("cuda", "by_hand or results or layouts or stream or graph", marks=pytest.mark.gpu),
    ],
)
@pytest.mark.parametrize(
    "road",
    [Road.VARIANTS, *(pytest.param(road, marks=pytest.mark.slow) for road in (Road.LOAD_JIT, Road.TRITON))],
    ids=lambda road: road.value,
    indirect=True,
)
def test_what_it_writes_passes_its_tests_and_the_checks_without_being_edited(here, road, device, chosen, children):
    if road is Road.TRITON:
        pytest.importorskip("triton", reason="Triton compiles the kernel, and interprets it; pip install triton")
    new.new_distribution("acme-kernels", "acme", "double", road)  # a word of C++
    (here / "site").mkdir()
    from_checkout.write_metadata(here / "acme-kernels", here / "site")
    path = os.pathsep.join([str(here / "site"), str(here / "acme-kernels"), *filter(None, sys.path)])
    line = ("test", "acme", "--device", device, "-k", chosen)
    if device == "cuda":  # which works in no fork
        done = sgljit(*line, cwd=here, PYTHONPATH=path)
    else:
        done = children.module("sgljit_core", *line, cwd=here, PYTHONPATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"[3-9] passed", done.stdout), done.stdout


@pytest.mark.parametrize("name", ["row_sum", "a_name_that_is_quite_as_long_as_a_name_should_be"])
def test_what_it_writes_is_in_the_style_of_its_tools(here, road, name):
    new.new_distribution(f"{name}-kernels".replace("_", "-"), name, name, road)
    (project,) = here.iterdir()
    bin_directory = Path(sys.executable).parent
    if not (bin_directory / "ruff").exists():
        pytest.skip("no ruff: pip install ruff")
    isolated.run(bin_directory / "ruff", "check", "--no-cache", cwd=project)
    if len(name) < 10:
        isolated.run(bin_directory / "ruff", "format", "--check", "--no-cache", cwd=project)
        sources = [*project.glob("*/csrc/*")]
        style = f"--style=file:{isolated.ROOT / '.clang-format'}"
        if sources:
            isolated.run(bin_directory / "clang-format", style, "--dry-run", "-Werror", *sources, cwd=project)
