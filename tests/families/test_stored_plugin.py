"""A wheel that carries artifacts runs on later releases of the core, as docs/compatibility.md promises.

``stored/`` has one that `sgljit wheel` made with the oldest release of the core that this one is compatible with. It is
a binary on purpose: built anew, it would be of this core. Where ``ABI`` in sgljit_core/cache/keys.py changes, make
another with the new core:

    sgljit new acme-stored --family acme_stored --op scale
    pip wheel --no-deps --wheel-dir dist ./acme-stored
    sgljit wheel dist/acme_stored-0.1.0-py3-none-any.whl --cuda-arch 9.0
"""

from __future__ import annotations

import functools
import platform
import zipfile
from pathlib import Path

import pytest
from kit import python

STORED = Path(__file__).parent / "stored" / "acme_stored-0.1.0-py3-none-linux_x86_64.whl"
CALLS = """
import sys; sys.path.insert(0, sys.argv[2])
import torch
from sgljit_core import ops, stats
for dtype in (torch.float16, torch.bfloat16, torch.float32):
    x = torch.arange(-300, 300, device=sys.argv[1]).reshape(2, 300).to(dtype)
    out = torch.full_like(x, torch.nan)
    ops["acme_stored"].scale(x, out, 0.5)
    assert torch.equal(out, x * 0.5), (dtype, out)
print(dict(stats().hits), stats().misses)
"""

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the stored host part is for x86-64")


@pytest.fixture
def run(script, tmp_path):
    return functools.partial(_run, script, tmp_path / "site", tmp_path / "cache")


def _run(script, site: Path, cache: Path, device: str) -> str:
    with zipfile.ZipFile(STORED) as wheel:
        wheel.extractall(site)
    variables = {"PATH": "/nowhere", "SGLJIT_CACHE_DIR": str(cache), "SGLJIT_JIT": "error"}
    start = script if device == "cpu" else python  # CUDA does not start in a process that is forked
    done = start(CALLS, device, str(site), **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_plugin_of_the_oldest_core_needs_no_compiler(run):
    said = run("cpu")
    assert said == "{'carried': 4} 0\n"  # the host part, and a loop for each dtype


@pytest.mark.gpu
def test_a_plugin_of_the_oldest_core_launches_its_kernels(run):
    import torch

    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the stored kernels are for sm_90a")
    said = run("cuda")
    assert said == "{'carried': 4} 0\n"  # the host part, and a kernel for each dtype
