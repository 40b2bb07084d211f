"""What ``make dist`` builds: the same bytes each time, complete, and installed from an index on every Python here."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import isolated
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from sgljit_core.cache.manifest import FILE, Manifest
from sgljit_core.compilers import nvrtc
from sgljit_core.errors import ToolchainNotFoundError
from sgljit_remote import carried, signing
from sgljit_remote.errors import KeyFileError

ROOT = isolated.ROOT
NAMES = [name for name in isolated.PROJECTS if name != "sgljit-core"]
FAMILIES = [name for name, place in isolated.PROJECTS.items() if place.parts[:1] == ("plugins",)]
# All compiled wheels take four minutes of CPU time. These have each kind of code that a wheel carries: variants of row
# programs (quant, sampling), files that are compiled when they are first called (hicache), a host part alone
# (wait_value). Before a release, SGLJIT_TEST_WHEELS=all takes all families.
FEW = ["sgljit-hicache", "sgljit-quant", "sgljit-sampling", "sgljit-wait-value"]
COMPILED = FAMILIES if os.environ.get("SGLJIT_TEST_WHEELS") == "all" else FEW
LICENSE = (ROOT / "LICENSE").read_bytes()
MACHINE = platform.machine()
# Those that make dist has a compiler for. A cross compiler is no part of continuous integration.
MACHINES = [name for name in ("aarch64", "x86_64") if name == MACHINE or shutil.which(f"{name}-linux-gnu-g++")]
ELF_MACHINES = {"aarch64": 183, "x86_64": 62}


def interpreters() -> dict[str, Path]:
    """The Pythons of this machine that the project supports, by version: on PATH, or installed by pyenv."""
    root = Path(os.environ.get("PYENV_ROOT") or Path("~/.pyenv").expanduser())
    found = {}
    for minor in range(10, 20):
        known = sorted(root.glob(f"versions/3.{minor}.*/bin/python3.{minor}"))
        place = known[-1] if known else shutil.which(f"python3.{minor}")
        if place:
            found[f"3.{minor}"] = Path(place)
    return found


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("dist", ROOT / "release" / "dist.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def built(run_directory) -> Path:
    """What ``make dist`` leaves, made once in a run."""
    if not (ROOT / ".git").exists():
        pytest.skip("a release is made of a commit, and this is no checkout")
    into = run_directory / "dist"
    with isolated.locked(run_directory / "dist.lock"):
        if not (into / "SHA256SUMS").exists():
            signing.new_key(run_directory / "release")
            command = [sys.executable, ROOT / "release" / "dist.py", "--into", into, "--only", *COMPILED]
            command += ["--sign", run_directory / "release"]
            isolated.run(*command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT / "tests")}, seconds=1800)
    return into


def pure(directory: Path, name: str = "sgljit_*") -> list[Path]:
    return sorted(directory.glob(f"{name.replace('-', '_')}-*-none-any.whl"))


def compiled(directory: Path, name: str = "sgljit_*", machine: str = MACHINE) -> list[Path]:
    return sorted(directory.glob(f"{name.replace('-', '_')}-*_{machine}.whl"))


def test_a_machine_without_a_cross_compiler_is_left_out_with_the_command_that_installs_it(
    script, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(script, "CROSS_COMPILERS", {"aarch64": "aarch64-linux-gnu-g++"})
    monkeypatch.setenv("PATH", str(tmp_path))
    assert script.machines() == [MACHINE]
    assert capsys.readouterr().out == (
        "no compiled wheels for aarch64: aarch64-linux-gnu-g++ is not on PATH "
        "(Debian: apt-get install g++-aarch64-linux-gnu)\n"
    )
    (tmp_path / "aarch64-linux-gnu-g++").touch(mode=0o755)
    assert script.machines() == [MACHINE, "aarch64"]
    assert not capsys.readouterr().out


@pytest.fixture(scope="module")
def index(built, tmp_path_factory) -> str:
    """The address of a directory that is laid out as a package index (PEP 503)."""
    root = tmp_path_factory.mktemp("index")
    for file in [*built.glob("*.whl"), *built.glob("*.tar.gz")]:
        place = root / canonicalize_name(file.name.partition("-")[0])
        place.mkdir(exist_ok=True)
        shutil.copy(file, place)
    for place in root.iterdir():
        links = "".join(f'<a href="{file.name}">{file.name}</a>' for file in sorted(place.iterdir()))
        (place / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
    return root.as_uri()


@pytest.mark.parametrize("name", NAMES)
def test_each_distribution_has_the_licence(name):
    assert (ROOT / isolated.PROJECTS[name] / "LICENSE").read_bytes() == LICENSE


@pytest.mark.slow
def test_the_licence_is_inside_of_every_file(built):
    wheels, sdists = sorted(built.glob("*.whl")), sorted(built.glob("*.tar.gz"))
    assert len(wheels) - len(COMPILED) * len(MACHINES) == len(sdists) == len(isolated.PROJECTS)
    for file in wheels:
        with zipfile.ZipFile(file) as wheel:
            (name,) = (one for one in wheel.namelist() if one.endswith(".dist-info/licenses/LICENSE"))
            assert wheel.read(name) == LICENSE, file.name
    for file in sdists:
        with tarfile.open(file) as sdist:
            (member,) = (one for one in sdist if re.fullmatch(r"[^/]+/LICENSE", one.name))
            assert sdist.extractfile(member).read() == LICENSE, file.name


@pytest.mark.slow
def test_two_builds_of_a_commit_have_the_same_bytes(built, script, run_directory, tmp_path):
    """In another directory, by another user's habits, at another time."""
    sources = tmp_path / "elsewhere"
    sources.mkdir()
    script.export("HEAD", sources)
    for path in sources.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(0o700 if path.is_dir() else 0o600)
    epoch = script.commit_time("HEAD")
    files = script.build(sources, tmp_path / "again", epoch)
    wheels = script.compile_for_cpu(sources, files, pure(tmp_path / "again", "sgljit-hicache"), epoch, MACHINES)
    assert wheels == [compiled(tmp_path / "again", machine=machine)[0] for machine in MACHINES]
    for wheel in wheels:
        carried.sign_wheel(wheel, signing.private_key(run_directory / "release"))
    files += wheels
    assert {*script.hashes(files).splitlines()} <= {*(built / "SHA256SUMS").read_text().splitlines()}
    isolated.run("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=built)


@pytest.mark.slow
def test_the_bill_of_materials_names_what_is_installed(built):
    bill = json.loads((built / "sgljit.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    components = {one["name"]: one for one in bill["components"]}
    needed = {"torch", "apache-tvm-ffi", "pluggy", "packaging", "importlib_metadata", "cryptography", "typer"}
    assert needed | {*NAMES} <= components.keys()
    assert {"pytest", "ruff", "mypy", "twine"}.isdisjoint(components)
    assert all(one["version"] and one["purl"].startswith("pkg:pypi/") for one in components.values())
    assert "Apache-2.0" in json.dumps(components["sgljit-norm"]["licenses"])
    assert str(ROOT) not in json.dumps(bill)
    assert "timestamp" not in bill["metadata"]


@pytest.mark.slow
def test_all_of_it_is_installed_from_an_index_with_what_it_requires(built, index, tmp_path):
    wheels = [isolated.Built(ROOT, file, file) for file in built.glob("*.whl")]
    environment = isolated.Environment(tmp_path / "environment", wheels)
    environment.pip("install", "--index-url", index, *isolated.PROJECTS)
    listed = environment.run(environment.bin / "sgljit", "list", "--json", "--strict")
    assert {one["family"] for one in json.loads(listed)["families"]} >= {"norm", "rope", "moe", "kvcache"}
    code = "import torch; from sgljit_core import ops; print(ops['norm'].rmsnorm(torch.ones(2, 64), torch.ones(64)))"
    environment.run_code(code)


@pytest.mark.slow
@pytest.mark.parametrize("version", interpreters())
def test_each_python_of_this_machine_takes_it(index, tmp_path, version):
    """Without torch, and without the command: their wheels are for one Python, and here are those of this one."""
    environment = tmp_path / "environment"
    isolated.run(interpreters()[version], "-m", "venv", "--without-pip", environment, cwd=tmp_path)
    python, site = environment / "bin" / "python", environment / "lib" / f"python{version}" / "site-packages"
    pip = [sys.executable, "-m", "pip", "--python", python, "--isolated", "--no-cache-dir", "install", "--no-deps"]
    isolated.run(*pip, "--index-url", index, *isolated.PROJECTS, cwd=tmp_path)
    for distribution in isolated.closure(
        map(Requirement, ("importlib-metadata", "packaging", "pluggy")), without=set()
    ).values():
        for file in distribution.files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                link = site.joinpath(*file.parts)
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(Path(str(file.locate())).resolve())
    own = sorted(path for path in site.glob("sgljit_*") if path.is_dir() and ".dist-info" not in path.name)
    assert len(own) == len(isolated.PROJECTS)
    isolated.run(python, "-W", "error", "-m", "compileall", "-q", *own, cwd=tmp_path)
    code = "import sgljit_core, sys; assert 'norm' in list(sgljit_core.ops); assert 'torch' not in sys.modules"
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SGLJIT_"))}
    isolated.run(python, "-W", "error", "-c", code, cwd=tmp_path, env=variables)


def test_a_library_that_nothing_brings_is_refused(script, tmp_path):
    content = tmp_path / "odd"
    (content / "odd-1.0.dist-info").mkdir(parents=True)
    tag = f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-linux_{MACHINE}\n"
    (content / "odd-1.0.dist-info" / "WHEEL").write_text(tag)
    (content / "odd-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n")
    (tmp_path / "other.cpp").write_text('extern "C" int other() { return 1; }')
    (tmp_path / "own.cpp").write_text('extern "C" int other(); extern "C" int own() { return other(); }')
    link = ["g++", "-shared", "-fPIC", "-L", ".", "-o"]
    isolated.run(*link, "libother.so", "other.cpp", cwd=tmp_path)
    isolated.run(*link, content / "own.so", "own.cpp", "-lother", cwd=tmp_path)
    isolated.run(sys.executable, "-m", "wheel", "pack", content, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    with pytest.raises(SystemExit, match=rf"(?s){wheel.name} cannot have the tag manylinux_.*libother\.so"):
        script.platform_tag(wheel)


@pytest.mark.slow
@pytest.mark.parametrize("machine", ELF_MACHINES)
@pytest.mark.parametrize("name", COMPILED)
def test_beside_each_pure_wheel_of_a_family_is_one_with_its_code_for_the_cpu(built, tmp_path, name, machine):
    if machine not in MACHINES:
        pytest.skip(f"{machine}-linux-gnu-g++ is not installed: no wheels for {machine}")
    (before,), (wheel,) = pure(built, name), compiled(built, name, machine)
    files = {file: zipfile.ZipFile(file).namelist() for file in (before, wheel)}
    added = {*files[wheel]} - {*files[before]}
    package = before.name.partition("-")[0]
    assert {*files[before]} <= {*files[wheel]}
    places = {re.sub(r"/[^/]+/[0-9a-f]{32}/[0-9a-f]{32}/", "/", file) for file in added}
    family = package.removeprefix("sgljit_")
    place = f"{package}/prebuilt/cpu-{machine}/{family}"
    assert places == {f"{place}/module.so", f"{place}/manifest.json", f"{place}/signature"}  # nothing is for CUDA
    zipfile.ZipFile(wheel).extractall(tmp_path)

    manifests = [Manifest.parse(file.read_bytes()) for file in tmp_path.rglob(FILE)]
    assert any(one.module == family for one in manifests)  # the host part
    assert all(one.created > 0 and one.seconds == 0 and not one.observed for one in manifests)
    assert not re.search(rf"/(tmp|root|home|work)/|{re.escape(str(ROOT))}", "".join(one.command for one in manifests))

    tag = re.search(rf"-py3-none-manylinux_2_(\d+)_{machine}\.whl$", wheel.name)
    needed, elsewhere = set(), set()
    for library in tmp_path.rglob("*.so"):
        assert int.from_bytes(library.read_bytes()[18:20], "little") == ELF_MACHINES[machine]
        said = isolated.run("readelf", "--wide", "--dynamic", "--version-info", library, cwd=tmp_path)
        needed |= {int(minor) for minor in re.findall(r"GLIBC_2\.(\d+)", said)}
        elsewhere |= {*re.findall(r"\(NEEDED\).*\[(.+)\]", said)}
    assert int(tag[1]) == max(needed)
    elsewhere = {name for name in elsewhere if not name.startswith("ld-linux-")}  # of the C library
    assert elsewhere <= {"libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libtvm_ffi.so"}


def without_compilers(environment: isolated.Environment, cache: Path) -> dict[str, str]:
    return {
        **environment.variables,
        "PATH": str(environment.bin),
        "SGLJIT_JIT": "error",
        "SGLJIT_CACHE_DIR": str(cache),
    }


@pytest.fixture(scope="module")
def bare(built, tmp_path_factory) -> isolated.Environment:
    """An environment into which pip has put everything from ``dist/``, by name. It has NVRTC, if this one has."""
    wheels = [isolated.Built(ROOT, file, file) for file in built.glob("*.whl")]
    directory, extra = tmp_path_factory.mktemp("bare") / "environment", isolated.cuda_compilers()
    environment = isolated.Environment(directory, wheels, extra=extra)
    environment.pip("install", "--no-index", "--find-links", built, *isolated.PROJECTS)
    return environment


CHECK = """
import sys
from sgljit_core.families import loading
from sgljit_core import stats
from sgljit_tools.testing import check_op
for op in loading.load(sys.argv[1]).declared().values():
    check_op(op, "cpu", ["results"])
print(stats())
assert stats().hits.keys() == {"carried"} and not stats().misses and not stats().builds, stats()
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_without_a_compiler_every_op_gives_its_result_on_the_cpu(bare, tmp_path, name):
    """For all samples: their results are those of the references."""
    family = name.removeprefix("sgljit-").replace("-", "_")
    command = [bare.python, "-c", CHECK, family]
    isolated.run(*command, cwd=bare.home, env=without_compilers(bare, tmp_path / "empty"))
    assert not [*(tmp_path / "empty").rglob("*.so")]


@pytest.mark.slow
def test_with_trusted_keys_a_compiled_wheel_serves_if_one_of_them_has_signed_it(bare, run_directory, tmp_path):
    command = [bare.python, "-c", CHECK, "wait_value"]
    variables = without_compilers(bare, tmp_path / "empty")
    release, other = run_directory / "release.pub", signing.new_key(tmp_path / "other")
    isolated.run(*command, cwd=bare.home, env={**variables, "SGLJIT_TRUSTED_KEYS": str(release)})
    variables["SGLJIT_TRUSTED_KEYS"] = str(other)
    done = subprocess.run(command, cwd=bare.home, env=variables, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert re.search(
        r"/sgljit_wait_value/prebuilt/\S+ is refused and not used: it is signed by none of the keys of", done.stderr
    )


def test_nothing_is_built_with_a_key_that_cannot_sign(script, tmp_path, monkeypatch):
    for arguments, error in (
        (["--sign", str(tmp_path / "nothing")], KeyFileError),
        (["--sign", "key", "--pure"], SystemExit),
    ):
        monkeypatch.setattr(sys, "argv", ["dist.py", "--into", str(tmp_path / "dist"), *arguments])
        with pytest.raises(error):
            script.main()
    assert not (tmp_path / "dist").exists()


FIRST_CALL = """
import time, torch
x, q, scales = torch.ones(2, 64), torch.empty(2, 64, dtype=torch.int8), torch.empty(2, 1)
start = time.process_time()  # other processes may be in the way
from sgljit_core import ops
ops["quant"].per_token_quant_int8(x, q, scales)
print(time.process_time() - start)
assert (q == 127).all()
"""


@pytest.mark.slow
def test_without_a_compiler_the_first_call_takes_a_fifth_of_a_second(bare, tmp_path):
    times = []
    for number in range(20):  # they share its caches
        environment = without_compilers(bare, tmp_path / str(number))
        times.append(float(isolated.run(bare.python, "-c", FIRST_CALL, cwd=bare.home, env=environment).split()[-1]))
        if times[-1] < 0.2:
            break
    assert min(times) < 0.2, times


FIRST_LAUNCH = """
import time, torch
memory = torch.ones(2, 64), torch.empty(2, 64, dtype=torch.int8), torch.empty(2, 1)
start = time.process_time()
from sgljit_core import ops, override_cuda_arch
ops["quant"].per_token_quant_int8
import tvm_ffi
from sgljit_core.compilers import arch
from sgljit_quant.plugin import FAMILY
from sgljit_tools.recording.tensors import Shaped
arch.pretend(arch.parse_cuda_target("9.0", "a test"))
on_gpu = [Shaped.of(one) for one in memory]
with override_cuda_arch(9, 0), tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), 0):
    FAMILY.host_module().per_token_quant_int8(*(one.handed_over() for one in on_gpu))
spent = time.process_time() - start
from sgljit_core import stats
assert stats().hits == {"carried": 1} and stats().builds == {"compiled": 1}, stats()
print(spent)
"""


@pytest.fixture
def driver(tmp_path) -> Path:
    """A driver without a device."""
    source = ROOT / "tools/sgljit-tools/sgljit_tools/recording/csrc/null_driver.cpp"
    options = ["-shared", "-fPIC", "-DSGL_NULL_MAJOR=9", "-DSGL_NULL_MINOR=0", "-Wl,-soname,libcuda.so.1"]
    isolated.run(os.environ.get("CXX") or "g++", source, "-o", tmp_path / "libcuda.so.1", *options, cwd=tmp_path)
    return tmp_path / "libcuda.so.1"


@pytest.mark.slow
def test_with_nvrtc_alone_the_first_launch_takes_half_a_second_of_a_small_machine(bare, driver, tmp_path):
    """The goal of a machine with a GPU is 0.3 s. Not seen without one: its tensors, the load of the kernel, its time.

    bench/first_calls.py --device cuda has all of it, by the clock.
    """
    try:
        nvrtc.find_nvrtc("this test")
    except ToolchainNotFoundError as error:
        pytest.skip(str(error).splitlines()[0])
    times = []
    for number in range(20):  # as above
        environment = {**without_compilers(bare, tmp_path / str(number)), "CUDA_VISIBLE_DEVICES": ""}
        environment |= {"SGLJIT_JIT": "on", "LD_PRELOAD": str(driver)}
        times.append(float(isolated.run(bare.python, "-c", FIRST_LAUNCH, cwd=bare.home, env=environment).split()[-1]))
        if times[-1] < 0.5:
            break
    assert min(times) < 0.5, times


@pytest.mark.slow
def test_the_page_of_first_calls_has_a_row_for_each_family(built, tmp_path):
    families = ["sgljit-quant", "sgljit-wait-value"]
    command = [sys.executable, ROOT / "bench" / "first_calls.py", "--dist", built, "--rounds", "1", "--families"]
    subprocess.run([*command, *families, "--output", tmp_path / "page.md"], cwd=tmp_path, check=False, timeout=600)
    lines = (tmp_path / "page.md").read_text().splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith(("| quant", "| wait_value"))]
    assert [row[0] for row in rows] == ["quant", "wait_value"]
    assert all(0 < float(time) < 60_000 for row in rows for time in row[2:])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("platform", "machine"),
    [
        (None, MACHINE),
        ("manylinux_2_17_x86_64", None),
        ("manylinux_2_17_aarch64", None),
        *(("its own tag", name) for name in MACHINES),
        ("musllinux_1_2_x86_64", None),
    ],
)
def test_pip_takes_the_compiled_wheel_where_its_tag_fits_and_else_the_pure_one(built, tmp_path, platform, machine):
    fitting = compiled(built, "sgljit-quant", machine) if machine else pure(built, "sgljit-quant")
    if platform == "its own tag":  # pip takes no older one for a platform that is named
        platform = fitting[0].stem.rpartition("-")[2]
    where = ["--platform", platform, "--only-binary", ":all:"] if platform else []
    pip = [sys.executable, "-m", "pip", "--isolated", "download", "--no-index", "--no-deps", "--find-links", built]
    isolated.run(*pip, "--dest", tmp_path, *where, "sgljit-quant", cwd=tmp_path)
    (taken,) = tmp_path.iterdir()
    assert taken.name in {file.name for file in fitting}
