"""Where the sources of a direct load_jit come from: csrc, elsewhere, the current directory, or a text."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit import artifacts, made

from sgljit_core import errors, load_jit

NUMBER = [("number", "number")]


def number(value: int, more: str = "") -> str:
    return f"{more}\nint number() {{ return {value}; }}\n"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    directory = made(tmp_path / "elsewhere")
    (directory / "far.cpp").write_text('#include "far.h"\nint number() { return FAR; }\n')
    (directory / "far.h").write_text("#define FAR 7\n")
    return directory


@pytest.mark.parametrize("name", ["{elsewhere}/far.cpp", "../elsewhere/far.cpp"])
def test_a_source_outside_of_csrc_finds_the_headers_beside_it_and_is_followed(name, elsewhere, csrc, cache):
    file = name.format(elsewhere=elsewhere)

    def load():
        return load_jit("far", cpp_files=[file], cpp_wrappers=NUMBER, csrc=csrc)

    assert load().number() == 7
    assert load() is load()
    (elsewhere / "far.h").write_text("#define FAR 8\n")
    assert load().number() == 8, "a stale hit"
    (elsewhere / "far.cpp").write_text("int number() { return 9; }\n")
    assert load().number() == 9, "a stale hit"
    assert len(artifacts(cache)) == 3


def test_an_absolute_path_into_csrc_is_the_same_build(csrc, cache):
    def load(file: str | Path):
        return load_jit("number", cpp_files=[file], cpp_wrappers=NUMBER, csrc=csrc)

    assert load(csrc / "number.cpp") is load("number.cpp")
    assert load(csrc / "below" / ".." / "number.cpp") is load("number.cpp")


def test_without_csrc_files_are_relative_to_the_current_directory(csrc, cache, monkeypatch):
    monkeypatch.chdir(csrc.parent)
    module = load_jit("number", cpp_files=["csrc/number.cpp"], cpp_wrappers=NUMBER)
    assert module.number() == 1
    assert module is load_jit("number", cpp_files=["number.cpp"], cpp_wrappers=NUMBER, csrc=csrc), "the same build"


def test_two_files_of_different_directories(elsewhere, csrc, cache):
    (elsewhere / "other.h").write_text("inline int other() { return 5; }\n")
    module = load_jit(
        "both",
        cpp_files=[csrc / "number.cpp", elsewhere / "other.h"],
        cpp_wrappers=[*NUMBER, ("other", "other")],
    )
    assert (module.number(), module.other()) == (1, 5)


def test_a_family_keeps_to_its_csrc(elsewhere, csrc, cache):
    for file in (str(elsewhere / "far.cpp"), "../elsewhere/far.cpp"):
        with pytest.raises(errors.InvalidBuildError, match=r"must be relative to csrc .* and stay inside it"):
            load_jit("m", cpp_files=[file], cpp_wrappers=NUMBER, csrc=csrc, family="far")
    with pytest.raises(errors.InvalidBuildError, match=r"needs csrc; FAMILY\.load_jit passes its own"):
        load_jit("m", cpp_files=["far.cpp"], cpp_wrappers=NUMBER, family="far")


def test_a_text_is_a_source_and_part_of_the_key(cache, tmp_path, monkeypatch):
    monkeypatch.chdir(made(tmp_path / "notebook"))

    def load(text: str | list[str]):
        return load_jit("text", cpp_sources=text, cpp_wrappers=NUMBER)

    assert load(number(1)).number() == 1
    assert load(number(2)).number() == 2
    assert load([number(1)]) is load(number(1))
    assert len(artifacts(cache)) == 2


def test_a_text_sees_the_files_before_it_and_the_headers_of_csrc(csrc, cache):
    def load():
        return load_jit(
            "twice",
            cpp_files=["number.cpp"],
            cpp_sources='#include "value.h"\nint twice() { return number() + VALUE; }',
            cpp_wrappers=[("twice", "twice")],
            csrc=csrc,
        )

    assert load().twice() == 2
    (csrc / "value.h").write_text("#define VALUE 4\n")
    assert load().twice() == 8, "a stale hit"


def test_an_error_in_a_text_names_its_line_and_one_in_a_wrapper_the_wrapper(cache):
    with pytest.raises(errors.CompileError, match=r"cpp_sources\[1\]:3:") as caught:
        load_jit("wrong", cpp_sources=["int one();", "\n\nint number() { return nothing; }"], cpp_wrappers=NUMBER)
    assert "nothing" in str(caught.value)
    with pytest.raises(errors.CompileError, match=r"The error is in the wrapper SGL_EXPORT\(number, \(missing\)\)"):
        load_jit("wrong", cpp_sources=number(1), cpp_wrappers=[("number", "missing")])


def test_texts_need_a_generated_source(cache):
    with pytest.raises(errors.InvalidBuildError, match="header_only=False there is no generated source"):
        load_jit("m", cpp_sources=number(1), header_only=False)
    with pytest.raises(errors.InvalidBuildError, match="pass cpp_files, cuda_files, cpp_sources or cuda_sources"):
        load_jit("m", cpp_wrappers=NUMBER)
