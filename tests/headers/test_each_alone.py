"""Each header compiles alone, with every compiler that kernels meet, and none brings in what would make it heavy."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from headers import toolbox

# The standard headers that cost half a second or more of a cold build, and all of tvm-ffi but its C ABI.
FORBIDDEN = re.compile(
    r"/c\+\+/\d+(\.\d+)*/(string|sstream|ostream|istream|iostream|ranges|functional|vector|map|unordered_map|memory|"
    r"algorithm|regex|format)$"
    r"|/tvm/ffi/(?!c_api\.h$|extra/c_env_api\.h$)"
)
# cuda_runtime.h, which nvcc puts before every file, brings in <utility> and <cstdlib>, none of the above.


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["g++", "clang++"])
@pytest.mark.parametrize("header", toolbox.HOST_HEADERS)
def test_host_header(header: str, compiler: str, tmp_path: Path) -> None:
    result = toolbox.compile_host(f"#include <{header}>\n", tmp_path, compiler)
    assert result.returncode == 0, result.stderr


def test_two_host_units_link(tmp_path: Path) -> None:
    """Nothing in a header is defined twice."""
    includes = "".join(f"#include <{header}>\n" for header in toolbox.HOST_HEADERS)
    objects = []
    for name in ("one", "two"):
        (tmp_path / f"{name}.cpp").write_text(f"{includes}void {name}() {{}}\n")
        objects.append(str(tmp_path / f"{name}.o"))
        command = [toolbox.host_compiler("g++"), "-std=c++20", "-O0", "-fPIC", "-c", f"{name}.cpp", "-o", objects[-1]]
        subprocess.run([*command, *toolbox.include_flags()], check=True, cwd=tmp_path)
    link = [toolbox.host_compiler("g++"), "-shared", "-o", str(tmp_path / "both.so"), *objects]
    subprocess.run(link, check=True)


@pytest.mark.slow
@pytest.mark.parametrize("header", sorted({*toolbox.HEADERS} - {*toolbox.HOST_HEADERS}))
def test_nvcc(header: str, tmp_path: Path) -> None:
    result = toolbox.compile_cuda(f"#include <{header}>\n", tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


def test_nvcc_takes_the_host_headers(tmp_path: Path) -> None:
    """Together: each alone is compiled by g++, which nvcc calls, too."""
    result = toolbox.compile_cuda("".join(f"#include <{header}>\n" for header in toolbox.HOST_HEADERS), tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["75", "80", "100a", "120a"])
def test_device_headers_for_other_targets(arch: str, tmp_path: Path) -> None:
    source = "".join(f"#include <{header}>\n" for header in toolbox.DEVICE_HEADERS)
    result = toolbox.compile_cuda(source, tmp_path, arch=arch)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("header", toolbox.DEVICE_HEADERS)
def test_nvrtc(header: str) -> None:
    assert toolbox.compile_nvrtc(f"#include <{header}>\n__global__ void kernel() {{}}\n") == ""


def included(command: list[str], directory: Path) -> set[str]:
    """Every file that the preprocessor opens."""
    result = subprocess.run([*command, "-M"], capture_output=True, text=True, cwd=directory, check=True)
    return set(result.stdout.replace("\\\n", " ").split()[1:])


@pytest.mark.parametrize("header", toolbox.HOST_HEADERS)
def test_no_heavy_header_in_a_host_header(header: str, tmp_path: Path) -> None:
    (tmp_path / "unit.cpp").write_text(f"#include <{header}>\n")
    command = [toolbox.host_compiler("g++"), "-std=c++20", *toolbox.include_flags(), "unit.cpp"]
    files = included(command, tmp_path)
    assert any(file.endswith(header) for file in files)
    assert [file for file in sorted(files) if FORBIDDEN.search(file)] == []


def test_a_host_part_has_neither_the_standard_traits_nor_the_loops_for_the_cpu(tmp_path: Path) -> None:
    """They would be a tenth, and a third, of its build."""
    names = ("deferred", "export", "ffi", "optional", "row_program", "runtime", "tensor", "variant")
    (tmp_path / "unit.cpp").write_text("".join(f"#include <sgl_kernel/{name}.h>\n" for name in names))
    command = [toolbox.host_compiler("g++"), "-std=c++20", *toolbox.include_flags(), "unit.cpp"]
    loops = "elements|half|isa|parallel|row_program|rows"
    heavy = re.compile(rf"/(type_traits|concepts|utility|exception)$|sgl_kernel/cpu/({loops})\.h$")
    assert [file for file in included([*command, "-DSGL_SEPARATE"], tmp_path) if heavy.search(file)] == []
    assert [file for file in included(command, tmp_path) if file.endswith("cpu/row_program.h")] != []


@pytest.fixture(scope="module")
def before_every_file(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The files that nvcc reads for an empty one."""
    directory = tmp_path_factory.mktemp("empty")
    (directory / "empty.cu").write_text("")
    return included([*toolbox.nvcc_command(), "empty.cu"], directory)


@pytest.mark.slow
@pytest.mark.parametrize(
    "header", [name for name in toolbox.HEADERS if name.endswith(".cuh") and name not in toolbox.PORT_HEADERS]
)
def test_no_heavy_header_in_a_cuda_header(header: str, before_every_file: set[str], tmp_path: Path) -> None:
    (tmp_path / "unit.cu").write_text(f"#include <{header}>\n")
    files = included([*toolbox.nvcc_command(), "unit.cu"], tmp_path) - before_every_file
    assert [file for file in sorted(files) if FORBIDDEN.search(file)] == []


@pytest.mark.parametrize("header", toolbox.HEADERS)
def test_inline_ptx_is_in_one_place(header: str) -> None:
    text = (toolbox.INCLUDE / header).read_text()
    assert ("asm volatile(" in text) == (header == "sgl_kernel/ptx.cuh")


# Every build of a family reads these headers. The first number counts lines of our headers, the second lines of others,
# which change by less than a tenth between versions of a compiler. Blank lines and what nvcc always adds do not count.
BUDGETS = {
    "device": ("#include <sgl_kernel/row_program.h>\n", 1_905, 5_700),
    "host": ("#include <sgl_kernel/export.h>\n#include <sgl_kernel/row_program.h>\n", 3_125, 3_500),
}
MOST_LINES = 11_668  # of all headers but those of ports
ADVICE = (
    "every build would take longer. Find what came in (-H names each header), and include less or write less; if the "
    "lines are worth it, measure them with bench/header_weight.py, and raise the limit here"
)


def lines_read(command: list[str], directory: Path) -> tuple[int, int]:
    """The lines that the compiler gets from our headers, and from others."""
    result = subprocess.run([*command, "-E"], capture_output=True, text=True, cwd=directory, check=True)
    counts, is_ours = [0, 0], False
    for line in result.stdout.splitlines():
        if marker := re.match(r'# \d+ "(.*?)"', line):
            is_ours = "/sgl_kernel/" in marker[1]
        elif line.strip() and not line.startswith("#"):
            counts[not is_ours] += 1
    return counts[0], counts[1]


@pytest.mark.parametrize("side", BUDGETS)
def test_what_a_build_reads_does_not_grow_unseen(side: str, tmp_path: Path) -> None:
    source, most_ours, most_others = BUDGETS[side]
    if side == "device":
        command = [*toolbox.nvcc_command(), "unit.cu"]
    else:
        command = [toolbox.host_compiler("g++"), "-std=c++20", "-DSGL_SEPARATE", *toolbox.include_flags(), "unit.cpp"]
    unit = tmp_path / command[-1]
    unit.write_text("")
    before = lines_read(command, tmp_path)[1]
    unit.write_text(source)
    ours, others = lines_read(command, tmp_path)
    assert ours <= most_ours, f"{ours} lines of our headers, at most {most_ours}: {ADVICE}"
    assert others - before <= most_others, f"{others - before} lines of other headers, at most {most_others}: {ADVICE}"


def test_the_headers_do_not_grow_unseen() -> None:
    texts = [(toolbox.INCLUDE / name).read_text() for name in toolbox.HEADERS if "/compat/" not in name]
    lines = sum(text.count("\n") for text in texts)
    assert lines <= MOST_LINES, (
        f"{lines} lines of headers, at most {MOST_LINES}: see what can go; if all are worth it, raise the limit here"
    )
