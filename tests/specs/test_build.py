"""What a build and a family refuse to be, and what an op has beside it."""

from __future__ import annotations

import inspect
import re

import pytest
import torch

from sgljit_core import KernelFamily, errors, load_jit
from sgljit_core.families import loading

EXPORT = [("run", "run")]


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        ((), {"cpp_files": ["a.cpp"], "cpp_wrappers": EXPORT}, "needs at least one marker"),
        (("m",), {"cpp_wrappers": EXPORT}, "no source; pass cpp_files, cuda_files, cpp_sources or cuda_sources"),
        (
            ("m",),
            {"cpp_files": ["a.cpp"]},
            "pass cpp_wrappers or cuda_wrappers, or header_only=False if the files export",
        ),
        (
            ("m",),
            {"cpp_files": ["../a.cpp"], "cpp_wrappers": EXPORT, "family": "f"},
            r"'../a.cpp' must be relative to csrc",
        ),
        (("m",), {"cpp_files": ["/etc/passwd"], "cpp_wrappers": EXPORT, "family": "f"}, "must be relative to csrc"),
        (("m",), {"cpp_files": ["a.cpp"], "cpp_wrappers": [("2run", "run")]}, "'2run' is not a C identifier"),
        (("m",), {"cpp_files": ["a.cpp"], "cpp_wrappers": EXPORT * 2}, "'run' is given twice"),
        (("m",), {"cpp_files": ["a.cpp"], "cuda_wrappers": EXPORT}, "wrappers of a language need files of the same"),
        (("m",), {"cpp_files": ["a.cpp"], "cpp_wrappers": EXPORT, "header_only": False}, "drop cpp_wrappers"),
    ],
)
def test_load_jit_refuses_what_is_no_build(arguments, options, text, tmp_path):
    with pytest.raises(errors.InvalidBuildError, match=text):
        load_jit(*arguments, csrc=tmp_path, **options)


def test_a_missing_source_lists_what_is_there(tmp_path):
    (tmp_path / "other.cpp").touch()
    with pytest.raises(errors.SourceNotFoundError, match=r"'a.cpp' not found in .*holds: other.cpp") as caught:
        load_jit("m", cpp_files=["a.cpp"], cpp_wrappers=EXPORT, csrc=tmp_path)
    assert isinstance(caught.value, FileNotFoundError)


def test_a_missing_include_directory_is_named(tmp_path):
    (tmp_path / "a.cpp").touch()
    with pytest.raises(errors.SourceNotFoundError, match="no/such/place does not exist"):
        load_jit(
            "m",
            cpp_files=["a.cpp"],
            cpp_wrappers=EXPORT,
            csrc=tmp_path,
            extra_include_paths=[tmp_path / "no/such/place"],
        )


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: KernelFamily("wait-value", "p"),
            "family name 'wait-value' (package 'p') must be a public Python identifier",
        ),
        (lambda: KernelFamily("_hidden", "p"), "must be a public"),
        (lambda: KernelFamily("norm", "p/q"), "family norm (sgljit-norm 0.2.0): package must name a module, got 'p/q'"),
        (lambda: KernelFamily("norm", "p", ops="p.ops:rmsnorm"), "ops must name a module, got 'p.ops:rmsnorm'"),
    ],
)
def test_a_family_that_cannot_work_is_refused_where_it_is_declared(make, text):
    with pytest.raises(errors.InvalidFamilyError, match=re.escape(text)):
        make()


WITHOUT_SAMPLES = {"can_use_hicache_jit_kernel", "check_timeouts"}  # which ask about the machine


def test_every_op_of_ours_has_a_reference_and_samples_which_are_arguments_by_name():
    seen = 0
    for family in ("activation", "norm", "quant", "rope", "kvcache", "moe", "sampling", "hicache", "wait_value"):
        for op in loading.load(family).declared().values():
            if op.name in WITHOUT_SAMPLES:
                assert op.samples is op.reference is None
                continue
            for sample in op.samples(torch.device("cpu")):
                for function in (op.function, op.reference):
                    inspect.signature(function).bind(**sample)
                seen += 1
    assert seen > 100
