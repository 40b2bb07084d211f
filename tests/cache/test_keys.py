"""What makes two builds the same: only what is in them. Mostly keys; compilers run where they must."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest
from kit import artifacts, mostly_slow

import sgljit_core
from sgljit_core import errors
from sgljit_core.cache import explain, keys
from sgljit_core.compilers.includes import Scan
from sgljit_core.specs.build import BuildSpec, Target


def test_the_format_is_stable():
    """These keys must be the same on every machine and in every release; if they change, FORMAT must change too."""
    spec = BuildSpec(
        ("scale", "2"),
        Path("/src"),
        Target("cpu-x86_64"),
        cpp_files=("scale.cpp",),
        cpp_wrappers=(("scale", "scale<2>"),),
    )
    scan = Scan({"csrc/scale.cpp": "ab" * 32}, {}, uses_tvm_cpp=False)
    flags = {"cxx": ("-O3", "-Icsrc"), "link": ()}
    source = keys.source_ingredients(
        spec, {"generated.cpp": "text"}, scan, flags, tvm_ffi=lambda: "0.1.15", cpu=lambda: "x"
    )
    assert source == {
        "c_abi": "tvm-ffi 0.1",
        "core_abi": "1",
        "file csrc/scale.cpp": "ab" * 32,
        "flags cxx": '["-O3", "-Icsrc"]',
        "flags link": "[]",
        "format": "1",
        "generated generated.cpp": "982d9e3eb996f559e633f4d194def3761d909f5a3b647d1a851fead67c32c9d1",
        "target": "cpu-x86_64",
    }
    assert keys.key(source) == "13af028cf2a227e8f4d1982f2e87964b"
    assert keys.key({"cxx": "g++ (Debian 12.2.0-14+deb12u1) 12.2.0"}) == "dbb2128d5fd6fe43dbdfbd5c99fe9610"


def test_a_module_for_a_gpu_is_keyed_by_the_machine_of_its_host_code_and_a_kernel_is_not(monkeypatch):
    """x86-64 and aarch64 with one GPU, such as an H100 and a GH200, may share a cache."""
    scan = Scan({}, {}, uses_tvm_cpp=False)

    def key(machine: str, target: Target, kernel: str = "") -> str:
        monkeypatch.setattr(keys.platform, "machine", lambda: machine)
        spec = BuildSpec(("m",), Path("/src"), target, cuda_files=("a.cuh",), header_only=False, kernel=kernel)
        return keys.key(keys.source_ingredients(spec, {}, scan, {}))

    for gpu in (Target("sm_90a", (9, 0)), Target("gfx90a", is_rocm=True)):
        assert key("x86_64", gpu) != key("aarch64", gpu)
    assert key("x86_64", Target("sm_90a", (9, 0)), "f<1>") == key("aarch64", Target("sm_90a", (9, 0)), "f<1>")
    assert key("x86_64", Target("cpu-aarch64")) == key("aarch64", Target("cpu-aarch64"))


@pytest.mark.parametrize("flag", ["-march=native", "-Xcompiler=-march=native,-ffast-math", "-mtune=native "])
def test_native_code_is_keyed_by_the_processor_and_nothing_else_is(flag):
    spec = BuildSpec(("m",), Path("/src"), Target("cpu-x86_64"), cpp_files=("a.cpp",), cpp_wrappers=(("f", "f"),))
    scan = Scan({}, {}, uses_tvm_cpp=False)

    def key(flag: str, cpu: str) -> str:
        return keys.key(keys.source_ingredients(spec, {}, scan, {"cxx": (flag,)}, cpu=lambda: cpu))

    assert key(flag, "one") != key(flag, "two")
    assert key("-O3", "one") == key("-O3", "two")
    assert key("-DMODE=natively", "one") == key("-DMODE=natively", "two")


def key_of(load, *markers, **options) -> str:
    return sgljit_core.why(lambda: load(*markers, **options)).source_key


def test_a_touch_does_not_rebuild_an_edit_does_and_reverting_hits(load, csrc, compiler):
    assert load().number() == 1
    header = csrc / "value.h"
    text = header.read_text()
    os.utime(header, (1, 1))
    load()
    assert compiler.calls() == 1
    header.write_text(text.replace("VALUE 1", "VALUE 2"))
    assert load().number() == 2
    assert compiler.calls() == 2
    header.write_text(text)
    assert load().number() == 1
    assert compiler.calls() == 2


def test_the_same_tree_at_another_path_hits(load, csrc, children, compiler, tmp_path):
    load(flags=(f"-I{csrc}/more",))
    shutil.copytree(csrc, tmp_path / "moved")
    assert children.run(csrc=str(tmp_path / "moved"), flags=(f"-I{tmp_path}/moved/more",)) == "1\n"
    assert compiler.calls() == 1


VARIABLES = ("CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH")
FLAGS = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "CXXFLAGS", "CPPFLAGS", "CFLAGS")


def test_variables_of_the_environment_cannot_change_the_result(children, csrc, compiler, tmp_path):
    poison = tmp_path / "poison"
    poison.mkdir()
    (poison / "cstdint").write_text("#error poisoned\n")
    (csrc / "value.h").write_text("#include <cstdint>\n#ifndef VALUE\n#define VALUE 1\n#endif\n")
    environment = dict.fromkeys(VARIABLES, str(poison)) | dict.fromkeys(FLAGS, "-DVALUE=66")
    environment |= {"GCC_EXEC_PREFIX": f"{poison}/", "COMPILER_PATH": str(poison), "LD_RUN_PATH": str(poison)}
    environment |= {"LIBRARY_PATH": str(poison), "DEPENDENCIES_OUTPUT": str(poison / "out"), "NVCC_CCBIN": "/no"}
    assert children.run(env=environment) == "1\n"
    assert children.run() == "1\n"
    assert compiler.calls() == 1


def test_nvccs_variables_cannot_change_the_result(nvcc, load, csrc, monkeypatch):
    from sgljit_core import load_jit, override_cuda_arch

    (csrc / "value.cu").write_text("int value() { return VALUE; }\n")
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-DVALUE=66")
    monkeypatch.setenv("NVCC_PREPEND_FLAGS", "-DVALUE=67")
    monkeypatch.setenv("NVCC_CCBIN", "/no/such/compiler")
    with override_cuda_arch(9, 0):
        module = load_jit(
            "value",
            cuda_files=["value.cu"],
            cuda_wrappers=[("value", "value")],
            csrc=csrc,
            extra_cuda_cflags=["-DVALUE=1"],
        )
    assert module.value() == 1


class Tree:
    """A tree of headers in every place that a build reads, and what its program is: the model."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files = {
            "csrc/number.cpp": '#include "a.h"\n#include <b.h>\nint number() { return A * 100 + B; }\n',
            "csrc/a.h": '#pragma once\n#include "deep/c.h"\n#define A C\n',
            "csrc/deep/c.h": '#pragma once\n#include "../../outside/d.h"\n#define C D\n',
            "outside/d.h": "#pragma once\n#define D 1\n",
            "more/b.h": "#pragma once\n#define B 1\n",
            "csrc/unused.h": "#pragma once\n",
        }
        for name, text in self.files.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(text)

    def write(self, name: str, text: str) -> None:
        self.files[name] = text
        (self.directory / name).write_text(text)

    def remove(self, name: str) -> None:
        del self.files[name]
        (self.directory / name).unlink()

    def program(self) -> tuple[tuple[str, str], ...]:
        """What decides the program: the files it reaches, in the order of the include directories."""
        reached = {"csrc/number.cpp", "csrc/a.h", "csrc/deep/c.h", "outside/d.h"}
        reached.add("csrc/b.h" if "csrc/b.h" in self.files else "more/b.h")
        return tuple(sorted((name, self.files[name]) for name in reached))

    def value(self) -> int:
        """What the program returns."""
        files = dict(self.program())
        d = int(files["outside/d.h"].rpartition("D ")[2])
        b = int((files.get("csrc/b.h") or files["more/b.h"]).rpartition("B ")[2])
        return d * 100 + b


@pytest.mark.parametrize("seed", mostly_slow(*range(4)))
def test_random_edits_against_a_model(load, tmp_path, seed):
    """Two states of the tree have the same key exactly if they are the same program."""
    choose = random.Random(seed)
    tree = Tree(tmp_path / "tree")
    options = {"csrc": tmp_path / "tree/csrc", "extra_include_paths": [tmp_path / "tree/more"]}
    seen: dict[str, tuple[tuple[str, str], ...]] = {}
    history: list[dict[str, str]] = []
    for step in range(60):
        history.append(dict(tree.files))
        _edit(tree, choose, history)
        key = key_of(load, **options)
        assert seen.setdefault(key, tree.program()) == tree.program(), f"step {step}: two programs, one key"
        assert list(seen.values()).count(tree.program()) == 1, f"step {step}: one program, two keys"
        if step % 20 == 19:
            assert load(**options).number() == tree.value()


def _edit(tree: Tree, choose: random.Random, history: list[dict[str, str]]) -> None:
    kind = choose.choice(["d", "b", "unused", "touch", "shadow", "revert", "comment"])
    if kind == "d":
        tree.write("outside/d.h", f"#pragma once\n#define D {choose.randrange(3)}\n")
    elif kind == "b":
        tree.write("more/b.h", f"#pragma once\n#define B {choose.randrange(3)}\n")
    elif kind == "unused":
        tree.write("csrc/unused.h", f"// {choose.random()}\n")
    elif kind == "touch":
        name = choose.choice(sorted(tree.files))
        os.utime(tree.directory / name, (choose.randrange(10**9),) * 2)
    elif kind == "shadow" and "csrc/b.h" in tree.files:  # an earlier directory hides a later one's header
        tree.remove("csrc/b.h")
    elif kind == "shadow":
        tree.write("csrc/b.h", f"#pragma once\n#define B {choose.randrange(3, 5)}\n")
    elif kind == "revert":
        past = choose.choice(history)
        for name in set(tree.files) - set(past):
            tree.remove(name)
        for name, text in past.items():
            tree.write(name, text)
    else:
        name = choose.choice(["csrc/a.h", "csrc/deep/c.h"])
        tree.write(name, f"// {choose.randrange(2)}\n" + tree.files[name].split("\n", tree.files[name].count("//"))[-1])


def test_headers_that_include_each_other_through_the_parent_directory_end(load, csrc):
    (csrc / "value.h").write_text('#pragma once\n#include "../csrc/value.h"\n#define VALUE 1\n')
    assert load().number() == 1


INCBIN = """
asm(".section .rodata\\nblob:\\n" {text} "\\n.byte 0\\n.previous");
extern "C" __attribute__((visibility("hidden"))) const char blob[];
"""
INCBINS = {
    "in csrc": r'".incbin \"deep/data.bin\""',
    "a raw string": """R"(.incbin "deep/data.bin")" """,
    "a macro": r'".incbin \"" DATA "\""',
    "a macro with the quotes": '".incbin " DATAS "\\n"',
}


@pytest.mark.parametrize("how", INCBINS)
def test_an_edit_of_a_file_that_the_assembler_includes_rebuilds(how, load, csrc):
    (csrc / "deep").mkdir()
    (csrc / "deep" / "data.bin").write_text("1")
    macros = '#define DATA "deep/data.bin"\n#define DATAS "\\"deep/data.bin\\""\n'
    source = macros + INCBIN.format(text=INCBINS[how]) + "int number() { return blob[0] - '0'; }\n"
    (csrc / "number.cpp").write_text(source)
    assert load().number() == 1
    (csrc / "deep" / "data.bin").write_text("2")
    assert load().number() == 2


@pytest.mark.parametrize("name", ["value.h", "number.cpp"])
@pytest.mark.parametrize("kind", ["device", "fifo", "computed"])
def test_a_source_that_could_be_read_for_ever_is_refused_by_name(kind, name, children, csrc):
    if kind == "computed":
        (csrc / "number.cpp").write_text("#include HEADER\n")
        name = "other"
    file = csrc / name
    file.unlink(missing_ok=True)
    if kind == "device":
        file.symlink_to("/dev/zero")
    else:
        os.mkfifo(file)
    child = children.start()
    child.process.join(60)
    assert child.process.exitcode == 1, child.output
    assert f"SourceNotFoundError: {file} is no plain file, but a device, a FIFO or a socket" in child.output


def test_an_edit_of_a_core_header_rebuilds(load, csrc, tmp_path, monkeypatch):
    from sgljit_core import paths

    shutil.copytree(paths.core_include(), tmp_path / "include")
    (csrc / "value.h").write_text("#include <sgl_kernel/tensor.h>\n#define VALUE 1\n")
    before = key_of(load)
    monkeypatch.setattr(paths, "core_include", lambda: tmp_path / "include")
    assert key_of(load) == before  # the same headers at another place
    header = tmp_path / "include/sgl_kernel/message.h"  # which tensor.h reaches through others
    header.write_text(header.read_text() + "// edited\n")
    assert key_of(load) != before


DEPENDENCY = """
from pathlib import Path
from sgljit_core import hookimpl

@hookimpl
def sgljit_header_dependencies():
    return {"some": lambda: [Path(__file__).parent / "csrc"]}
"""


def test_an_edit_of_a_registered_dependency_rebuilds(children, csrc, compiler, tmp_path):
    import plugin_on_disk
    from kit import LOAD

    package = plugin_on_disk.install(
        tmp_path / "site", "sgljit-headers", "headers", plugin=DEPENDENCY, group="sgljit.extensions"
    )
    header = package / "csrc" / "some.h"
    header.write_text("#define VALUE 1\n")
    (csrc / "value.h").write_text("#include <some.h>\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r})\n"
    code += LOAD.replace("csrc=csrc", "csrc=csrc, extra_dependencies=['some']")
    assert children.run(code) == "1\n"
    header.write_text("#define VALUE 2\n")
    assert children.run(code) == "2\n"
    header.write_text("#define VALUE 1\n")
    assert children.run(code) == "1\n"
    assert compiler.calls() == 2


# What the scan cannot see, the compiler reports: it is recorded and checked.

UNSEEN = {
    "a computed include": '#define WHERE "{outside}"\n#include WHERE\n',
    "behind a comment": '/* not at the start */ #include "{outside}"\n',
    "a digraph": '%:include "{outside}"\n',
    "absolute": '#include "{outside}"\n',
    "through the parent": '#include "../outside.h"\n',
}


@pytest.mark.parametrize("how", UNSEEN)
def test_a_header_that_escapes_the_scan_rebuilds_too(how, children, csrc, compiler, tmp_path):
    outside = tmp_path / "outside.h"
    outside.write_text("#define VALUE 1\n")
    (csrc / "value.h").write_text(UNSEEN[how].format(outside=outside))
    assert children.run() == "1\n"
    assert children.run() == "1\n"
    assert compiler.calls() == 1
    outside.write_text("#define VALUE 2\n")
    assert children.run() == "2\n"
    outside.write_text("#define VALUE 1\n")
    assert children.run() == "1\n"
    assert compiler.calls() == 2  # both are kept: going back hits


def test_a_directory_named_in_a_flag_is_observed(children, csrc, compiler, tmp_path):
    (tmp_path / "flagged").mkdir()
    header = tmp_path / "flagged" / "flagged.h"
    header.write_text("#define VALUE 1\n")
    (csrc / "value.h").write_text("#include <flagged.h>\n")
    flags = (f"-I{tmp_path / 'flagged'}",)
    assert children.run(flags=flags) == "1\n"
    header.write_text("#define VALUE 2\n")
    assert children.run(flags=flags) == "2\n"
    header.unlink()
    no_compiler = {"PATH": "/nowhere", "SGLJIT_CXX": "none"}
    assert children.run(flags=flags, env=no_compiler) in ("1\n", "2\n")  # the header is not needed to run


def test_a_static_library_in_the_link_is_observed(children, csrc, tmp_path, load):
    import subprocess

    def build(value: int) -> None:
        (tmp_path / "part.c").write_text(f"int part(void) {{ return {value}; }}\n")
        subprocess.run(["g++", "-c", "-fPIC", "-x", "c", tmp_path / "part.c", "-o", tmp_path / "part.o"], check=True)
        (tmp_path / "libpart.a").unlink(missing_ok=True)
        subprocess.run(["ar", "rcs", tmp_path / "libpart.a", tmp_path / "part.o"], check=True)

    (csrc / "number.cpp").write_text('extern "C" int part();\nint number() { return part(); }\n')
    linked = """
from sgljit_core import load_jit
print(load_jit("number", cpp_files=["number.cpp"], cpp_wrappers=[("number", "number")], csrc=csrc,
               extra_ldflags=[f"-L{where}", "-lpart"]).number())
"""
    build(1)
    assert children.run(linked, where=str(tmp_path)) == "1\n"
    build(2)
    assert children.run(linked, where=str(tmp_path)) == "2\n"


def test_an_edit_while_the_compiler_runs_is_not_published_under_the_old_key(children, compiler, csrc, cache):
    from kit import until

    compiler.hold()
    child = children.start()
    until(compiler.is_held)
    (csrc / "value.h").write_text("#define VALUE 2\n")
    compiler.let_go()
    assert child.join() == "2\n"
    assert len(artifacts(cache)) == 1
    assert children.run() == "2\n"
    (csrc / "value.h").write_text("#pragma once\n#ifndef VALUE\n#define VALUE 1\n#endif\n")
    assert children.run() == "1\n"
    assert compiler.calls() == 3


def test_sources_that_never_rest_are_an_error(load, csrc, monkeypatch):
    from sgljit_core.compilers import includes

    monkeypatch.setattr(includes.Scan, "is_current", lambda self: False)
    with pytest.raises(
        errors.SourceChangedError, match=r"number for cpu-.* a source was written while it was compiled"
    ):
        load()


# Refused input.


@pytest.mark.parametrize(
    ("flag", "reason"),
    [
        ("-fplugin=/tmp/evil.so", "code loaded into a compiler"),
        ("-fplugin-arg-evil-x=1", "code loaded into a compiler"),
        ("-fpass-plugin=/tmp/evil.so", "code loaded into a compiler"),
        ("-Xcompiler=-fplugin=/tmp/evil.so", "code loaded into a compiler"),
        ("-Xcompiler=-O2,-fplugin=/tmp/evil.so", "code loaded into a compiler"),
        ("--compiler-options=-fplugin=/tmp/evil.so", "code loaded into a compiler"),
        ("-Wl,-plugin,/tmp/evil.so", "code loaded into a compiler"),
        ("-load", "code loaded into a compiler"),
        ("@flags.txt", "a response file is not part of the key"),
        ("-Wl,@flags.txt", "a response file is not part of the key"),
        ("--options-file=flags.txt", "a response file is not part of the key"),
        ("-wrapper", "runs a program"),
        ("-wrapper=/bin/sh", "runs a program"),
        ("-specs=evil.specs", "changes which programs"),
        ("-B/tmp/evil", "changes which programs"),
        ("-ccbin=/tmp/evil", "SGLJIT_CXX"),
        ("-o", "chooses the output files"),
        ("-MF", "chooses the output files"),
    ],
)
@pytest.mark.parametrize("step", ["extra_cflags", "extra_cuda_cflags", "extra_ldflags"])
def test_flags_that_go_around_the_key_are_refused(load, flag, reason, step):
    with pytest.raises(errors.InvalidBuildError) as caught:
        load(**{"extra_cflags": (), step: (flag,)})
    assert f"flag {flag!r} is refused" in str(caught.value)
    assert reason in str(caught.value)
    assert "number for cpu-" in str(caught.value)


@pytest.mark.parametrize(
    "flag", ["-Wl,-Bsymbolic", "-Wl,-Bstatic", "-march=native", "-fopenmp", "-pthread", "-ldl", "-g"]
)
def test_other_flags_are_not(flag):
    BuildSpec(
        ("m",),
        Path("/src"),
        Target("cpu"),
        cpp_files=("a.cpp",),
        cpp_wrappers=(("f", "f"),),
        cflags=(flag,),
        ldflags=(flag,),
    )


@pytest.mark.parametrize("module", ["..", ".", "a/b", "/abs", "", "a b", "-x", "x" * 200, "a\0b"])
def test_module_names_that_are_no_directory_names_are_refused(csrc, cache, module):
    from sgljit_core import load_jit

    with pytest.raises(errors.InvalidBuildError, match="module name"):
        load_jit(module, cpp_files=["number.cpp"], cpp_wrappers=[("number", "number")], csrc=csrc)


@pytest.mark.parametrize("file", ["../a.cpp", "/etc/passwd", "x/../../a.cpp"])
def test_file_names_that_leave_a_familys_csrc_are_refused(csrc, cache, file):
    from sgljit_core import load_jit

    with pytest.raises(errors.InvalidBuildError, match="stay inside it"):
        load_jit("m", cpp_files=[file], cpp_wrappers=[("number", "number")], csrc=csrc, family="numbers")


@pytest.mark.parametrize("file", ['a"\n#include "/etc/passwd', "a\\b.cpp"])
def test_file_names_that_leave_the_include_line_are_refused(csrc, cache, file):
    from sgljit_core import load_jit

    with pytest.raises(errors.InvalidBuildError, match="cannot stand in an #include line"):
        load_jit("m", cpp_files=[file], cpp_wrappers=[("number", "number")], csrc=csrc)


def test_a_family_that_is_a_path_is_refused(csrc, cache):
    from sgljit_core import load_jit

    with pytest.raises(errors.InvalidBuildError, match=r"family '\.\./x' is not an identifier"):
        load_jit("m", cpp_files=["number.cpp"], cpp_wrappers=[("f", "f")], csrc=csrc, family="../x")


def test_differences_in_words():
    source = {"file csrc/vec.cuh": "1", "flags nvcc": '["-O3"]', "target": "sm_90a", "generated g.cu": "1"}
    other = {"file csrc/vec.cuh": "2", "flags nvcc": '["-O2", "-g"]', "target": "sm_80", "file csrc/new.h": "1"}
    tools = {"nvcc": "Cuda compilation tools, release 13.4, V13.4.12", "cxx": "g++ 12"}
    old_tools = {"nvcc": "Cuda compilation tools, release 13.0, V13.0.88", "cxx": "g++ 12"}
    assert explain.differences(source, tools, other, old_tools) == [
        "csrc/new.h is gone",
        "csrc/vec.cuh changed",
        "flag -O2 removed (nvcc)",
        "flag -g removed (nvcc)",
        "flag -O3 added (nvcc)",
        "target sm_80 -> sm_90a",
        "g.cu (generated: files, exports, template arguments) changed",
        "nvcc 13.0.88 -> 13.4.12",
    ]
    assert explain.differences(source, tools, source, tools) == []
    assert explain.differences(source, {}, source, old_tools) == []
