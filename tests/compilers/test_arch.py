"""Which target a build gets."""

from __future__ import annotations

import sys
import threading
import types

import pytest
import torch

from sgljit_core import errors, is_arch_support_pdl, make_cpp_args, override_cuda_arch
from sgljit_core.builds import policy
from sgljit_core.compilers import arch
from sgljit_core.compilers.arch import CPU, cuda_target

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device answers first")


@pytest.mark.parametrize(
    ("text", "name", "number"),
    [
        ("8.0", "sm_80", (8, 0)),
        ("9.0", "sm_90a", (9, 0)),
        ("9.0a", "sm_90a", (9, 0)),
        ("10.0", "sm_100a", (10, 0)),
        ("10.0f", "sm_100f", (10, 0)),
        ("sm_120a", "sm_120a", (12, 0)),
    ],
)
def test_a_variable_names_the_target(text, name, number, monkeypatch):
    monkeypatch.setenv("SGLJIT_CUDA_ARCH", text)
    assert (cuda_target().name, cuda_target().cuda_arch) == (name, number)


def test_tvm_ffis_variable_counts_where_ours_is_not_set(monkeypatch):
    monkeypatch.setenv("TVM_FFI_CUDA_ARCH_LIST", "8.9")
    assert cuda_target().name == "sm_89"
    monkeypatch.setenv("SGLJIT_CUDA_ARCH", "9.0")
    assert cuda_target().name == "sm_90a"


@pytest.mark.parametrize("variable", ["SGLJIT_CUDA_ARCH", "TVM_FFI_CUDA_ARCH_LIST"])
def test_a_variable_that_makes_no_sense_is_named(variable, monkeypatch):
    monkeypatch.setenv(variable, "fast")
    with pytest.raises(errors.ConfigError, match=f"{variable}='fast' is no architecture; expected one"):
        cuda_target()


def test_our_variable_names_one_target(monkeypatch):
    monkeypatch.setenv("SGLJIT_CUDA_ARCH", "8.0 9.0a")
    with pytest.raises(errors.ConfigError, match=r"SGLJIT_CUDA_ARCH='8\.0 9\.0a' names several architectures"):
        cuda_target()


@pytest.mark.parametrize("entries", ["9.0 10.0", "9.0;10.0f, 12.0"])
def test_of_a_list_with_several_entries_the_device_decides(entries, monkeypatch):
    monkeypatch.setenv("TVM_FFI_CUDA_ARCH_LIST", entries)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 9))
    assert cuda_target().name == "sm_89"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(errors.NoTargetError, match=r"SGLJIT_CUDA_ARCH=9\.0 in the environment"):
        cuda_target()


@no_gpu
def test_without_a_device_the_error_says_how_to_name_one():
    with pytest.raises(
        errors.ConfigError, match=r"SGLJIT_CUDA_ARCH=9.0 in the environment, or override_cuda_arch\(9, 0\)"
    ):
        cuda_target()


def test_an_override_nests_ends_and_beats_the_variable(monkeypatch):
    monkeypatch.setenv("SGLJIT_CUDA_ARCH", "8.0")
    with override_cuda_arch(9, 0):
        with override_cuda_arch(10, 0, "f"):
            assert cuda_target().name == "sm_100f"
        assert cuda_target().name == "sm_90a"
    assert cuda_target().name == "sm_80"


def test_an_override_is_the_threads_own(monkeypatch):
    monkeypatch.setenv("SGLJIT_CUDA_ARCH", "8.0")
    seen = []
    with override_cuda_arch(9, 0):
        thread = threading.Thread(target=lambda: seen.append(cuda_target().name))
        thread.start()
        thread.join()
    assert seen == ["sm_80"]


def test_dependent_launch_begins_with_hopper():
    with override_cuda_arch(8, 9):
        assert not is_arch_support_pdl()
    with override_cuda_arch(9, 0):
        assert is_arch_support_pdl()


def test_the_cpu_target_names_the_machine():
    assert CPU.name.startswith("cpu-")
    assert CPU.cuda_arch is None


def test_while_another_thread_imports_torch_nothing_uses_cuda_yet(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    assert arch.target_in_use() is None
    assert arch.scope() is None
    assert not policy.is_capturing()
    assert list(make_cpp_args(3)) == ["3"]
