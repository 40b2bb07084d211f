"""The pages of the site and the READMEs hold: every snippet is run, and what is made from the code is complete."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import sys
from pathlib import Path

import isolated
import pages
import pytest
from generated import command_line, headers as header_pages, hooks, links
from headers import toolbox

import sgljit_core
from sgljit_core import config
from sgljit_core.compilers import recipe
from sgljit_core.specs.build import BuildSpec, Target

DOCS = isolated.ROOT / "docs"
READMES = [path for place in ("tools", "plugins", "engines") for path in isolated.ROOT.glob(f"{place}/*/README.md")]
PAGES = [isolated.ROOT / "README.md", *sorted(DOCS.rglob("*.md")), *sorted(READMES)]
SNIPPETS = [snippet for page in PAGES for snippet in pages.snippets(page)]

# The pages whose snippets have tests of their own, which run or compare all of them.
ELSEWHERE = {
    "README.md": "project/test_readme.py",
    "docs/architecture.md": "project/test_pages.py",
    "docs/headers.md": "headers/test_docs.py",
    "docs/port.md": "headers/test_ports.py",
    "docs/prologue.md": "families/test_prologues.py",
    "docs/tutorial.md": "project/test_tutorial.py",
    "docs/variants.md": "project/test_variants_page.py",
}


def of(page: str) -> list[pages.Snippet]:
    return [snippet for snippet in SNIPPETS if snippet.page == page]


def runs(snippet: pages.Snippet, *, gpu: bool) -> bool:
    is_program = snippet.language in ("bash", "python") and not snippet.is_only_read
    return snippet.page not in ELSEWHERE and is_program and ("gpu" in snippet.marks) == gpu


# A page with one that needs a GPU is run whole on a GPU.
ON_CPU = list(dict.fromkeys(snippet.page for snippet in SNIPPETS if runs(snippet, gpu=False)))
ON_GPU = list(dict.fromkeys(snippet.page for snippet in SNIPPETS if runs(snippet, gpu=True)))


def test_no_snippet_escapes():
    """A snippet of C++ is a file that others of its page use; the others are run, parsed, or only shown."""
    escaped = [
        str(snippet)
        for snippet in SNIPPETS
        if snippet.language not in pages.LANGUAGES
        or not snippet.marks <= pages.MARKS
        or (snippet.language == "cpp" and snippet.file is None and snippet.page not in ELSEWHERE)
    ]
    assert escaped == []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        directives = len(re.findall(r"^```\{", text, re.MULTILINE))
        fences = len(re.findall(r"^ *(?:```|~~~)", text, re.MULTILINE))
        assert fences == 2 * (len(pages.snippets(page)) + directives), f"a snippet of {page} is not closed, or not seen"


def test_every_page_is_in_a_table_of_contents():
    """But for the first page, which has the tables. A page that none of them names is found by nobody."""
    listed = set()
    for page in DOCS.rglob("*.md"):
        for table in re.findall(
            r"^```\{toctree\}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
        ):
            entries = [re.sub(r".*<(.+)>$", r"\1", line) for line in table.splitlines() if line and line[0] != ":"]
            listed |= {(page.parent / f"{entry}.md").resolve() for entry in entries}
    assert {*DOCS.rglob("*.md")} - {DOCS / "index.md"} == listed


@pytest.mark.parametrize(("page", "test"), ELSEWHERE.items())
def test_pages_with_tests_of_their_own_have_them(page, test):
    assert Path(page).name in (isolated.ROOT / "tests" / test).read_text(encoding="utf-8")


@pytest.mark.parametrize("snippet", SNIPPETS, ids=str)
def test_a_snippet_is_well_formed(snippet):
    pages.check_syntax(snippet)


@pytest.fixture(scope="module")
def installed(distribution, tmp_path_factory) -> isolated.Environment:
    """An environment with the wheels of all distributions, and the tools that pages call."""
    wheels = [distribution(name) for name in isolated.PROJECTS]
    backend = ["hatchling", "hatch-fancy-pypi-readme", "editables"]
    tools = [
        "pip",
        "pytest",
        "build",
        "wheel",
        "transformers",
        "opentelemetry-sdk",
        "prometheus-client",
        *backend,
        *isolated.cuda_compilers(),
    ]
    environment = isolated.Environment(tmp_path_factory.mktemp("pages") / "environment", wheels, extra=tools)
    environment.install(*wheels)
    pages.shims(environment.bin, environment.python)
    return environment


@pytest.mark.slow
@pytest.mark.parametrize("page", ON_CPU)
def test_a_page_runs_from_top_to_bottom(installed, tmp_path, page):
    work = tmp_path / "work"
    work.mkdir()
    offline = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_CONFIG_FILE": os.devnull}
    pages.run(of(page), installed.python, work, {**installed.variables, **offline}, gpu=False)


@pytest.mark.gpu
@pytest.mark.parametrize("page", ON_GPU)
def test_a_page_runs_on_a_gpu(tmp_path, page):
    needed = {word for snippet in of(page) for word in ("compute-sanitizer", "cuda-gdb") if word in snippet.text}
    missing = [tool for tool in needed if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"{missing} not on PATH")
    programs = pages.shims(tmp_path / "bin", sys.executable)
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    modules = os.pathsep.join(filter(None, sys.path))
    work = tmp_path / "work"
    work.mkdir()
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}  # a reader has none
    pages.run(of(page), sys.executable, work, {**own, "PATH": path, "PYTHONPATH": modules}, gpu=True)


def test_the_generated_source_of_the_architecture_page_is_the_one_that_is_compiled():
    (shown,) = (snippet for snippet in of("docs/architecture.md") if snippet.language == "cpp")
    spec = BuildSpec(
        markers=("rmsnorm",),
        family="norm",
        csrc=Path("csrc"),
        target=Target("sm_90a"),
        cuda_files=("rmsnorm.cu",),
        cuda_wrappers=(("rmsnorm", "RMSNormKernel<4096, true, bf16_t>::run"),),
    )
    assert shown.text in recipe.generated_sources(spec).values()


def placeholders() -> list[tuple[str, list[str]]]:
    found = [re.findall(r"^<!-- generated: (\w+)(.*?) -->$", page.read_text(), re.MULTILINE) for page in PAGES]
    return [(name, words.split()) for one in found for name, words in one]


def test_the_python_page_has_every_public_name():
    listed: dict[str, set[str]] = {}
    for name, words in placeholders():
        if name == "python":
            listed.setdefault(words[0], set()).update(words[1:] or importlib.import_module(words[0]).__all__)
    submodules = {"errors", "__version__"}
    assert listed.pop("sgljit_core") == {*sgljit_core.__all__} - submodules
    for module, names in listed.items():
        own = {
            name
            for name, value in vars(importlib.import_module(module)).items()
            if not name.startswith("_") and str(getattr(value, "__module__", "")).startswith(module)
        }
        assert own - {"T", "Arguments"} <= names, module
    others = {"sgljit_engines", "sgljit_tools.benchmark", "sgljit_tools.cache", "sgljit_tools.testing"}
    assert others <= listed.keys()


def test_every_public_header_is_on_one_page():
    shown = [header for name, words in placeholders() if name == "headers" for header in words]
    private = ("sgl_kernel/compat/", "sgl_kernel/impl/", "sgl_kernel/src/")
    ports = {*toolbox.FORWARDED, *toolbox.LIGHT_PORTS}
    names = {name for name in toolbox.HEADERS if not name.startswith(private)} - ports
    assert len(shown) == len({*shown})
    assert {f"sgl_kernel/{name}" for name in shown} == names


def test_declarations_are_shown_without_bodies_and_with_their_comments():
    text = header_pages.header("rows.h")
    assert "### `host::rows_like`" in text
    assert "- throws `TensorMatchError` if it has another number of dimensions, or gaps." in text
    assert "- `columns`: elements of a row, for the work that it is." in header_pages.header("cpu/rows.h")
    assert "  bool is_shared;  // one row that goes with every row of the others, see `shared_row`\n" in text
    assert "  // Part `i` of each row, cut into `n` parts of equal size.\n" in text
    for header in (header for name, words in placeholders() if name == "headers" for header in words):
        shown = header_pages.header(header)
        declarations = "".join(re.findall(r"^### .*\n\n```cpp\n(.*?)^```", shown, re.MULTILINE | re.DOTALL))
        assert not re.search(r"\breturn\b|\bif \(", re.sub(r"//.*", "", declarations)), header
        assert shown.count("```") % 2 == 0, header


def test_the_table_of_variables_is_complete():
    table = (DOCS / "reference/variables.md").read_text(encoding="utf-8")
    documented = {
        name for cell in re.findall(r"^\| (`[A-Z_`, ]+) \|", table, re.MULTILINE) for name in re.findall(r"\w+", cell)
    }
    others = ("engines/sgljit-engines/sgljit_engines/adapter.py", "tools/sgljit-remote/sgljit_remote/config.py")
    modules = [*isolated.ROOT.glob("sgljit_core/*.py"), *(isolated.ROOT / other for other in others)]
    read = {
        name
        for module in modules
        for name in re.findall(r"\bSGLJIT_[A-Z]+(?:_[A-Z]+)*\b", module.read_text(encoding="utf-8"))
    }
    sources = [*isolated.ROOT.glob("include/sgl_kernel/**/*.h"), *isolated.ROOT.glob("plugins/*/*/csrc/*")]
    for source in sources:
        read |= {*re.findall(r'getenv\("(SGLJIT_[A-Z_]+)"\)', source.read_text(encoding="utf-8"))}
    assert documented == read | {*config._VARIABLES} - {"HOME"}


def test_the_table_of_errors_is_complete():
    from generated.errors import KINDS

    table = (DOCS / "reference/errors.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+Error)` \|", table, re.MULTILINE)
    assert sorted(listed) == sorted({*KINDS} - {"SgljitError"})


def test_the_page_of_commands_has_every_command():
    text = command_line.markdown()
    assert text.count("Usage: sgljit ") == text.count("## sgljit ") >= 12
    assert "## sgljit cache prune" in text


def test_the_page_of_hooks_has_every_hook():
    assert len(hooks.names()) >= 6
    assert all(name in hooks.markdown() for name in hooks.names())


def test_a_link_out_of_the_site_names_the_file_or_leads_to_the_repository(monkeypatch):
    text = "[measured](../bench/results/cold_start.md), [the cache](cache.md#clean-up), [lost](../lost.md), [a](#b)"
    shown = "measured (`bench/results/cold_start.md`), [the cache](cache.md#clean-up), [lost](../lost.md), [a](#b)"
    monkeypatch.setattr(links, "address", lambda: "")
    assert links.for_site(text, DOCS) == shown
    monkeypatch.setattr(links, "address", lambda: "https://example.org/sgljit")
    assert "(https://example.org/sgljit/blob/main/bench/results/cold_start.md)" in links.for_site(text, DOCS)
    assert links.for_site("[it](../README.md#use-it)", DOCS) == "[it](index.md#use-it)"
    assert links.for_site("[it](docs/cache.md)", isolated.ROOT, DOCS) == "[it](cache.md)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[it](nowhere.md)", "cross-reference target not found: 'nowhere.md'"),
        ("[it](cache.md#nowhere)", "local id not found in doc 'cache': 'nowhere'"),
        ("[it](#nowhere)", "cross-reference target not found: 'nowhere'"),
    ],
)
def test_a_link_that_leads_nowhere_fails_the_build(tmp_path, text, complaint):
    pytest.importorskip("sphinx")
    source = tmp_path / "docs"
    source.mkdir()
    for name in ("conf.py", "site.css", "generated"):
        (source / name).symlink_to(DOCS / name)
    (source / "cache.md").write_text("# The cache\n")
    (source / "index.md").write_text(f"# sgljit\n\n{text}\n\n```{{toctree}}\ncache\n```\n")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", source, tmp_path / "site"]
    with pytest.raises(AssertionError) as failure:
        isolated.run(*command, cwd=tmp_path)
    assert complaint in str(failure.value)


def test_errors_say_what_to_do():
    page = importlib.import_module("generated.errors")
    assert page.markdown().count("\n**What to do:** ") == len(page.KINDS) - 1  # all but the base
