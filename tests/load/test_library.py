"""What a loaded library leaves open, and what it is called."""

from __future__ import annotations

import re

MANY = """
import os
from sgljit_core import load_jit
build = dict(cpp_files=["number.cpp"], cpp_wrappers=[("number", "number")], csrc=csrc)
load = lambda value: load_jit("number", extra_cflags=[f"-DVALUE={value}"], **build)
modules = [load(0)]
before = len(os.listdir("/proc/self/fd"))
modules += [load(value) for value in range(1, 5)]
print([module.number() for module in modules], len(os.listdir("/proc/self/fd")) - before)
empty = [os.open(f"{csrc}/empty-{i}", os.O_CREAT | os.O_RDWR) for i in range(32)]
for module in modules:
    try:
        module.number("too many")  # tvm-ffi prints a backtrace, and reads libraries by their names
    except TypeError as error:
        assert "expected 0 arguments" in str(error)
print(Path("/proc/self/maps").read_text())
"""


def test_a_module_keeps_no_descriptor_and_maps_name_its_artifact(children, cache):
    from kit import artifacts

    output = children.run(MANY)
    assert output.startswith("[0, 1, 2, 3, 4] 0\n")
    keys = {path.parent.name[:8] for path in artifacts(cache)}
    assert len(keys) == 5
    assert set(re.findall(r"memfd:sgljit:number-(\w{8}) ", output)) == keys


def test_where_no_link_can_be_made_the_descriptor_stays(children, tmp_path):
    (tmp_path / "closed").touch()
    closed = str(tmp_path / "closed")
    code = MANY.replace("modules = [load(0)]", "import tempfile; tempfile.tempdir = closed\nmodules = [load(0)]")
    output = children.run(code, env={"XDG_RUNTIME_DIR": closed}, closed=closed)
    assert "[0, 1, 2, 3, 4] 4\n" in output
