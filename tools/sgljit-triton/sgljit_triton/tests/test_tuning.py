"""Autotuned kernels: their configurations, the choice by chip and shape, its data, and `sgljit tune`."""

from __future__ import annotations

import json

import pytest
import torch

from sgljit_core.errors import InvalidBuildError
from sgljit_triton import cli, source, tuning
from sgljit_triton.tuning import Case, Measured, TunedDataError

BEGIN = "import triton\nimport triton.language as tl\n"
KERNEL = """@triton.jit
def kernel(x, out, n, BLOCK: tl.constexpr, EXACT: tl.constexpr = True):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, 2 * tl.load(x + i, mask=i < n), mask=i < n)
"""
CONFIGS = '[triton.Config({"BLOCK": block}, num_warps=4) for block in (64, 128, 256)]'
OPS = '''
import torch

from sgljit_triton import TritonKernels

from .plugin import FAMILY

TRITON = TritonKernels(FAMILY)
DOUBLE = TRITON.kernel("double.py", "kernel")


@TRITON.op(mutates=("out",))
def double(x: torch.Tensor, out: torch.Tensor) -> None:
    """out = 2 * x, of dense tensors."""
    n = x.numel()
    DOUBLE.bind()(lambda meta: (-(-n // meta["BLOCK"]), 1, 1), x, out, n)
'''
CALLS = """
from sgljit_core import TOKENS, TensorSpec


def double(model):
    rows = TensorSpec((TOKENS, 64), "float32")
    yield {"x": rows, "out": rows}
"""
REFERENCE = "def double(x, out):\n    out.copy_(2 * x)\n"
SAMPLES = """
import torch


def double(device):
    for rows in (1, 9):
        x = torch.randn(rows, 64, device=device)
        yield {"x": x, "out": torch.empty_like(x)}
"""
CHIP, OTHER = "NVIDIA H100 80GB HBM3", "NVIDIA H200"


@pytest.fixture
def package(package):
    """The family of ``conftest`` with an autotuned kernel, in place of its others."""
    files = {"ops": OPS, "calls": CALLS, "reference": REFERENCE, "samples": SAMPLES}
    for name, text in files.items():
        (package / f"{name}.py").write_text(text)
    decorator = f"@triton.autotune(configs={CONFIGS}, key=['n'])\n"
    (package / "kernels" / "double.py").write_text(f"{BEGIN}\n\n{decorator}{KERNEL}")
    return package


def store(package, *cases, chip=CHIP, target="sm_90a"):
    """Data as `sgljit tune` stores it: the fastest block for a number of elements."""
    found = [
        Measured(Case("double.py:kernel", ("float32", "float32", ""), {}, {"n": n}), config(block), 1.0, 2.0)
        for n, block in cases
    ]
    cli.store(package / "tuned", chip, target, found)
    return tuning.file_of(package / "tuned", chip)


def config(block):
    return {"BLOCK": block, "num_warps": 4, "num_stages": 3}


# Launches, and prints the numbers of blocks, without a device.
LAUNCH = f"""
    from sgljit_triton import tuning
    tuning.chip = lambda device_id: {CHIP!r}
    from sgljit_triton.tests.launching import LAST, tensor
    from tri_family.ops import DOUBLE, double
    def blocks(n):
        x = tensor(1 << 40, (n,))
        double(x, x)
        return LAST.grid[0]
"""


@pytest.fixture
def launch(run, driver, shared_cache):
    return lambda code, **options: run(
        LAUNCH + code, LD_PRELOAD=str(driver), SGLJIT_CACHE_DIR=str(shared_cache), **options
    )


def read(tmp_path, text):
    (tmp_path / "file.py").write_text(BEGIN + text + KERNEL)
    return source.read(tmp_path, "file.py", "kernel").autotuned


@pytest.mark.parametrize(
    "text",
    [
        f"@triton.autotune(configs={CONFIGS}, key=['n'])\n",
        f"@triton.autotune({CONFIGS}, ['n'])\n",
        f"BLOCKS = 64\nALL = {CONFIGS.replace('64', 'BLOCKS')}\n@triton.autotune(configs=ALL, key=['n'])\n",
        f"def configs():\n    return {CONFIGS}\n@triton.autotune(configs=configs(), key=('n',))\n",
    ],
    ids=["comprehension", "by position", "constants", "function"],
)
def test_configurations_are_read_without_triton(tmp_path, text):
    assert read(tmp_path, text) == ((config(64), config(128), config(256)), ("n",))


def test_they_are_tritons():
    triton = pytest.importorskip("triton", reason="Triton is the reference of this test; pip install triton")
    from sgljit_triton import configurations

    for given in ({}, {"num_warps": 8}, {"num_stages": 1, "maxnreg": 64}):
        wanted = triton.Config({"BLOCK": 64}, **given).all_kwargs()
        assert wanted.pop("num_ctas") == 1
        assert configurations._config({"BLOCK": 64}, **given) == wanted


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("@triton.autotune(configs=[], key=[])\n", "file.py: kernel kernel: @triton.autotune has no configs"),
        (f"@triton.autotune(configs={CONFIGS})\n", r"expected @triton.autotune\(configs=\[...\], key=\[...\]\)"),
        (f"@triton.autotune(configs={CONFIGS}, key=['n'], reset_to_zero=['out'])\n", "and nothing else"),
        ("@triton.autotune\n", "has @triton.autotune; expected"),
        (f"@triton.autotune(configs={CONFIGS}, key=['m'])\n", "the key has 'm', no parameter of it"),
        ("@triton.autotune(configs=made(), key=['n'])\n", "without Triton: NameError: name 'made' is not defined"),
        ("@triton.autotune(configs=[triton.Config({}, num_ctas=2)], key=['n'])\n", "triton.Config has num_ctas=2"),
        ("@triton.autotune(configs=[triton.Config({}, pre_hook=print)], key=['n'])\n", "triton.Config has pre_hook="),
        ("@triton.heuristics({})\n@triton.autotune(configs=[], key=[])\n", "at most @triton.autotune above it"),
        ("@triton.heuristics({})\n", r"has @triton.heuristics\(\{\}\); expected @triton.autotune"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path, text, says):
    with pytest.raises(InvalidBuildError, match=says):
        read(tmp_path, text)


def test_a_constant_that_configurations_choose_is_refused(run):
    failed = run("from tri_family.ops import DOUBLE; DOUBLE.bind(BLOCK=64)", fails=True)
    assert "tri_family.kernel: bind() has BLOCK, which the configurations of double.py choose" in failed
    failed = run("from tri_family.ops import DOUBLE; DOUBLE.bind(SIZE=64)", fails=True)
    assert "SIZE is no constant of it and no option" in failed


def test_the_data_is_read_as_it_was_written_and_keeps_other_cases(package):
    file = store(package, (64, 128), (4096, 256))
    assert file.name == "NVIDIA_H100_80GB_HBM3.json"
    assert store(package, (64, 64), (100, 256)) == file
    read = tuning.read(file)
    assert (read.chip, read.target) == (CHIP, "sm_90a")
    found = {one.case.shape["n"]: one.configuration["BLOCK"] for one in read.measured}
    assert found == {64: 64, 100: 256, 4096: 256}
    assert [path.name for path in file.parent.iterdir()] == [file.name]


@pytest.mark.slow
def test_a_launch_takes_what_was_measured_for_its_chip_and_its_shape(launch, package):
    pytest.importorskip("triton")
    store(package, (64, 128), (4096, 256))
    store(package, (64, 64), (4096, 64), chip=OTHER)
    printed = launch("    print([blocks(n) for n in (64, 4096, 80, 3000, 64)])", SGLJIT_JIT="on")
    assert printed == "[1, 16, 1, 12, 1]\n"  # 80 is nearer to 64: 128 elements in a block; 3000 to 4096


@pytest.mark.slow
def test_threads_that_launch_at_once_take_each_their_own_configuration(launch, package):
    """The kernel remembers three cases at most, so that the threads make it forget and choose again."""
    pytest.importorskip("triton")
    store(package, (64, 64), (1024, 128), (4096, 256))
    printed = launch(
        """
    import sys, threading
    from sgljit_triton import kernels
    wanted = {64: 64, 80: 64, 1000: 128, 1024: 128, 4096: 256, 5000: 256}
    tensors = {n: tensor(1 << 40, (n,)) for n in wanted}
    for n in wanted:
        blocks(n)
    kernels._MOST_CHOSEN = 3
    sys.setswitchinterval(1e-6)
    wrong = []
    def launches(first):
        sizes = [*wanted][first:] + [*wanted][:first]
        for n in 200 * sizes:
            taken = []
            DOUBLE.bind()(lambda meta: taken.append(meta["BLOCK"]) or (1, 1, 1), tensors[n], tensors[n], n)
            if taken != [wanted[n]]:
                wrong.append((n, taken))
    threads = [threading.Thread(target=launches, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(wrong, len(DOUBLE.bind()._chosen) <= 3 + len(threads))
    """,
        SGLJIT_JIT="on",
    )
    assert printed == "[] True\n"


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        (lambda package: None, f"nothing was measured on {CHIP}, but on no chip; the first"),
        (
            lambda package: store(package, (512, 256), chip=OTHER),
            f"nothing was measured on {CHIP}, but on {OTHER}; the first",
        ),
        (lambda package: store(package, (512, 256)).write_text("{"), ".json is damaged: JSONDecodeError: "),
        (lambda package: store(package, (512, 1024)), f"measured on {CHIP}, BLOCK=1024, num_warps=4, num_stages=3, is "
         "no configuration of it any more; the first"),
    ],
    ids=["no data", "another chip", "damaged", "of before an edit"],
)  # fmt: skip
def test_without_data_the_first_configuration_serves_and_it_is_said_once(launch, package, prepare, says):
    pytest.importorskip("triton")
    prepare(package)
    printed = launch("""
    import logging, sys
    logging.basicConfig(stream=sys.stdout, level=logging.WARNING, format="%(message)s")
    print([blocks(n) for n in (512, 640, 512)])
    """)
    *warnings, blocks = printed.splitlines()
    assert blocks == "[8, 10, 8]"
    (warning,) = warnings
    assert warning.startswith("tri_family.kernel: ")
    assert says in warning
    assert "the first configuration serves, BLOCK=64, num_warps=4, num_stages=3. `sgljit tune` measures" in warning


@pytest.mark.parametrize(
    "edit",
    [
        lambda data: data.pop("chip"),
        lambda data: data.update(format=2),
        lambda data: data.update(target=9),
        lambda data: data["kernels"]["double.py:kernel"][0].pop("shape"),
        lambda data: data["kernels"]["double.py:kernel"][0].update(configuration=3),
        lambda data: data["kernels"]["double.py:kernel"][0].update(microseconds="fast"),
        lambda data: data.update(kernels=[]),
    ],
)
def test_damaged_data_is_named_and_never_written_over(package, edit):
    file = store(package, (64, 128))
    data = json.loads(file.read_text())
    edit(data)
    file.write_text(json.dumps(data))
    before = file.read_bytes()
    for read in (lambda: tuning.read(file), lambda: store(package, (64, 64))):
        with pytest.raises(TunedDataError, match=rf"{file} (is damaged: .*remove it, and tune anew|has the format 2)"):
            read()
    assert file.read_bytes() == before


def test_a_measurement_chooses_the_fastest_and_names_what_did_not_run(launch, package):
    pytest.importorskip("triton")
    printed = launch("""
    from sgljit_triton import cli
    times = {64: 3.0, 128: 2.0, 256: None}
    def measure(launch, args):
        launch(*args)
        elements = -(-args[2] // LAST.grid[0])  # of a block
        if times[elements] is None:
            raise RuntimeError("CUDA error: too large\\\\nmore")
        return times[elements]
    x = tensor(1 << 40, (4096,))
    found = cli.measured(iter([(double, {"x": x, "out": x})] * 2), measure)
    assert LAST.grid[0] == 32, LAST.grid[0]
    assert len(found) == 1 and found[0].case.shape == {"n": 4096} and found[0].first == 3.0, found
    cli.store(DOUBLE.bind()._directory, tuning.chip(0), "sm_90a", found)
    print(blocks(8192))
    """)
    assert "double.py:kernel with n=4096: BLOCK=128, num_warps=4, num_stages=3: 2.00 us, the first 3.00\n" in printed
    assert f"stored 1 cases of {CHIP} in {tuning.file_of(package / 'tuned', CHIP)}\n64\n" in printed
    failed = launch("""
    from sgljit_triton import cli
    def measure(launch, args):
        raise RuntimeError("CUDA error: all fail")
    x = tensor(1 << 40, (4096,))
    cli.measured(iter([(double, {"x": x, "out": x})]), measure)
    """, fails=True)  # fmt: skip
    assert failed.splitlines()[-1] == "RuntimeError: CUDA error: all fail"


def test_nothing_measured_is_an_error(package):
    with pytest.raises(Exception, match=r"no call launched a kernel with @triton\.autotune"):
        cli.store(package / "tuned", CHIP, "sm_90a", [])
    assert not (package / "tuned").exists()


@pytest.mark.slow
def test_what_the_chips_of_a_target_take_is_built_ahead(run, package, driver):
    pytest.importorskip("triton")
    command = "from sgljit_tools.cli.main import main; main(['cache', 'build', 'tri_family', '--cuda-arch', '9.0'])"
    assert "2 modules are ready" in run(command)  # the launcher, and the first configuration
    store(package, (1 << 20, 256))
    store(package, (1 << 20, 64), chip=OTHER)
    store(package, (1 << 20, 128), chip="NVIDIA A100", target="sm_80")
    assert "3 modules are ready" in run(command)
    printed = run(LAUNCH + "    print(blocks(1 << 20))", LD_PRELOAD=str(driver), SGLJIT_JIT="error")
    assert printed == "4096\n"


@pytest.mark.slow
def test_build_compiles_for_tensors_without_memory(run, package):
    pytest.importorskip("triton")
    store(package, (4096, 256))
    run("""
        import sgljit_core, torch
        from tri_family.ops import DOUBLE
        x = torch.empty(4096, device="meta")
        with sgljit_core.override_cuda_arch(9, 0):
            DOUBLE.bind().build(x, x, 4096)
        assert sgljit_core.stats().builds == {"compiled": 2}, sgljit_core.stats()
    """)


def test_the_key_names_no_tensor(run, package):
    file = package / "kernels" / "double.py"
    file.write_text(file.read_text().replace("key=['n']", "key=['x']"))
    failed = run("""
        import torch
        from tri_family.ops import double
        double(torch.ones(64), torch.ones(64))
    """, fails=True)  # fmt: skip
    assert "TypeError: tri_family.kernel: the key of @triton.autotune has x, of Tensor; name its sizes" in failed


@pytest.mark.slow
def test_the_interpreter_runs_the_first_configuration(run):
    pytest.importorskip("triton")
    run("""
        import torch
        from tri_family.ops import double
        x = torch.randn(100)
        out = torch.empty(100)
        double(x, out)
        assert torch.equal(out, 2 * x)
    """)


def test_the_tensors_of_a_measurement_are_those_of_the_calls():
    from sgljit_core import TOKENS, TensorSpec

    floats = cli._tensor(TensorSpec((TOKENS, 8), "bfloat16", (16, 1), 3), 5, torch.device("cpu"))
    assert (floats.shape, floats.stride(), floats.storage_offset()) == ((5, 8), (16, 1), 3)
    assert floats.dtype == torch.bfloat16
    assert floats.float().std() > 0
    assert cli._tensor(TensorSpec((4,), "int64"), 0, torch.device("cpu")).tolist() == [0] * 4
    assert cli._tensor(TensorSpec((TOKENS, 4), "float32"), 0, torch.device("cpu")).shape == (0, 4)
    first, second = torch.arange(10.0).split(5)
    copied = cli.copies([first, second, 3, None])
    assert copied[1].tolist() == second.tolist()
    assert copied[1].data_ptr() - copied[0].data_ptr() == second.data_ptr() - first.data_ptr()
    copied[1].zero_()
    assert second.sum() > 0
    assert copied[2:] == [3, None]


@pytest.mark.parametrize("samples", [False, True])
def test_the_calls_are_the_declared_ones_or_the_samples(run, package, samples):
    if samples:
        (package / "calls.py").unlink()
    printed = run("""
        import torch
        from sgljit_core.families import loading
        from sgljit_triton import cli
        op = loading.load("tri_family").declared()["double"]
        print([call["x"].shape[0] for _, call in cli.calls_of(op, torch.device("cpu"), None, (1, 16))])
    """)
    assert printed == ("[1, 9]\n" if samples else "[1, 16]\n")


def test_the_command_needs_a_gpu(run):
    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    failed = run("from sgljit_tools.cli.main import main; main(['tune', 'tri_family'])", fails=True)
    assert failed.endswith("error: sgljit tune measures on a GPU, and this machine has no CUDA device\n")
    failed = run("from sgljit_tools.cli.main import main; main(['tune', 'tri_famly'])", fails=True)
    assert "error: no installed plugin provides the kernel family 'tri_famly'; did you mean" in failed
    failed = run("from sgljit_tools.cli.main import main; main(['tune', 'tri_family', '--op', 'x'])", fails=True)
    assert "tri_family has no op x; it has double" in failed


@pytest.mark.gpu
def test_it_measures_on_a_gpu_and_launches_take_the_fastest(run, package):
    pytest.importorskip("triton")
    tune = ["tune", "tri_family", "--tokens", "1", "--tokens", "4096"]
    printed = run(f"from sgljit_tools.cli.main import main; main({tune!r})")
    (file,) = (package / "tuned").iterdir()
    assert f"in {file}\n" in printed
    run("""
        import torch
        from sgljit_core import log
        from sgljit_triton import tuning
        from tri_family.ops import DOUBLE, double
        bound, sizes = DOUBLE.bind(), set()
        for one in tuning.read(next(bound._directory.iterdir())).measured:
            n = one.case.shape["n"]
            sizes.add(n)
            x = torch.randn(n, device="cuda")
            out = torch.empty_like(x)
            double(x, out)
            assert torch.equal(out, 2 * x)
            assert one.microseconds <= one.first
            chosen = tuning.choose(bound._directory, "", torch.cuda.get_device_name(), one.case, bound._configurations)
            assert chosen == one.configuration
        assert sizes == {64, 4096 * 64} and not log.was_said("not_tuned")
    """)
