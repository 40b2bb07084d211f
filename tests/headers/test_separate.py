"""impl/separate.h: what the headers declare as SGL_INLINE has one body, in one of the core's own units."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from sgljit_core.compilers.recipe import generated_sources, recipe
from sgljit_core.compilers.toolchain import find_toolchain
from sgljit_core.jit.modules import include_roots
from sgljit_core.paths import core_include, tvm_ffi_include
from sgljit_core.specs.build import BuildSpec, Target

UNITS = sorted((core_include() / "sgl_kernel" / "src").glob("*.cpp"))


def compiled(source: Path, output: Path) -> list[tuple[str, str]]:
    """The symbols of a unit: (kind, demangled name), kinds as ``nm`` writes them."""
    cxx = str(find_toolchain(cuda=False, needed_for="a test").cxx.path)
    flags = ["-std=c++20", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wundef", "-Werror", "-DSGL_SEPARATE"]
    includes = [f"-I{core_include()}", "-isystem", str(tvm_ffi_include())]
    subprocess.run([cxx, "-c", str(source), "-o", str(output), *flags, *includes], check=True)
    listed = subprocess.run(["nm", "-C", str(output)], check=True, capture_output=True, text=True).stdout
    return re.findall(r"^\s*[0-9a-f]*\s+(\w) (.+)$", listed, re.MULTILINE)


@pytest.fixture(scope="module")
def symbols(tmp_path_factory) -> dict[str, list[tuple[str, str]]]:
    directory = tmp_path_factory.mktemp("units")
    return {unit.name: compiled(unit, directory / f"{unit.stem}.o") for unit in UNITS}


def test_the_units_are_those_that_a_build_compiles(tmp_path):
    spec = BuildSpec(
        ("m",),
        tmp_path,
        Target("cpu-x86_64"),
        cpp_files=("m.cpp",),
        cpp_wrappers=(("f", "f"),),
        host_part=True,
    )
    names = {name for name in generated_sources(spec) if name.startswith("core_")}
    assert names == {f"core_{unit.name}" for unit in UNITS}


@pytest.mark.parametrize("where", ["host.cpp", "between.h", "sources"])
def test_the_bodies_of_row_programs_are_compiled_where_a_file_reaches_them(tmp_path, where):
    (tmp_path / "host.cpp").write_text('#include "between.h"\n')
    (tmp_path / "between.h").write_text("#pragma once\n")
    spec = BuildSpec(
        ("m",), tmp_path, Target("cpu-x86_64"), cpp_files=("host.cpp",), cpp_wrappers=(("f", "f"),), host_part=True
    )
    assert units_of(spec) == {"core_messages.cpp", "core_kernels.cpp"}
    include = "#include <sgl_kernel/row_program.h>\n"
    if where == "sources":
        spec = dataclasses.replace(spec, cpp_files=(), cpp_sources=(include,))
    else:
        (tmp_path / where).write_text(include)
    assert units_of(spec) == {f"core_{unit.name}" for unit in UNITS}


def units_of(spec: BuildSpec) -> set[str]:
    return {name for name in recipe(spec, include_roots(spec)).generated if name.startswith("core_")}


def test_every_declared_function_is_defined_once(symbols):
    defined = Counter(
        name.partition("(")[0].rpartition("::")[2].partition("[")[0]
        for of_unit in symbols.values()
        for kind, name in of_unit
        if kind == "T" and name.startswith("host::")
    )
    declared = Counter()
    for header in (core_include() / "sgl_kernel").glob("*.h"):
        above, _, _ = header.read_text().partition("#if SGL_BODIES")
        for match in re.finditer(r"SGL_INLINE [^;{}]*?(operator<<|\w+)\(", above):
            declared[match[1]] += 1
    # A constructor has two symbols, of complete objects and of bases.
    for constructor, count in {"Error": 1, "LaunchKernel": 1, "Piece": 3}.items():
        assert declared[constructor] == count
        declared[constructor] *= 2
    assert sum(declared.values()) > 40
    assert {name: defined[name] for name in declared} == dict(declared)


def test_the_units_need_nothing_of_each_other_that_is_not_there(symbols):
    defined = {name for of_unit in symbols.values() for kind, name in of_unit if kind in "TWVBDR"}
    needed = {name for of_unit in symbols.values() for kind, name in of_unit if kind == "U" and "host::" in name}
    assert needed - defined == set()


def test_a_small_module_keeps_them_inline(tmp_path):
    spec = BuildSpec(("m",), tmp_path, Target("cpu-x86_64"), cpp_files=("m.cpp",), cpp_wrappers=(("f", "f"),))
    assert list(generated_sources(spec)) == ["generated.cpp"]
