"""Importing the core, and listing families, costs nothing and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

LIST = """
import sys, sgljit_core
names = list(sgljit_core.ops)
"norm" in sgljit_core.ops, len(sgljit_core.ops), dir(sgljit_core), repr(sgljit_core.ops)
heavy = {"torch", "tvm_ffi", "numpy", "triton", "rich", "typer"} & set(sys.modules)
print(sorted(heavy), [name for name in sys.modules if name.endswith(".plugin")])
"""


def test_listing_families_imports_no_torch_no_tvm_ffi_and_no_plugin():
    assert run(LIST).strip() == "[] []"


def test_listing_families_creates_no_file(tmp_path):
    run(LIST, HOME=str(tmp_path), XDG_CACHE_HOME=str(tmp_path / "xdg"), SGLJIT_CACHE_DIR=str(tmp_path / "cache"))
    assert list(tmp_path.iterdir()) == []


def test_a_plugin_module_imports_no_torch():
    code = "import sys, sgljit_core; sgljit_core.ops['norm']; print('torch' in sys.modules)"
    assert run(code).strip() == "False"


def test_every_public_name_resolves():
    import sgljit_core

    assert all(getattr(sgljit_core, name) is not None for name in sgljit_core.__all__)
    assert set(dir(sgljit_core)) == set(sgljit_core.__all__)


def test_an_unknown_name_is_an_attribute_error():
    code = "import sgljit_core\ntry: sgljit_core.load_jti\nexcept AttributeError as e: print(e)"
    assert "module 'sgljit_core' has no attribute 'load_jti'" in run(code)


def test_the_registry_is_not_hidden_by_a_module_of_the_same_name():
    code = "import sgljit_core.families.registry as r, sgljit_core.families.memo as m, sgljit_core as c\n"
    code += "print(c.ops is r.ops, c.cache_once is m.cache_once)"
    assert run(code).strip() == "True True"


def run(code: str, **environment: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment, "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
