"""Launches by the C++ launcher, on a driver without a device: the variant, and what the kernel gets."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="Triton compiles the kernels of these tests; pip install triton")

BEGIN = """
    from sgljit_triton.tests.launching import LAST, tensor
    from tri_family.ops import ADD, FILL
    import ctypes, struct
    import sgljit_core

    def loaded():
        stats = sgljit_core.stats()
        return sum(stats.hits.values()) + stats.builds.get("compiled", 0)
"""


@pytest.fixture
def launch(run, driver, shared_cache):
    return lambda code, **options: run(
        BEGIN + code, LD_PRELOAD=str(driver), SGLJIT_CACHE_DIR=str(shared_cache), **options
    )


def test_a_kernel_gets_its_arguments(launch):
    launch("""
    A, B = 1 << 40, (1 << 40) + 4096
    LAST.arguments = 7
    bound = ADD.bind(BLOCK=256, num_warps=8)
    bound((3, 1, 1), tensor(A), tensor(B), tensor(A + 4), 768, 1.5)
    assert LAST.count == 1 and list(LAST.grid) == [3, 1, 1] and list(LAST.block) == [256, 1, 1]
    assert list(LAST.values)[:3] == [A, B, A + 4]
    assert LAST.values[3] & 0xFFFFFFFF == 768
    assert struct.pack("<Q", LAST.values[4])[:4] == struct.pack("<f", 1.5)
    assert list(LAST.values)[5:7] == [0, 0]  # pointers to scratch memory
    # Without y, and with a single element: both are compiled in, and not passed.
    LAST.arguments = 3
    bound((1, 1, 1), tensor(A), None, tensor(B), 1, 0.25)
    assert list(LAST.values)[:2] == [A, B]
    assert struct.pack("<Q", LAST.values[2])[:4] == struct.pack("<f", 0.25)
    assert loaded() == 3  # with the launcher
    """)


@pytest.mark.slow
def test_a_call_that_does_not_match_what_was_specialised_gets_another_variant(launch):
    built = launch("""
    A = 1 << 40
    bound = ADD.bind(BLOCK=256)
    calls = [
        (tensor(A), None, tensor(A), 768, 1.5),
        (tensor(A + 4), None, tensor(A), 768, 1.5),
        (tensor(A), None, tensor(A), 767, 1.5),
        (tensor(A), None, tensor(A), 1, 1.5),
        (tensor(A), None, tensor(A), 1 << 40, 1.5),
        (tensor(A, dtype="float16"), None, tensor(A), 768, 1.5),
    ]
    for number, call in enumerate(calls, 1):
        for again in range(2):
            bound((1, 1, 1), *call)
        assert loaded() == number + 1, number
    ADD.bind(BLOCK=512)((1, 1, 1), *calls[0])
    assert loaded() == len(calls) + 2
    assert LAST.count == 13
    """)
    assert built == ""


def test_what_is_not_specialised_needs_one_variant(launch):
    launch("""
    A = 1 << 40
    LAST.arguments = 4
    for n, out in ((1, A), (16, A + 4), (17, A + 8)):
        FILL.bind()((1, 1, 1), tensor(out), n, True, 2.0)
        assert LAST.values[0] == out and LAST.values[1] & 0xFFFFFFFF == n and LAST.values[2] & 0xFF == 1
    assert loaded() == 2
    """)


@pytest.mark.slow
def test_pdl_reaches_the_launch(launch):
    launch("""
    for pdl in (False, True):
        FILL.bind(launch_pdl=pdl)((1, 1, 1), tensor(1 << 40), 5, True, 2.0)
        assert LAST.attributes == pdl
    """)


def test_nothing_is_launched_on_an_empty_grid(launch):
    launch("""
    FILL.bind()((0, 1, 1), tensor(1 << 40), 5, True, 2.0)
    assert LAST.count == 0 and loaded() == 1
    """)


# Each call with its error: all are tried in one process.
WRONG = {
    "FILL.bind()((1, 1, 1), tensor(1 << 40), 5, True)": (
        "TypeError: tri_family.fill: expected three numbers of the grid and 4 arguments, got 6 in all"
    ),
    "FILL.bind()((1, 1, 1), tensor(1 << 40), 5, True, '2')": (
        "TypeError: tri_family.fill: argument 4: expected a tensor, int64, float, bool or None, got something else"
    ),
    "FILL.bind()((1, 1, 1), tensor(64), 5, True, 2.0)": (
        "TypeError: tri_family.fill: argument 1: expected a tensor with memory, got one without any"
    ),
    "FILL.bind()((1, 1, 1), 3, 5, True, 2.0)": (
        "ValueError: tri_family.fill: no tensor says on which device to launch"
    ),
    "FILL.bind()((1, 70000, 1), tensor(1 << 40), 5, True, 2.0)": (
        "ValueError: tri_family.fill: number 2 of the grid must be from 0 to 65535, got 70000"
    ),
    "FILL.bind()((1, -1, 1), tensor(1 << 40), 5, True, 2.0)": (
        "ValueError: tri_family.fill: number 2 of the grid must be from 0 to 65535, got -1"
    ),
    "FILL.bind()((1.0, 1, 1), tensor(1 << 40), 5, True, 2.0)": (
        "TypeError: tri_family.fill: number 1 of the grid is no int"
    ),
    "ADD.bind(BLOCK=2)((1, 1, 1), tensor(1 << 40), tensor(1 << 40, device=(2, 1)), tensor(1 << 40), 5, 2.0)": (
        "ValueError: tri_family.add: the tensors of a launch are on several devices"
    ),
    "ADD.bind(BLOCK=2)((1, 1, 1), tensor(1 << 40), tensor(1 << 40, device=(1, 0)), tensor(1 << 40), 5, 2.0)": (
        "ValueError: tri_family.add: a tensor is on the CPU, and another on a CUDA device"
    ),
}


def test_wrong_calls_are_refused(launch):
    said = launch(f"""
    for call in {list(WRONG)!r}:
        try:
            eval(call)
        except Exception as error:
            print(f"{{type(error).__name__}}: {{error}}".splitlines()[-1])
        else:
            print("accepted")
    """).splitlines()
    assert {call: text[: len(error)] for (call, error), text in zip(WRONG.items(), said, strict=True)} == WRONG


def test_the_launcher_and_python_name_the_same_variants(launch):
    """The texts that C++ writes, of arguments at random, against those of Python, of which recordings take theirs."""
    launch("""
    import random
    from sgljit_triton import launcher, specialisation
    from sgljit_triton.build import Compiled
    from tri_family.plugin import FAMILY
    asked = []
    def find(texts, target):
        asked.append(list(texts))
        return Compiled(b"", "", 1, 0, 0, False, ""), ""
    module, kinds = launcher.load(FAMILY), "sssanns"
    dtypes = list(specialisation.TYPES)
    draw = random.Random(7)
    edges = [0, 1, -1, 16, -16, 17, 2**31 - 1, 2**31, -2**31, -2**31 - 1, 2**63 - 1, -2**63, 2**32, 1 << 40]
    def value():
        kind = draw.randrange(5)
        if kind == 0: return draw.choice(edges)
        if kind == 1: return draw.choice([True, False, None, 1.0, 0.0])
        if kind == 2: return draw.randrange(-100, 100)
        return tensor((1 << 40) + 4 * draw.randrange(16), dtype=draw.choice(dtypes))
    for number in range(300):
        arguments = [tensor(1 << 41), *(value() for _ in kinds[1:])]
        launcher.bind(module, f"k{number}", kinds, find)(1, 1, 1, *arguments)
        assert asked[-1] == [specialisation.of(*one) for one in zip(arguments, kinds)], arguments
    """)


@pytest.mark.slow
def test_a_launch_that_the_driver_refuses_names_the_kernel(launch):
    """As a launch with more shared memory than the chip has is refused."""
    launch("""
    bound = FILL.bind(WIDE=32)
    bound((1, 1, 1), tensor(1 << 40), 5, True, 2.0)
    LAST.launch_status = 1
    try:
        bound((1, 1, 1), tensor(1 << 40), 5, True, 2.0)
    except RuntimeError as error:
        text = str(error)
    assert text.startswith("launch of tri_family.fill<*fp32 i32 u1 fp32>: CUDA error at "), text
    assert "(1)" in text and "grid=<1, 1, 1>, block=<128, 1, 1>" in text, text
    LAST.launch_status = 0
    bound((1, 1, 1), tensor(1 << 40), 5, True, 2.0)
    """)


def test_more_scratch_memory_than_a_launch_passes_is_refused(launch):
    launch("""
    from sgljit_triton import launcher
    from sgljit_triton.build import Compiled
    from tri_family.plugin import FAMILY
    for extra in (8, 9):
        find = lambda texts, target: (Compiled(b"", "", 1, 0, extra, False, ""), "")
        try:
            launcher.bind(launcher.load(FAMILY), "fam.kernel", "ss", find)(1, 1, 1, tensor(1 << 40), 1)
        except ValueError as error:
            assert extra == 9
            assert str(error) == (
                "fam.kernel<*fp32:16 =1>: it takes 9 pointers to scratch memory, and at most 8 are passed"
            ), error
        else:
            assert extra == 8
    assert LAST.count == 1
    """)


@pytest.mark.slow
def test_a_kernel_of_a_newer_cuda_says_which_driver_it_needs(launch):
    launch("""
    LAST.load_status = 200
    try:
        FILL.bind()((1, 1, 1), tensor(1 << 40), 5, True, 2.0)
    except sgljit_core.errors.DriverError as error:
        text = str(error)
    import triton
    assert text.startswith("tri_family.fill<*fp32, i32, u1, fp32, WIDE=64> for sm_90a cannot be loaded: "), text
    assert f"the kernel was compiled by Triton {triton.__version__} with ptxas of CUDA 1" in text, text
    assert "Update the driver" in text, text
    """)
