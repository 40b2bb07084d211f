"""A failure that may pass is not remembered."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
from kit import python

from sgljit_core.compilers import toolchain
from sgljit_core.load import gpu


def test_a_driver_that_could_not_be_opened_is_looked_for_again(monkeypatch):
    class Driver:
        def cuDriverGetVersion(self, version):  # noqa: N802
            version._obj.value = 13000
            return 0

    def fails(name):
        raise OSError("too many open files")

    gpu._library.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", fails)
    assert gpu.supported_major() is None
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver())
    assert gpu.supported_major() == 13
    gpu._library.cache_clear()


def test_a_processor_that_could_not_be_read_is_read_again(monkeypatch):
    real = Path.read_text
    toolchain._processor.cache_clear()

    def fails(self, *args, **kwargs):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(Path, "read_text", fails)
    first = toolchain.processor()
    monkeypatch.setattr(Path, "read_text", real)
    assert toolchain.processor() != first
    assert toolchain.processor() == toolchain.processor()


IMPORTS = """
import errno, os, sys
import torch

class Failing:
    def __init__(self, n, error):
        self.left, self.error = n, error
    def find_spec(self, name, path=None, target=None):
        if name.startswith("tvm_ffi"):
            self.left -= 1
            if self.left == -1:
                raise self.error

def attempt(n, error):
    from sgljit_core.load import library
    sys.meta_path.insert(0, Failing(n, error))
    try:
        library.tvm_ffi_version()
    except type(error):
        library.tvm_ffi_version()
        import tvm_ffi
        return int(tvm_ffi.convert(lambda: 1)() != 1)
    return 9

results = []
for n in range(100):
    for error in (OSError(errno.EMFILE, "Too many open files"), KeyboardInterrupt(), MemoryError()):
        pid = os.fork()
        if pid == 0:
            os._exit(attempt(n, error))
        results.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    if results[-1] == 9:
        break
print(len(results) > 30, set(results))
"""


@pytest.mark.slow
def test_an_import_of_tvm_ffi_that_failed_anywhere_is_tried_again():
    result = python(IMPORTS)
    assert result.stdout == "True {0, 9}\n", result.stderr
