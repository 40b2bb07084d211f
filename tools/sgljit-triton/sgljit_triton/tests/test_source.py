"""What a kernel's file declares, read without Triton; what its parameters specialise; and what is refused."""

from __future__ import annotations

import pytest
import torch

from sgljit_core import KernelFamily, override_cuda_arch
from sgljit_core.errors import InvalidBuildError, SourceNotFoundError
from sgljit_triton import TritonKernels, source, specialisation

BEGIN = "import triton\nimport triton.language as tl\n"


def read(tmp_path, text, name="kernel"):
    (tmp_path / "file.py").write_text(BEGIN + text)
    return source.read(tmp_path, "file.py", name)


def test_parameters_as_they_are_declared(tmp_path):
    declared = read(
        tmp_path,
        "@triton.jit(do_not_specialize=['b', 3], do_not_specialize_on_alignment=['c'])\n"
        "def kernel(a, b, c, d, E: tl.constexpr, F: 'tl.constexpr' = 2, G: tl.constexpr = (1, None)): pass\n",
    )
    found = [(one.name, one.is_constexpr, one.kind, one.default) for one in declared.parameters]
    assert found == [
        ("a", False, "s", None),
        ("b", False, "n", None),
        ("c", False, "a", None),
        ("d", False, "n", None),
        ("E", True, "s", None),
        ("F", True, "s", "2"),
        ("G", True, "s", "(1, None)"),
    ]


def test_a_file_in_a_directory_imports_what_is_beside_it(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "file.py").write_text(f"{BEGIN}from .helper import f\n@triton.jit\ndef kernel(x): pass\n")
    (tmp_path / "sub" / "helper.py").write_text("import math\n")
    (tmp_path / "helper.py").write_text("import typing\n")
    declared = source.read(tmp_path, "sub/file.py", "kernel")
    assert declared.files == ("sub/file.py", "sub/helper.py")
    (tmp_path / "sub" / "helper").mkdir()
    with pytest.raises(InvalidBuildError, match=r"sub/helper\.py stands beside a directory of the same name"):
        source.read(tmp_path, "sub/file.py", "kernel")


def test_parameters_that_change_in_a_running_process_are_refused(tmp_path, monkeypatch):
    read(tmp_path, "@triton.jit\ndef kernel(x, out, n): pass\n")
    family = KernelFamily(name="fam", package="fam")
    monkeypatch.setattr(KernelFamily, "csrc", tmp_path)
    bound = TritonKernels(family).kernel("file.py", "kernel").bind()
    read(tmp_path, "@triton.jit\ndef kernel(out, x, n): pass\n")
    with (
        pytest.raises(InvalidBuildError, match=r"fam.kernel: its parameters in file.py changed while this process ran"),
        override_cuda_arch(9, 0),
    ):
        bound.build(torch.empty(4, device="meta"), torch.empty(4, device="meta"), 4)


def test_a_constant_with_the_name_of_an_option_is_both(tmp_path):
    declared = read(tmp_path, "@triton.jit\ndef kernel(x, num_warps: tl.constexpr): pass\n")
    texts, options = specialisation.constants("fam.kernel", declared.parameters, {"num_warps": 8})
    assert (texts, options) == ({"num_warps": "8"}, {"num_warps": 8})


def test_the_files_are_those_that_it_imports(tmp_path):
    (tmp_path / "one.py").write_text("from .sub.two import f\nimport math\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "two.py").write_text("from triton.language.extra import libdevice\n")
    (tmp_path / "three.py").write_text("")
    (tmp_path / "not_imported.py").write_text("")
    declared = read(tmp_path, "from . import one, three\n@triton.jit\ndef kernel(a): pass\n")
    assert declared.files[0] == "file.py"
    assert set(declared.files) == {"file.py", "one.py", "sub/two.py", "three.py"}


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        (
            "import os\n@triton.jit\ndef kernel(a): pass\n",
            InvalidBuildError,
            "file.py, line 3 imports os: a kernel file",
        ),
        ("def kernel(a):\n  import torch\n", InvalidBuildError, "line 4 imports torch"),
        ("from ..ops import f\n", InvalidBuildError, r"line 3 imports \.\.ops"),
        ("from .gone import f\n", SourceNotFoundError, "kernel file 'gone.py' not found in .*holds: file.py"),
        ("@triton.jit\ndef other(a): pass\n", InvalidBuildError, "kernel kernel is not in the file, which has other"),
        ("def kernel(a): pass\n", InvalidBuildError, "has no decorator; expected @triton.jit"),
        ("@triton.heuristics({})\n@triton.jit\ndef kernel(a): pass\n", InvalidBuildError, r"has @triton.heuristics\("),
        ("@triton.jit(noinline=True)\ndef kernel(a): pass\n", InvalidBuildError, r"has @triton.jit\(noinline=True\)"),
        ("@triton.jit\ndef kernel(a, *b): pass\n", InvalidBuildError, "must be positional"),
        ("@triton.jit\ndef kernel(a: tl.int64): pass\n", InvalidBuildError, "parameter a is annotated with tl.int64"),
        ("def kernel(:\n", InvalidBuildError, "file.py, line 3: "),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path, text, error, says):
    with pytest.raises(error, match=says):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("constants", "says"),
    [
        ({}, r"family.kernel: bind\(\) lacks a value for BLOCK"),
        ({"BLOCK": 1, "SIZE": 2}, "SIZE is no constant of it and no option; it has BLOCK, num_warps"),
        ({"BLOCK": torch.float32}, "BLOCK=torch.float32; a constant is an int"),
        ({"BLOCK": float("nan")}, "BLOCK=nan; a constant is an int, a finite float"),
        ({"BLOCK": 1, "num_warps": 3}, "num_warps=3; expected one of 1, 2, 4, 8, 16, 32"),
        ({"BLOCK": 1, "num_warps": True}, "num_warps=True; expected one of"),
        ({"BLOCK": 1, "num_stages": 0}, "num_stages=0; expected one of 1 to 64"),
    ],
)
def test_constants_that_are_not_its_are_refused(tmp_path, monkeypatch, constants, says):
    (tmp_path / "package" / "csrc").mkdir(parents=True)
    (tmp_path / "package" / "csrc" / "file.py").write_text(
        BEGIN + "@triton.jit\ndef kernel(a, BLOCK: tl.constexpr): 0\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    kernel = TritonKernels(KernelFamily(name="family", package="package")).kernel("file.py", "kernel")
    with pytest.raises(InvalidBuildError, match=says):
        kernel.bind(**constants)
    assert kernel.bind(BLOCK=1) is kernel.bind(BLOCK=1)
    assert kernel.bind(BLOCK=1) is not kernel.bind(BLOCK=True)


def test_importing_a_family_imports_neither_triton_nor_torch(run):
    run("""
        import sys
        import tri_family.plugin, sgljit_triton, sgljit_core
        assert "tri_family" in sgljit_core.ops
        assert not {"torch", "triton"} & sys.modules.keys()
        import tri_family.ops
        tri_family.ops.ADD.bind(BLOCK=4)
        assert "triton" not in sys.modules
    """, fresh=True)  # fmt: skip


def test_the_rules_are_tritons():
    """The texts against what Triton itself specialises, of values at random and at the edges."""
    jit = pytest.importorskip("triton.runtime.jit", reason="Triton is the reference of this test; pip install triton")
    from triton.backends.nvidia.compiler import CUDABackend

    values = [0, 1, -1, 2, 15, 16, 17, -16, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**63 - 1, -(2**63), 2**32]
    values += [True, False, 0.0, 1.0, -2.5, None]
    dtypes = [getattr(torch, name) for name in specialisation.TYPES]
    base = torch.empty(4096, dtype=torch.uint8)
    begin = -base.data_ptr() % 256
    aligned = [base[begin + offset :][: 8 * dtype.itemsize].view(dtype) for dtype in dtypes for offset in (0, 8, 16)]
    for value in [*values, *aligned]:
        for kind, flags in {"s": (True, True), "a": (True, False), "n": (False, True)}.items():
            kind_of, attribute = jit.native_specialize_impl(CUDABackend, value, False, *flags)
            if kind_of == "constexpr":
                wanted = f"={attribute}"
            else:
                wanted = kind_of + (":16" if attribute and "D" in attribute else "")
            assert specialisation.of(value, kind) == wanted, (value, kind)


def test_the_address_of_a_tensor_that_only_dlpack_describes():
    class Described:
        def __init__(self, tensor):
            self.__dlpack__ = tensor.__dlpack__

    for tensor in (torch.arange(8.0), torch.arange(8.0)[3:], torch.empty(0)):
        assert specialisation.address(Described(tensor)) == specialisation.address(tensor) == tensor.data_ptr()


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, "1", [1], torch.empty(2, dtype=torch.complex64)])
def test_what_no_kernel_takes_is_refused(value):
    with pytest.raises(TypeError, match=r"an int outside of int64|expected a tensor, int, float, bool or None, got"):
        specialisation.of(value, "s")
