"""The installed Triton compiles for a GPU that is not there, and its remote cache is ours."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sgljit_core.builds import policy
from sgljit_remote import lease, remote, signing, stats
from sgljit_remote.errors import RefusedObjectError

from . import served

pytest.importorskip("triton", reason="Triton compiles the kernel; pip install triton")

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel, compile as triton_compile
from triton.runtime.cache import CacheManager, FileCacheManager, RemoteCacheBackend

from sgljit_remote import triton as backend

from .kernel_of_triton import scale

FILES = {"__grp__k.json": b'{"child_paths": ["k.cubin", "k.json"]}', "k.cubin": b"\0code" * 100, "k.json": b"{}"}


@pytest.fixture(autouse=True)
def fusion(monkeypatch):
    """Triton 3.9 warns where nobody has chosen."""
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """Name another empty directory to Triton, as another machine has."""

    def directory(name: str):
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / name))
        return tmp_path / name

    return directory


@pytest.fixture
def machine(directory, server, key, monkeypatch):
    """Settings of a machine that asks the server, and of one that publishes there."""
    monkeypatch.setenv("TRITON_CACHE_MANAGER", "sgljit_remote.triton:Manager")
    monkeypatch.setenv("SGLJIT_TRUSTED_KEYS", str(key.parent / "trusted"))
    monkeypatch.setenv("SGLJIT_SIGNING_KEY", str(key))
    monkeypatch.setenv("SGLJIT_REMOTE", server.url)

    def machine(name: str, *, mode: str = "read", timeout: float = 20):
        monkeypatch.setenv("SGLJIT_REMOTE_MODE", mode)
        monkeypatch.setenv("SGLJIT_REMOTE_TIMEOUT", str(timeout))
        return directory(name)

    return machine


@contextlib.contextmanager
def remote_of_this_process_forgotten() -> Iterator[None]:
    """A new process has asked its remote nothing yet."""
    known = remote._sessions
    remote._sessions = type(known)()
    try:
        yield
    finally:
        remote._sessions = known


def compiled() -> tuple[CompiledKernel, bool]:
    """The kernel, and whether Triton had to compile it."""
    from triton import knobs

    hits = []
    knobs.compilation.listener = lambda **what: hits.append(what["cache_hit"])
    try:
        types = {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": "i32", "BLOCK": "constexpr"}
        source = ASTSource(scale, types, {(3,): 64})
        kernel = triton_compile(source, target=GPUTarget("cuda", 90, 32))
    finally:
        knobs.compilation.listener = None
    return kernel, hits == [False]


@pytest.fixture
def published(machine, server):
    """A machine has compiled the kernel and published it; its cubin."""
    machine("first", mode="readwrite")
    kernel, was_compiled = compiled()
    assert was_compiled
    (lease,) = (name for name in server.objects if name.endswith(".lease"))
    assert server.objects.pop(lease).startswith(b"released ")
    assert len(server.objects) == 1
    server.requests.clear()
    return kernel.asm["cubin"]


def test_another_machine_gets_the_kernel_by_one_request(machine, server, published, said):
    machine("second")
    kernel, was_compiled = compiled()
    assert not was_compiled
    assert kernel.asm["cubin"] == published
    assert kernel.asm["ptx"].startswith("//")
    assert kernel.metadata.target.arch == 90
    assert len(server.requests) == 1
    assert said() == []


def test_tritons_own_manager_of_remote_caches_takes_it_too(machine, published, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_MANAGER", "triton.runtime.cache:RemoteCacheManager")
    monkeypatch.setenv("TRITON_REMOTE_CACHE_BACKEND", "sgljit_remote.triton:Backend")
    machine("second")
    kernel, was_compiled = compiled()
    assert not was_compiled
    assert kernel.asm["cubin"] == published


def test_a_machine_that_has_the_kernel_asks_nobody(machine, server, published):
    machine("first")
    kernel, was_compiled = compiled()
    assert not was_compiled
    assert kernel.asm["cubin"] == published
    assert server.requests == []


def test_the_cache_of_a_machine_that_knew_no_remote_is_used(machine, server, monkeypatch):
    machine("before")
    monkeypatch.delenv("TRITON_CACHE_MANAGER")
    assert compiled()[1]
    monkeypatch.setenv("TRITON_CACHE_MANAGER", "sgljit_remote.triton:Manager")
    assert not compiled()[1]
    assert server.requests == []


@pytest.mark.parametrize("name", ["first", "second"])
def test_what_was_compiled_or_brought_serves_without_a_remote(machine, published, monkeypatch, name):
    machine(name)
    assert not compiled()[1]
    monkeypatch.delenv("TRITON_CACHE_MANAGER")
    kernel, was_compiled = compiled()
    assert not was_compiled
    assert kernel.asm["cubin"] == published


def test_what_was_just_compiled_serves_without_a_remote(published, directory, monkeypatch):
    directory("first")
    monkeypatch.delenv("TRITON_CACHE_MANAGER")
    assert not compiled()[1]


def test_a_kernel_of_which_a_file_is_gone_is_brought_again(machine, published, tmp_path):
    directory = machine("first")
    (cubin,) = directory.rglob("*.cubin")
    cubin.unlink()
    kernel, was_compiled = compiled()
    assert not was_compiled
    assert kernel.asm["cubin"] == published


def test_without_a_remote_triton_compiles_and_keeps(machine, server, monkeypatch, said):
    machine("alone")
    monkeypatch.delenv("SGLJIT_REMOTE")
    assert compiled()[1]
    assert not compiled()[1]
    assert server.requests == []
    assert said() == []


def test_a_machine_that_reads_only_publishes_nothing(machine, server):
    machine("first")
    assert compiled()[1]
    assert server.objects == {}
    assert len(server.requests) == 1


def _altered(place):
    def alter(content, key, tmp_path):
        changed = bytearray(content)
        changed[int(place * (len(changed) - 1))] ^= 1
        return bytes(changed)

    return alter


def _unsigned(content, key, tmp_path):
    return bytes(64) + content[64:]


def _of_a_stranger(content, key, tmp_path):
    signing.new_key(tmp_path / "stranger")
    return signing.sign(content[64:], signing.private_key(tmp_path / "stranger"), "triton") + content[64:]


def _signed_for_another_use(content, key, tmp_path):
    return signing.sign(content[64:], signing.private_key(key)) + content[64:]


def _of_another_kernel(content, key, tmp_path):
    return backend.pack("ANOTHERKEY", "__grp__scale.json", FILES, signing.private_key(key))


@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        *((_altered(place), "signed by none of the keys") for place in (0, 0.01, 0.5, 1)),
        (lambda content, *_: content[: len(content) // 2], "signed by none of the keys"),
        (lambda *_: b"", "it is not signed"),
        (lambda *_: b"<html>please log in</html>", "signed by none of the keys"),
        (_unsigned, "it is not signed, and SGLJIT_TRUSTED_KEYS asks for a signature"),
        (_of_a_stranger, "signed by none of the keys"),
        (_signed_for_another_use, "signed by none of the keys"),
        (_of_another_kernel, "it is that of another"),
    ],
)
def test_what_an_attacker_serves_is_refused_and_compiled_here(
    machine, server, published, key, tmp_path, said, attack, reason
):
    ((name, content),) = server.objects.items()
    server.objects[name] = attack(content, key, tmp_path)
    machine("second")
    refusals = stats().refusals
    kernel, was_compiled = compiled()
    assert was_compiled
    assert kernel.asm["cubin"] == published
    (warning,) = said()
    assert warning.startswith(f"{server.url}{name} is refused and not used: ")
    assert reason in warning
    assert stats().refusals == refusals + 1


def test_what_was_refused_is_replaced_by_a_machine_that_publishes(machine, server, published):
    (name,) = server.objects
    good, server.objects[name] = server.objects[name], b"nonsense"
    machine("second", mode="readwrite")
    assert compiled()[1]
    assert list(server.objects) == [name]  # and no lease: nobody can use what was refused
    assert len(server.objects[name]) == pytest.approx(len(good), rel=0.1)
    machine("third")
    assert not compiled()[1]


@pytest.mark.parametrize("fault", [served.stalled, served.status(503), served.reset])
def test_a_remote_that_is_down_costs_one_time_out_and_one_warning(machine, server, published, said, fault):
    server.fault = fault
    machine("second", timeout=0.5)
    with served.within(20):
        kernel, was_compiled = compiled()
    assert was_compiled
    assert kernel.asm["cubin"] == published
    (warning,) = said()
    assert "cannot be used now" in warning
    server.requests.clear()
    machine("third", timeout=0.5)
    assert compiled()[1]
    assert server.requests == []
    assert len(said()) == 1


@pytest.mark.parametrize("is_writable", [False, True])
def test_after_the_warm_up_nothing_is_asked(machine, server, published, monkeypatch, is_writable):
    machine("second", mode="readwrite" if is_writable else "read")
    monkeypatch.setattr(policy, "_frozen", ["warn"])
    assert compiled()[1]
    assert server.requests == []


def test_without_keys_a_remote_over_a_network_is_not_asked(machine, server, published, said, monkeypatch):
    monkeypatch.delenv("SGLJIT_TRUSTED_KEYS")
    machine("second")
    assert compiled()[1]
    assert server.requests == []
    assert any("is not used: whoever can write there could run code as you" in text for text in said())


def test_without_a_key_to_sign_with_nothing_is_published(machine, server, said, monkeypatch):
    monkeypatch.delenv("SGLJIT_SIGNING_KEY")
    machine("first", mode="readwrite")
    assert compiled()[1]
    assert server.objects == {}
    assert any("nothing is published" in text for text in said())


def test_a_single_file_is_an_object_of_this_python_and_c_library(machine, server):
    machine("first", mode="readwrite")
    one = backend.Backend("KEY")
    assert one.get(["launcher.so"]) == {}
    one.put("launcher.so", b"library")
    (name,) = server.objects
    assert f"/triton/cpython-{''.join(map(str, sys.version_info[:2]))}-" in name
    machine("second")
    assert backend.Backend("KEY").get(["launcher.so"]) == {"launcher.so": b"library"}
    assert backend.Backend("KEY").get(["other.so"]) == {}


def test_a_library_of_another_machine_is_refused(machine, server, monkeypatch, said):
    """Who writes to the store copies an object to where a machine with another C library looks."""
    machine("first", mode="readwrite")
    backend.Backend("KEY").put("launcher.so", b"library")
    (name,) = server.objects
    monkeypatch.setattr(backend.platform, "libc_ver", lambda: ("glibc", "2.17"))
    machine("second")
    assert backend.Backend("KEY").get(["launcher.so"]) == {}
    assert said() == []
    other = server.requests[-1].partition(" ")[2]
    assert other.startswith("/sgljit-1/triton/cpython-")
    assert other != name
    server.objects[other] = server.objects[name]
    assert backend.Backend("KEY").get(["launcher.so"]) == {}
    (warning,) = said()
    assert "it is that of another" in warning


def test_the_times_of_an_autotuned_kernel_are_those_of_a_chip(machine, server, monkeypatch, said):
    """Triton's key has the compute capability, which an H100 and an H200 share."""
    chips = {"first": "NVIDIA H100 80GB HBM3", "second": "NVIDIA H200", "third": "NVIDIA H100 80GB HBM3"}
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)

    def times(name: str) -> dict[str, bytes]:
        machine(name, mode="readwrite")
        monkeypatch.setattr("torch.cuda.get_device_name", lambda: chips[name])
        found = backend.Manager("KEY").get_file("scale.autotune.json")
        return found and Path(found).read_bytes()

    assert times("first") is None
    backend.Manager("KEY").put("times of an H100", "scale.autotune.json", binary=False)
    (name,) = server.objects
    assert "/triton/NVIDIA_H100_80GB_HBM3/KEY/" in name
    assert times("second") is None
    assert times("third") == b"times of an H100"
    server.objects[name.replace("H100_80GB_HBM3", "H200")] = server.objects[name]
    assert times("second") is None
    (warning,) = said()
    assert "it is that of another" in warning


def test_without_a_chip_no_times_are_shared(machine, server, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    machine("first", mode="readwrite")
    manager = backend.Manager("KEY")
    assert manager.get_file("scale.autotune.json") is None
    assert Path(manager.put("times", "scale.autotune.json")).read_text() == "times"
    assert server.requests == []


def in_a_process(directory: Path, name: str, number: int) -> str:
    """Compile the kernel with an empty directory of Triton's; "compiled" or "found"."""
    done = subprocess.run(
        [sys.executable, "-c", f"from {__name__} import compiled; print('compiled' if compiled()[1] else 'found')"],
        env={**os.environ, "TRITON_CACHE_DIR": str(directory / f"{name}{number}")},
        cwd=directory,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=100,
    )
    return done.stdout.strip()


@pytest.mark.slow
def test_of_several_machines_that_miss_a_kernel_one_compiles(machine, server, tmp_path):
    machine("unused", mode="readwrite")
    with ThreadPoolExecutor(3) as threads:
        did = [*threads.map(lambda number: in_a_process(tmp_path, "machine", number), range(3))]
    assert sorted(did) == ["compiled", "found", "found"]


def test_a_machine_waits_for_another_that_compiles_the_kernel(machine, server, said, monkeypatch):
    """The other one publishes while this one waits."""
    machine("first", mode="readwrite")
    assert compiled()[1]
    objects = dict(server.objects)
    (name,) = (name for name in objects if name.endswith(".bin"))
    server.objects.clear()
    server.objects[name.replace(".bin", ".lease")] = b"another machine"
    monkeypatch.setattr(lease.time, "sleep", lambda seconds: server.objects.update({name: objects[name]}))
    machine("second", mode="readwrite")
    assert not compiled()[1]
    assert server.objects[name.replace(".bin", ".lease")] == b"another machine"


def test_a_machine_that_died_holds_nobody_up_for_long(machine, server, monkeypatch):
    monkeypatch.setattr(lease, "SECONDS", 0.2)
    machine("first", mode="readwrite")
    assert compiled()[1]
    (name,) = (name for name in server.objects if name.endswith(".bin"))
    server.objects.clear()
    server.objects[name.replace(".bin", ".lease")] = b"a machine that died"
    with remote_of_this_process_forgotten():
        machine("second", mode="readwrite")
        assert compiled()[1]
    left = server.objects.keys() - {name}
    assert {one.partition(".lease")[0] for one in left} == {name.removesuffix(".bin")}  # the lease, and who took it


def test_a_moved_directory_serves_where_it_is(machine, published, server, tmp_path, monkeypatch):
    """Triton's lists hold absolute paths."""
    machine("first")
    (tmp_path / "first").rename(tmp_path / "moved")
    machine("moved")
    assert not compiled()[1]
    assert server.requests == []
    monkeypatch.delenv("TRITON_CACHE_MANAGER")
    kernel, was_compiled = compiled()
    assert not was_compiled
    assert kernel.asm["cubin"] == published


def test_no_private_name_of_triton_is_used():
    """Its classes are what Triton documents for caches of others: `knobs.cache.manager_class` and what that returns."""
    tree = ast.parse(Path(backend.__file__).read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level}
    assert "triton.runtime.cache" in imported
    private = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr.startswith("_")}
    own = {name for one in (backend.Backend("KEY"), backend.Manager("KEY")) for name in vars(one)}
    own |= {name for one in (backend.Backend, backend.Manager) for name in vars(one)}
    assert private <= own
    of_triton = {name for one in (CacheManager, RemoteCacheBackend, FileCacheManager) for name in dir(one)}
    overridden = {name for name in own & of_triton if name.startswith("_") and not name.startswith("__")}
    assert overridden <= {"_abc_impl"}  # Python's, of each abstract class


def test_what_is_packed_is_unpacked(key):
    content = backend.pack("KEY", "__grp__k.json", FILES, signing.private_key(key))
    trusted = signing.public_keys([key.parent / "trusted"])
    assert backend.unpack(content, "KEY", "__grp__k.json", trusted) == FILES
    assert backend.unpack(content, "KEY", "__grp__k.json", ()) == FILES


@pytest.mark.parametrize("name", ["../k", "/etc/k", "", ".", "..", "a\nb", "n" * 256])
def test_no_name_leads_out_of_tritons_directory(name):
    files = {"__grp__k.json": json.dumps({"child_paths": [name]}).encode(), name: b"code"}
    content = backend.pack("KEY", "__grp__k.json", files, None)
    with pytest.raises(RefusedObjectError, match="files of other names or sizes than Triton's"):
        backend.unpack(content, "KEY", "__grp__k.json", ())


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({**FILES, "more": b""}, "other files than its list names"),
        ({**FILES, "__grp__k.json": b'{"child_paths": ["k.json"]}'}, "other files than its list names"),
        ({"k.json": b"{}"}, "__grp__k.json"),
        ({**FILES, "__grp__k.json": b"[]"}, "its list of files is none"),
        ({**FILES, "__grp__k.json": b"\xff"}, "no object of Triton's, or is damaged"),
    ],
)
def test_an_object_with_a_wrong_list_is_refused(files, reason):
    content = backend.pack("KEY", "__grp__k.json", files, None)
    with pytest.raises(RefusedObjectError, match=reason):
        backend.unpack(content, "KEY", "__grp__k.json", ())


def test_more_than_it_says_is_not_unpacked():
    content = backend.pack("KEY", "k.so", {"k.so": bytes(1 << 24)}, None)
    with pytest.raises(RefusedObjectError, match="no object of Triton's, or is damaged: cannot convert float infinity"):
        backend.unpack(content.replace(b"16777216", b"Infinity"), "KEY", "k.so", ())
    with pytest.raises(RefusedObjectError, match="other sizes than it says"):
        backend.unpack(content.replace(b"16777216", b"16"), "KEY", "k.so", ())
    with pytest.raises(RefusedObjectError, match="names or sizes"):
        backend.unpack(content.replace(b"16777216", b"1677721600"), "KEY", "k.so", ())
    with pytest.raises(RefusedObjectError, match="damaged"):
        backend.unpack(content[:-9], "KEY", "k.so", ())
