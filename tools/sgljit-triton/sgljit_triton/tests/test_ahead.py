"""Built ahead without a GPU, and used without Triton: recordings, ``sgljit cache build``, ``sgljit wheel``."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import zipfile

import pytest

pytest.importorskip("triton", reason="Triton compiles the kernels of these tests; pip install triton")

BUILD = "from sgljit_tools.cli.main import main; import sys; sys.argv[1:] = {!r}; main()"
WITHOUT_TRITON = """
    import sys
    sys.modules["triton"] = None  # as if it were not installed
    import sgljit_core
    from sgljit_triton.tests.launching import LAST, tensor
    import tri_family.ops
    rows = tensor(1 << 40, (7, 64), "bfloat16")
    for y in (rows, None):
        tri_family.ops.add(rows, y, rows)
    assert LAST.count == 2 and list(LAST.grid) == [2, 1, 1], list(LAST.grid)
    print(sgljit_core.stats().hits, sgljit_core.stats().misses)
"""


def sgljit(run, *arguments, **options):
    return run(BUILD.format(list(arguments)), **options)


@pytest.mark.slow
def test_cache_build_builds_what_calls_ask_for_and_a_process_without_triton_launches_it(run, driver):
    built = sgljit(run, "cache", "build", "tri_family", "--cuda-arch", "9.0a")
    assert "3 modules are ready" in built
    hits = run(WITHOUT_TRITON, LD_PRELOAD=str(driver), SGLJIT_JIT="error")
    assert hits == "{'cache': 3} 0\n"
    other = WITHOUT_TRITON.replace("bfloat16", "float32")
    failed = run(other, LD_PRELOAD=str(driver), fails=True)
    assert "ToolchainNotFoundError: Triton not found; it is needed to compile tri_family.add<*fp32:16" in failed
    assert 'pip install "sgljit-triton[compiler]"' in failed


@pytest.mark.slow
def test_samples_serve_where_no_calls_are_declared(run, package):
    (package / "calls.py").unlink()
    built = sgljit(run, "cache", "build", "tri_family", "--cuda-arch", "9.0")
    assert "5 modules are ready" in built  # float32 and float16, with y and without; no rows launch nothing


@pytest.mark.slow
def test_a_wheel_carries_the_kernels(run, package, driver, tmp_path):
    pytest.importorskip("wheel")
    (info,) = package.parent.glob("*.dist-info")
    (info / "WHEEL").write_text("Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    (info / "RECORD").write_text("")
    command = [sys.executable, "-m", "wheel", "pack", str(package.parent), "--dest-dir", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    (pure,) = tmp_path.glob("*.whl")
    made = sgljit(run, "wheel", str(pure), "--cuda-arch", "9.0", "--into", str(tmp_path / "dist"))
    assert "carries 3 artifacts for cpu-x86_64 and sm_90a" in made
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    environment = {"LD_PRELOAD": str(driver), "SGLJIT_JIT": "error", "SGLJIT_CACHE_DIR": str(tmp_path / "empty")}
    assert run(WITHOUT_TRITON, PYTHONPATH=str(tmp_path / "installed"), **environment) == "{'carried': 3} 0\n"


@pytest.mark.slow
def test_prepare_compiles_what_a_model_asks_for_in_an_engine(run, package, driver, tmp_path):
    pytest.importorskip("sgljit_engines")
    (package.parent / "tri_adapter.py").write_text(
        "from sgljit_engines.adapter import Adapter\n"
        'ADAPTER = Adapter("tri-adapter", {}, {"tri_family": {"add": "Add"}})\n'
    )
    calls = (package / "calls.py").read_text()
    (package / "calls.py").write_text(calls.replace("(TOKENS, 64)", "(TOKENS, model.hidden_size)"))
    (info,) = package.parent.glob("*.dist-info")
    with (info / "entry_points.txt").open("a") as file:
        file.write("[sgljit.engines]\ntri = tri_adapter:ADAPTER\n")
    config = {"model_type": "qwen3", "hidden_size": 64, "num_attention_heads": 4, "torch_dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    command = ["prepare", "--model", str(tmp_path), "--engine", "tri", "--cuda-arch", "9.0a"]
    assert "3 modules are ready for qwen3 in bfloat16 on sm_90a" in sgljit(run, *command)
    assert run(WITHOUT_TRITON, LD_PRELOAD=str(driver), SGLJIT_JIT="error") == "{'cache': 3} 0\n"


@pytest.mark.slow
def test_kernels_travel_in_an_archive_a_directory_and_a_remote(run, driver, cache, tmp_path):
    sgljit(run, "cache", "build", "tri_family", "--cuda-arch", "9.0a")
    without = {"LD_PRELOAD": str(driver), "SGLJIT_JIT": "error"}
    empty = {"SGLJIT_CACHE_DIR": str(tmp_path / "empty")}
    assert run(WITHOUT_TRITON, **without, **empty, SGLJIT_PREBUILT_PATH=str(cache)) == "{'prebuilt': 3} 0\n"

    sgljit(run, "cache", "export", str(tmp_path / "kernels.zip"))
    imported = {"SGLJIT_CACHE_DIR": str(tmp_path / "imported")}
    sgljit(run, "cache", "import", str(tmp_path / "kernels.zip"), **imported)
    assert run(WITHOUT_TRITON, **without, **imported) == "{'cache': 3} 0\n"

    pytest.importorskip("sgljit_remote")
    (tmp_path / "store").mkdir()
    store = {"SGLJIT_REMOTE": f"file://{tmp_path / 'store'}"}
    sgljit(run, "cache", "push", **store, SGLJIT_REMOTE_MODE="readwrite")
    hits, _, misses = run(WITHOUT_TRITON, **without, **store, SGLJIT_CACHE_DIR=str(tmp_path / "third")).rpartition(" ")
    hits = ast.literal_eval(hits)  # an answer may hold several, which are in the cache then
    assert (sum(hits.values()), "remote" in hits, misses) == (3, True, "0\n")
