"""A lock, and everything that differs from it: real files of a distribution, in processes of their own."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.util
import io
import json
import os
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest

from sgljit_core.errors import PluginLoadError
from sgljit_core.plugins.discovery import Plugin
from sgljit_remote import lock, stats
from sgljit_remote.errors import LockError, PluginDiffersError

PLUGIN = """\
from sgljit_core import KernelFamily, hookimpl

print("imported")
FAMILY = KernelFamily(name="locked_one", package="stranger")


@hookimpl
def sgljit_register_kernels(register):
    register(FAMILY)
"""
ASK = """
import sys
from sgljit_core import errors, ops
try:
    ops["locked_one"]
    print("loaded")
except errors.PluginLoadError as error:
    print(type(error).__name__, error)
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A directory like ``site-packages``, with one plugin of two modules and a kernel."""
    site = tmp_path / "site"
    site.mkdir(mode=0o755)
    monkeypatch.syspath_prepend(site)
    install(site)
    return site


def install(site: Path, version: str = "1.2.3", module: str = "stranger.plugin") -> None:
    texts = {
        "stranger/__init__.py": "",
        "stranger/plugin.py": PLUGIN,
        "stranger/ops.py": "",
        "stranger/csrc/one.cu": "__global__ void one() {}\n",
        f"stranger-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: Stranger\nVersion: {version}\n",
        f"stranger-{version}.dist-info/entry_points.txt": f"[sgljit.kernels]\nlocked_one = {module}\n",
    }
    recorded = io.StringIO()
    rows = csv.writer(recorded, lineterminator="\n")
    for name, text in texts.items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        rows.writerow([name, f"sha256={_digest(text.encode())}", len(text)])
    rows.writerow([f"stranger-{version}.dist-info/RECORD", "", ""])
    rows.writerow(["../../bin/stranger", "sha256=AAAA", 1])
    rows.writerow(["stranger/__pycache__/ops.cpython-39.pyc", "", ""])
    (site / f"stranger-{version}.dist-info" / "RECORD").write_text(recorded.getvalue())


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def found(site: Path) -> Plugin:
    """The plugin as a fresh look at its metadata finds it."""
    from importlib.metadata import distributions

    (dist,) = distributions(path=[str(site)])
    (point,) = dist.entry_points
    return Plugin(point.name, point.value, dist)


@pytest.fixture
def file(site, tmp_path):
    """A lock of the plugin as it is."""
    file = tmp_path / "plugins.lock"
    lock.write(file, {"stranger": lock.locked(found(site))})
    return file


def refusal(site, file):
    before = stats().refusals
    with pytest.raises(PluginDiffersError) as raised:
        lock.check(found(site), file)
    assert stats().refusals == before + 1
    assert str(site) in str(raised.value)
    return str(raised.value)


def asked(site: Path, **environment: str) -> str:
    """What a process prints that asks for the family."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("SGLJIT_", "PYTHON"))}
    variables |= {"PYTHONPATH": str(site), "SGLJIT_CACHE_DIR": str(site.parent / "cache"), **environment}
    command = [sys.executable, "-c", ASK]
    done = subprocess.run(command, env=variables, cwd=site.parent, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_lock_has_the_files_that_are_imported_and_no_others(site, file):
    (entry,) = lock.read(file).values()
    assert entry.version == "1.2.3"
    assert sorted(entry.files) == [
        "stranger-1.2.3.dist-info/METADATA",
        "stranger-1.2.3.dist-info/entry_points.txt",
        "stranger/__init__.py",
        "stranger/csrc/one.cu",
        "stranger/ops.py",
        "stranger/plugin.py",
    ]
    assert entry.files["stranger/plugin.py"] == hashlib.sha256(PLUGIN.encode()).hexdigest()


def test_what_is_locked_is_imported(site, file):
    assert asked(site, SGLJIT_LOCK=str(file)) == "imported\nloaded\n"
    assert (site / "stranger" / "__pycache__").is_dir()  # the second process has bytecode
    assert asked(site, SGLJIT_LOCK=str(file)) == "imported\nloaded\n"


def test_what_differs_is_refused_before_it_is_imported(site, file):
    (site / "stranger" / "plugin.py").write_text("print('imported')\n")
    said = asked(site, SGLJIT_LOCK=str(file))
    assert said.startswith("PluginDiffersError plugin Stranger 1.2.3 cannot be loaded: it differs from the lock ")
    assert "imported" not in said
    assert "imported" in asked(site)


def test_a_changed_file_is_named_with_both_digests(site, file):
    kernel = site / "stranger" / "csrc" / "one.cu"
    kernel.write_text("__global__ void two() {}\n")
    digest = hashlib.sha256(kernel.read_bytes()).hexdigest()
    assert f"stranger/csrc/one.cu has the sha256 {digest}, expected " in refusal(site, file)


def test_a_missing_file_is_named(site, file):
    (site / "stranger" / "ops.py").unlink()
    assert "stranger/ops.py is missing" in refusal(site, file)


@pytest.mark.parametrize("name", ["new.py", "plugin.so", "csrc/new.cuh", "ops.pyc", "sub/deep.py"])
def test_an_added_file_is_named(site, file, name):
    path = site / "stranger" / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
    assert f"stranger/{name} is there, and was not" in refusal(site, file)


def test_an_added_link_to_a_directory_is_named(site, file, tmp_path):
    (site / "stranger" / "sub").symlink_to(tmp_path)
    assert "stranger/sub is there, and was not" in refusal(site, file)


def test_another_version_is_named(site, file):
    info = site / "stranger-1.2.3.dist-info"
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: Stranger\nVersion: 1.2.4\n")
    info.rename(site / "stranger-1.2.4.dist-info")
    assert "its version is 1.2.4, expected 1.2.3" in refusal(site, file)


def test_a_version_that_only_claims_to_be_the_same_is_refused(site, file):
    (site / "stranger-1.2.3.dist-info" / "METADATA").write_text("Name: Stranger\nVersion: 1.2.3\n# changed\n")
    assert "METADATA has the sha256" in refusal(site, file)


def test_a_plugin_that_was_not_locked_is_refused(site, file):
    lock.write(file, {})
    text = refusal(site, file)
    assert text.startswith(f"plugin Stranger 1.2.3 cannot be loaded: the lock {file} has no Stranger")
    assert text.endswith(f"or write the lock anew: env -u SGLJIT_LOCK sgljit lock {file}")


def test_another_entry_point_is_refused(site, file):
    points = site / "stranger-1.2.3.dist-info" / "entry_points.txt"
    points.write_text("[sgljit.kernels]\nlocked_one = elsewhere.plugin\n")
    assert "entry_points.txt has the sha256" in refusal(site, file)


def test_an_entry_point_that_names_a_module_of_somebody_else_is_not_locked(tmp_path, monkeypatch):
    install(tmp_path, module="json.tool")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(LockError, match=r"its entry point names json\.tool, which is none of its modules"):
        lock.locked(found(tmp_path))


def test_a_module_before_it_on_the_path_is_refused(site, file, tmp_path, monkeypatch):
    other = tmp_path / "other"
    (other / "stranger").mkdir(parents=True)
    (other / "stranger" / "__init__.py").touch()
    monkeypatch.syspath_prepend(other)
    assert f"the module stranger is imported from {other}/stranger/__init__.py" in refusal(site, file)


def test_a_package_in_place_of_its_init_is_refused(site, file):
    """Python prefers an extension module to a source."""
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    (site / "stranger" / f"__init__{suffix}").touch()
    assert f"stranger/__init__{suffix} is there, and was not" in refusal(site, file)


def test_bytecode_of_another_source_is_refused(site, file, tmp_path):
    """Python believes it, as it has the time and the size of the source."""
    source, evil = site / "stranger" / "ops.py", tmp_path / "evil.py"
    source.write_text("x = 1 \n")
    evil.write_text("x = 22\n")
    entry = lock.read(file)["stranger"]
    changed = {**entry.files, "stranger/ops.py": hashlib.sha256(source.read_bytes()).hexdigest()}
    lock.write(file, {"stranger": lock.Locked(entry.version, changed)})
    lock.check(found(site), file)
    os.utime(evil, ns=(source.stat().st_atime_ns, source.stat().st_mtime_ns))
    bytecode = importlib.util.cache_from_source(str(source))
    py_compile.compile(str(evil), cfile=bytecode, doraise=True)
    assert f"{Path(bytecode).name} beside stranger/ops.py is compiled from another source" in refusal(site, file)
    py_compile.compile(str(source), cfile=bytecode, doraise=True)
    lock.check(found(site), file)
    content = Path(bytecode).read_bytes()
    for damaged in (content[:20], content[:16], content[:-1]):
        Path(bytecode).write_bytes(damaged)
        assert "compiled from another source" in refusal(site, file)
    Path(bytecode).write_bytes(b"\0\0\r\n" + content[4:])  # another release's: Python compiles anew
    lock.check(found(site), file)


def editable(site):
    (site / "stranger-1.2.3.dist-info" / "direct_url.json").write_text(
        json.dumps({"url": "file:///src", "dir_info": {"editable": True}})
    )


def test_an_editable_install_is_neither_locked_nor_taken(site, file):
    editable(site)
    assert "it is installed editable, so that its files may change at any time" in refusal(site, file)
    with pytest.raises(LockError, match=r"cannot be locked: it is installed editable.*Install it anew, from a wheel"):
        lock.locked(found(site))


def test_where_it_came_from_does_not_count(site, file):
    (site / "stranger-1.2.3.dist-info" / "direct_url.json").write_text('{"url": "file:///a.whl", "archive_info": {}}')
    (site / "stranger-1.2.3.dist-info" / "INSTALLER").write_text("another")
    lock.check(found(site), file)


def test_two_installs_of_one_name_are_refused(site, file):
    (site / "stranger-1.2.2.dist-info").mkdir()
    with pytest.raises(PluginDiffersError, match="expected one directory of its metadata"):
        lock.check(plugin_of(site), file)


def plugin_of(site: Path) -> Plugin:
    from importlib.metadata import PathDistribution

    return Plugin("locked_one", "stranger.plugin", PathDistribution(site / "stranger-1.2.3.dist-info"))


@pytest.mark.parametrize("record", ["stranger/plugin.py,sha256=AAAA,1\n", "stranger/plugin.py,,\n", None])
def test_a_plugin_that_is_not_what_its_wheel_was_is_not_locked(site, record):
    path = site / "stranger-1.2.3.dist-info" / "RECORD"
    path.unlink() if record is None else path.write_text(record)
    with pytest.raises(LockError, match=r"cannot be locked: .*RECORD|cannot be locked: the lock has no"):
        lock.locked(found(site))


def test_a_file_that_was_changed_after_the_install_is_not_locked(site):
    (site / "stranger" / "plugin.py").write_text("")
    with pytest.raises(LockError, match=r"stranger/plugin\.py has the sha256 .*Install it anew"):
        lock.locked(found(site))


@pytest.mark.usefixtures("waived")
@pytest.mark.parametrize("mode", [0o666, 0o606])
def test_a_lock_that_others_can_write_is_refused(site, file, mode):
    file.chmod(mode)
    assert "can be written by group or others" in refusal(site, file)


@pytest.mark.usefixtures("waived")
def test_a_lock_in_a_directory_that_others_can_write_is_refused(site, file):
    file.parent.chmod(0o777)
    try:
        assert "can be written by group or others" in refusal(site, file)
    finally:
        file.parent.chmod(0o700)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": 2, "distributions": {}}', '{"format": 1, "distributions": []}']
)
def test_a_file_that_is_no_lock_refuses_every_plugin(site, file, text):
    file.write_text(text)
    assert f"the lock {file} is none (" in refusal(site, file)


def test_a_lock_that_is_not_there_refuses_every_plugin(site, tmp_path):
    said = asked(site, SGLJIT_LOCK=str(tmp_path / "nowhere"))
    assert said.startswith("PluginDiffersError")
    assert "No such file" in said


def test_without_this_package_every_plugin_is_refused(site, file):
    (site / "sgljit_remote").mkdir()  # found before the real one
    (site / "sgljit_remote" / "__init__.py").touch()
    said = asked(site, SGLJIT_LOCK=str(file))
    assert said.startswith("PluginLoadError")
    assert "SGLJIT_LOCK needs sgljit-remote: No module named 'sgljit_remote.lock'" in said


def test_a_relative_lock_is_a_mistake(site):
    done = subprocess.run(
        [sys.executable, "-c", "from sgljit_core import ops; ops['norm']"],
        env={**os.environ, "SGLJIT_LOCK": "plugins.lock"},
        capture_output=True,
        text=True,
    )
    assert "SGLJIT_LOCK must be an absolute path, got 'plugins.lock'" in done.stderr


def test_a_refused_plugin_is_an_error_of_loading(site, file):
    assert issubclass(PluginDiffersError, PluginLoadError)
