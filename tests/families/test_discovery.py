"""Discovery and loading of plugins: installed for real as metadata on sys.path."""

from __future__ import annotations

import copy
import errno
import functools
import gc
import importlib
import importlib.metadata
import itertools
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping

import plugin_on_disk
import pytest

from sgljit_core import errors, ops
from sgljit_core.families.registry import Registry
from sgljit_core.plugins import discovery as plugins, hooks

_names = (f"made_up_{i}" for i in itertools.count())


@pytest.fixture
def site(tmp_path, monkeypatch):
    """An empty directory on sys.path; what a test installs there is forgotten after it."""
    monkeypatch.syspath_prepend(tmp_path)
    plugins.rescan()
    yield tmp_path
    plugins.rescan()


@pytest.fixture
def family():
    """A family name that no other test has loaded: what is loaded stays for the process."""
    return next(_names)


def test_an_installed_family_is_listed_without_importing_it(site, family):
    plugin_on_disk.install(site, f"stranger-{family}", family)
    assert family in ops
    assert family in list(ops)
    assert not [name for name in sys.modules if name.startswith(f"stranger_{family}")]


def test_a_family_is_found_with_a_hyphen_too(site, family):
    plugin_on_disk.install(site, f"stranger-{family}", family)
    assert family.replace("_", "-") in ops
    assert ops[family.replace("_", "-")] is ops[family]


def test_an_op_runs(site, family):
    import torch

    plugin_on_disk.install(site, f"stranger-{family}", family)
    assert ops[family].double(torch.ones(2)).tolist() == [2, 2]
    assert dir(ops[family]) == ["double"]


def test_a_family_installed_after_the_first_look_is_found(site, family):
    assert family not in ops
    plugin_on_disk.install(site, f"stranger-{family}", family)
    assert ops[family]


def test_a_sandbox_that_hides_the_root_directory_hides_no_family(site, family, monkeypatch):
    def closed(path, *args, **kwargs):
        if path == os.sep:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return real(path, *args, **kwargs)

    real = os.open
    monkeypatch.setattr(os, "open", closed)
    plugin_on_disk.install(site, f"stranger-{family}", family)
    plugins.rescan()
    assert family in ops


def test_an_unknown_family_names_the_nearest_and_the_installed_and_sends_nobody_to_an_index(site):
    with pytest.raises(errors.UnknownFamilyError) as caught:
        ops["nrom"]
    text = str(caught.value)
    assert "no installed plugin provides the kernel family 'nrom'; did you mean 'norm'?" in text
    assert "norm" in text.split("installed: ")[1]
    assert "pip install" not in text  # anyone can register the name
    assert 'nrom = "PACKAGE.plugin:FAMILY" below [project.entry-points."sgljit.kernels"]' in text
    assert isinstance(caught.value, KeyError)
    assert ops.get("nrom") is None


def test_who_provides_a_family_of_the_project_is_named(site, monkeypatch):
    monkeypatch.setenv("SGLJIT_PLUGINS", "")
    with pytest.raises(errors.UnknownFamilyError, match="It is in sgljit-wait-value: pip install it"):
        ops["wait-value"]


def test_it_is_a_mapping_of_what_is_installed(site, family):
    plugin_on_disk.install(site, f"stranger-{family}", family)
    assert set(ops.keys()) == set(ops) == {name for name, _ in ops.items()} == set(dict(ops))
    assert ops.get(family) is ops[family]
    assert list(ops.values())[list(ops).index(family)] is ops[family]
    assert len(ops) == len(list(ops))


def test_it_is_read_only_and_equals_a_dictionary_of_the_same():
    assert isinstance(ops, Mapping)
    assert not isinstance(ops, dict)
    with pytest.raises(TypeError, match="does not support item assignment"):
        ops["norm"] = None
    with pytest.raises(TypeError, match="does not support item deletion"):
        del ops["norm"]
    assert not hasattr(ops, "update")
    assert not hasattr(ops, "copy")
    assert ops == {name: ops[name] for name in ops}
    assert ops != {}


@pytest.mark.parametrize("name", ["__doc__", "__name__", "__class__", "_nearest"])
def test_what_a_module_has_of_its_own_is_no_family(name):
    with pytest.raises(errors.UnknownFamilyError, match=name):
        ops[name]


def test_an_ops_module_that_declares_nothing_is_named_with_the_remedy(site, family):
    directory = plugin_on_disk.install(site, f"stranger-{family}", family)
    (directory / "ops.py").write_text("def double(x): ...\n")
    with pytest.raises(errors.InvalidFamilyError, match=r"ops\.py declares no ops; write @FAMILY\.op"):
        ops[family].double  # noqa: B018


def test_an_ops_module_that_is_not_there_is_named_with_the_nearest(site, family):
    directory = plugin_on_disk.install(site, f"stranger-{family}", family)
    (directory / "ops.py").rename(directory / "opz.py")
    with pytest.raises(errors.InvalidFamilyError) as caught:
        ops[family].double  # noqa: B018
    module = f"stranger_{family}.op"
    assert str(caught.value) == (
        f"family {family} (stranger-{family} 1.2.3) names '{module}s', but there is no module '{module}s'; "
        f"did you mean '{module}z'?"
    )


def test_the_ops_may_be_in_another_module(site, family):
    directory = plugin_on_disk.install(site, f"stranger-{family}", family)
    (directory / "ops.py").rename(directory / "functions.py")
    plugin = directory / "plugin.py"
    plugin.write_text(plugin.read_text().replace("package=", f"ops='{directory.name}.functions', package="))
    assert dir(ops[family]) == ["double"]


def test_an_implementation_whose_imports_fail_says_so_itself(site, family):
    directory = plugin_on_disk.install(site, f"stranger-{family}", family)
    (directory / "ops.py").write_text("import not_there_at_all\n")
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
        ops[family].double  # noqa: B018


def test_an_ops_module_that_was_mended_is_imported_again(site, family):
    """The ops that it declared before it failed are declared anew."""
    directory = plugin_on_disk.install(site, f"stranger-{family}", family)
    whole = (directory / "ops.py").read_text()
    (directory / "ops.py").write_text(f"{whole}\n\nraise ValueError('half way')\n")
    for _ in range(2):
        with pytest.raises(ValueError, match="half way"):
            ops[family].double  # noqa: B018
    (directory / "ops.py").write_text(f"{whole}\n\n# mended, and longer than it was before\n")
    assert ops[family].double


@pytest.mark.parametrize("above", ["", "\n\n"])
def test_a_module_that_is_reloaded_replaces_its_ops_where_users_see_them(site, family, monkeypatch, above):
    import torch

    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a pyc of the same second would be taken for the source
    directory = plugin_on_disk.install(site, f"stranger-{family}", family)
    first = ops[family].double

    def called(x):
        return ops[family].double(x)

    compiled = torch.compile(called, fullgraph=True, backend="aot_eager")
    assert compiled(torch.ones(2)).tolist() == [2, 2]
    source = directory / "ops.py"
    source.write_text(above + source.read_text().replace("x * 2", "x * 5"))
    module = importlib.reload(sys.modules[f"{directory.name}.ops"])
    assert ops[family].double is module.double is not first
    assert ops[family].double(torch.ones(2)).tolist() == [5, 5]
    assert getattr(torch.ops, f"sgljit_{family}").double(torch.ones(2)).tolist() == [5, 5]
    assert compiled(torch.ones(2)).tolist() == [5, 5]


def test_an_unknown_op_names_the_nearest_and_what_there_is(site, family):
    plugin_on_disk.install(site, f"stranger-{family}", family)
    with pytest.raises(errors.UnknownOpError) as caught:
        _ = ops[family].duoble
    assert f"family '{family}' (stranger-{family} 1.2.3) has no op 'duoble'" in str(caught.value)
    assert "did you mean 'double'? Its ops: double" in str(caught.value)
    assert not hasattr(ops[family], "triple")


def test_two_distributions_with_one_family_are_both_named(site, family):
    plugin_on_disk.install(site, f"first-{family}", family)
    plugin_on_disk.install(site, f"second-{family}", family, version="4.5")
    with pytest.raises(errors.PluginConflictError) as caught:
        ops[family]
    text = str(caught.value)
    for part in (
        f"first-{family} 1.2.3",
        f"second-{family} 4.5",
        f"first_{family}.plugin",
        str(site),
        "SGLJIT_PLUGINS",
    ):
        assert part in text


def test_the_allow_list_settles_a_conflict_by_distribution(site, family, monkeypatch):
    plugin_on_disk.install(site, f"first-{family}", family)
    plugin_on_disk.install(site, f"second-{family}", family)
    monkeypatch.setenv("SGLJIT_PLUGINS", f"Second_{family}, sgljit-norm")
    assert f"second-{family} 1.2.3" in repr(ops[family])
    assert set(ops) <= {family, "norm"}


def test_an_empty_allow_list_allows_none(monkeypatch):
    """Asked of a registry of its own: what the process has loaded stays loaded."""
    monkeypatch.setenv("SGLJIT_PLUGINS", "some-other")
    with pytest.raises(errors.UnknownFamilyError, match="SGLJIT_PLUGINS allows only some-other"):
        Registry()["norm"]
    monkeypatch.setenv("SGLJIT_PLUGINS", "")
    none = Registry()
    assert list(none) == []
    with pytest.raises(errors.UnknownFamilyError, match="installed: none"):
        none["norm"]


@pytest.mark.parametrize(
    "failure", ["raise ValueError('no such luck')", "raise SystemExit(3)", "import not_there_at_all"]
)
def test_a_plugin_that_raises_reports_itself_with_its_traceback_and_the_rest_work(site, family, failure):
    plugin_on_disk.install(site, f"broken-{family}", family, plugin=f"def deep():\n    {failure}\ndeep()\n")
    good = next(_names)
    plugin_on_disk.install(site, f"good-{good}", good)
    texts = []
    for _ in range(2):  # the second look-up reports the same, and runs nothing again
        with pytest.raises(errors.PluginLoadError) as caught:
            ops[family]
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
    assert f"plugin broken-{family} 1.2.3 cannot be loaded: importing broken_{family}.plugin raised" in texts[0]
    assert "in deep" in texts[0]
    assert caught.value.__cause__ is not None
    assert ops[good]


_FAILS_ONCE = """
import errno, sys
from sgljit_core import KernelFamily, hookimpl

def fail_once():
    if not hasattr(sys, "{family}"):
        sys.{family} = True
        {failure}

if not {in_hook}:
    fail_once()

@hookimpl
def sgljit_register_kernels(register):
    fail_once()
    register(KernelFamily("{family}", "passing_{family}"))
"""


@pytest.mark.parametrize("in_hook", [False, True])
@pytest.mark.parametrize(
    "failure",
    [
        *(f"raise OSError(errno.{name}, 'for now')" for name in ("EMFILE", "ENFILE", "ENOMEM")),
        "raise ImportError('wrapped') from OSError(errno.EMFILE, 'for now')",
        "raise MemoryError",
        "raise RecursionError",
        "raise KeyboardInterrupt",
        "raise GeneratorExit",
    ],
)
def test_a_failure_that_may_pass_is_not_remembered(site, family, failure, in_hook):
    text = _FAILS_ONCE.format(family=family, failure=failure, in_hook=in_hook)
    plugin_on_disk.install(site, f"passing-{family}", family, plugin=text)
    with pytest.raises((errors.PluginLoadError, KeyboardInterrupt, GeneratorExit)):
        ops[family]
    assert ops[family]


@pytest.mark.parametrize("failure", ["raise OSError(errno.ENOENT, 'gone')", "raise SystemExit(1)", "raise ValueError"])
def test_another_failure_is_remembered(site, family, failure):
    text = _FAILS_ONCE.format(family=family, failure=failure, in_hook=False)
    plugin_on_disk.install(site, f"passing-{family}", family, plugin=text)
    for _ in range(2):
        with pytest.raises(errors.PluginLoadError):
            ops[family]


def test_a_hook_that_raises_is_reported_the_same_way(site, family):
    text = "from sgljit_core import hookimpl\n@hookimpl\n"
    text += "def sgljit_register_kernels(register):\n    register('not a family')\n"
    plugin_on_disk.install(site, f"broken-{family}", family, plugin=text)
    with pytest.raises(errors.PluginLoadError, match="register\\(\\) expects a KernelFamily, got str"):
        ops[family]


def test_a_hook_with_a_parameter_that_there_is_not_is_reported_with_the_hook(site, family):
    text = "from sgljit_core import hookimpl\n@hookimpl\ndef sgljit_register_kernels(registry): ...\n"
    plugin_on_disk.install(site, f"misspelt-{family}", family, plugin=text)
    with pytest.raises(errors.PluginLoadError, match=r"(?s)misspelt.*sgljit_register_kernels.*registry"):
        ops[family]


def test_a_plugin_that_registers_nothing_is_reported(site, family):
    plugin_on_disk.install(site, f"empty-{family}", family, plugin="")
    with pytest.raises(
        errors.PluginLoadError,
        match=f"entry point promises the family '{family}', which empty_{family}.plugin does not register: it must "
        r"name a KernelFamily of this name, such as PACKAGE\.plugin:FAMILY, or a module with `@hookimpl def",
    ):
        ops[family]


def test_an_entry_point_may_name_the_family_itself(site, family):
    plugin = f"from sgljit_core import KernelFamily\nFAMILY = KernelFamily(name='{family}', package='named_{family}')\n"
    plugin_on_disk.install(site, f"named-{family}", family, plugin=plugin, attribute=":FAMILY")
    assert dir(ops[family]) == ["double"]


def test_an_entry_point_that_names_nothing_of_the_module_says_so(site, family):
    plugin_on_disk.install(site, f"nameless-{family}", family, plugin="FAMILIES = 1\n", attribute=":FAMILY")
    with pytest.raises(errors.PluginLoadError, match=r"plugin:FAMILY raised AttributeError: .* no attribute 'FAMILY'"):
        ops[family]


def test_a_plugin_that_registers_anothers_family_is_reported_with_the_owner(site, family):
    owned = next(_names)
    plugin_on_disk.install(site, f"owner-{owned}", owned)
    thief = plugin_on_disk._PLUGIN.format(family=owned, package=f"thief_{family}")
    plugin_on_disk.install(site, f"thief-{family}", family, plugin=thief)
    with pytest.raises(errors.PluginConflictError) as caught:
        ops[family]
    assert f"thief-{family} 1.2.3" in str(caught.value)
    assert f"which belongs to owner-{owned} 1.2.3 (owner_{owned}.plugin" in str(caught.value)
    assert f"owner-{owned} 1.2.3" in repr(ops[owned])


def test_a_plugin_for_another_core_is_refused_before_it_is_imported(site, family):
    plugin_on_disk.install(site, f"future-{family}", family, requires="sgljit-core>=99", plugin="raise SystemError")
    with pytest.raises(errors.IncompatiblePluginError) as caught:
        ops[family]
    assert "it requires sgljit-core>=99, and sgljit-core" in str(caught.value)
    assert f"pip install --upgrade sgljit-core future-{family}" in str(caught.value)


@pytest.mark.parametrize(
    ("requirement", "version", "is_met"),
    [
        ("sgljit-core<0.3,>=0.2", "0.2.7", True),
        ("sgljit-core<0.3,>=0.2", "0.2.0rc1", False),
        ("sgljit-core<0.3,>=0.2", "0.3.0", False),
        ("sgljit-core<0.3,>=0.2", "1.2.0", False),
        ("sgljit-core<0.10,>=0.9", "0.9.0", True),
        ("sgljit-core<0.30,>=0.2", "0.2.7", True),
    ],
)
def test_a_requirement_of_a_range_holds_for_its_versions(site, family, monkeypatch, requirement, version, is_met):
    monkeypatch.setattr(plugins, "__version__", version)
    plugin_on_disk.install(site, f"range-{family}", family, requires=requirement)
    if is_met:
        assert ops[family]
        return
    with pytest.raises(errors.IncompatiblePluginError, match="it requires sgljit-core<0"):
        ops[family]


def test_the_usual_requirement_is_understood_without_a_parser(tmp_path):
    plugin_on_disk.install(tmp_path, "usual", "usual", requires="sgljit-core<0.2,>=0.1")
    code = "import sys; from sgljit_core import ops; ops['usual']; print('packaging.requirements' in sys.modules)"
    assert _python(tmp_path, code, SGLJIT_CACHE_DIR=str(tmp_path / "empty")).stdout == "False\n"


def test_the_installed_distributions_are_looked_through_once_for_all_groups(monkeypatch):
    plugins.rescan()
    looked = []
    distributions = plugins.importlib_metadata.distributions
    monkeypatch.setattr(
        plugins.importlib_metadata, "distributions", lambda **path: looked.append(1) or distributions(**path)
    )
    found = {group: plugins.entry_points(group, None) for group in (plugins.KERNELS, plugins.EXTENSIONS, "sgljit.none")}
    assert looked == [1]
    expected = importlib.metadata.entry_points(group=plugins.KERNELS)
    assert {one.name for one in found[plugins.KERNELS]} == {one.name for one in expected}
    assert [one.module for one in found[plugins.EXTENSIONS]] == ["sgljit_remote.plugin"]
    assert found["sgljit.none"] == []


def test_no_garbage_is_collected_while_plugins_are_looked_for(monkeypatch):
    was_enabled = []
    monkeypatch.setattr(plugins, "entry_points", lambda *_: was_enabled.append(gc.isenabled()) or [])
    assert hooks.prebuilt_roots() == []
    assert was_enabled == [False]
    assert gc.isenabled()


def test_a_requirement_of_an_extra_does_not_count(site, family):
    plugin_on_disk.install(site, f"extra-{family}", family, requires='sgljit-core>=99; extra == "next"')
    assert ops[family]


def test_two_families_of_one_module(site):
    first, second = next(_names), next(_names)
    text = "from sgljit_core import KernelFamily, hookimpl\n"
    text += "@hookimpl\ndef sgljit_register_kernels(register):\n"
    for name in (first, second):
        text += f"    register(KernelFamily({name!r}, 'both_{first}'))\n"
    plugin_on_disk.install(site, f"both-{first}", first, plugin=text)
    points = site / f"both_{first}-1.2.3.dist-info" / "entry_points.txt"
    points.write_text(points.read_text() + f"{second} = both_{first}.plugin\n")
    assert ops[first]
    assert ops[second]


def _python(site, code, **environment):
    """In a process of its own: extensions are loaded once."""
    path = os.pathsep.join([str(site), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, **environment}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)


def _list(site, **environment):
    return _python(site, "from sgljit_tools.cli.list import list_families; list_families()", **environment)


_HEADERS = """
from pathlib import Path
from sgljit_core import hookimpl

@hookimpl
def sgljit_header_dependencies():
    return {'cutlass': lambda: [Path('/include/cutlass')]}

@hookimpl
def sgljit_prebuilt_dirs():
    return ['/prebuilt']
"""
_ASK = """
import logging; logging.basicConfig()
from sgljit_core.plugins import hooks
for _ in range(2):
    print(hooks.header_directories('cutlass'), hooks.prebuilt_roots())
"""


def test_named_headers_come_from_an_extension_and_a_broken_one_is_left_out(tmp_path):
    plugin_on_disk.install(tmp_path, "headers", "headers", plugin=_HEADERS, group="sgljit.extensions")
    plugin_on_disk.install(
        tmp_path, "broken", "broken", plugin="raise ValueError('no luck')", group="sgljit.extensions"
    )
    result = _python(tmp_path, f"{_ASK}\nhooks.header_directories('cutlas')")
    assert "[PosixPath('/include/cutlass')]" in result.stdout
    assert "plugin broken 1.2.3 cannot be loaded" in result.stderr
    assert "no installed plugin provides the headers 'cutlas' (provided: cutlass)" in result.stderr


@pytest.mark.parametrize(
    ("hook", "text"),
    [
        ("sgljit_prebuilt_dirs(): 1 / 0", "its sgljit_prebuilt_dirs raised ZeroDivisionError"),
        ("sgljit_prebuilt_dirs(): return 3", "its sgljit_prebuilt_dirs raised TypeError"),
        ("sgljit_prebuilt_dirs(more): ...", "cannot be used: Plugin 'broken.plugin' for hook"),
        ("sgljit_header_dependencies(): 1 / 0", "its sgljit_header_dependencies raised ZeroDivisionError"),
    ],
)
def test_a_broken_hook_is_reported_once_with_its_distribution_and_listed(tmp_path, hook, text):
    plugin_on_disk.install(tmp_path, "headers", "headers", plugin=_HEADERS, group="sgljit.extensions")
    broken = f"from sgljit_core import hookimpl\n@hookimpl\ndef {hook}\n"
    plugin_on_disk.install(tmp_path, "broken", "broken", plugin=broken, group="sgljit.extensions")
    result = _python(tmp_path, _ASK)
    assert result.stdout.count("[PosixPath('/include/cutlass')] [PosixPath('/prebuilt')]") == 2, result.stderr
    said = f"broken 1.2.3 (broken.plugin in {tmp_path})"
    assert result.stderr.count(said) == 1
    assert text in result.stderr
    listed = next(line for line in _list(tmp_path).stdout.splitlines() if line.startswith("problem: "))
    assert said in listed
    assert text in listed


@pytest.mark.parametrize("kind", ["wrapper", "hookwrapper"])
def test_a_hook_wrapper_is_not_called_and_listed(tmp_path, kind):
    plugin_on_disk.install(tmp_path, "headers", "headers", plugin=_HEADERS, group="sgljit.extensions")
    wraps = f"from sgljit_core import hookimpl\n@hookimpl({kind}=True)\n"
    wraps += "def sgljit_prebuilt_dirs():\n    print('called')\n    return (yield)\n"
    wraps += "@hookimpl\ndef sgljit_header_dependencies(): return {'own': lambda: ['/own']}\n"
    plugin_on_disk.install(tmp_path, "wraps", "wraps", plugin=wraps, group="sgljit.extensions")
    result = _python(tmp_path, f"{_ASK}\nprint(hooks.header_directories('own'))")
    assert "[PosixPath('/prebuilt')]" in result.stdout
    assert "[PosixPath('/own')]" in result.stdout
    assert "called" not in result.stdout
    text = f"wraps 1.2.3 (wraps.plugin in {tmp_path}): its sgljit_prebuilt_dirs is a hook wrapper"
    assert result.stderr.count(text) == 1
    assert any(line.startswith(f"problem: {text}") for line in _list(tmp_path).stdout.splitlines())


def test_a_family_whose_hook_is_a_wrapper_says_so(site, family):
    text = "from sgljit_core import hookimpl\n@hookimpl(wrapper=True)\n"
    text += "def sgljit_register_kernels(register):\n    yield\n"
    plugin_on_disk.install(site, f"wraps-{family}", family, plugin=text)
    with pytest.raises(errors.PluginLoadError, match=r"(?s)sgljit_register_kernels.*wrapper"):
        ops[family]


@pytest.mark.parametrize(
    ("file", "content"),
    [("entry_points.txt", b"[sgljit.kernels]\nfoo\n"), ("entry_points.txt", b"\xff"), ("METADATA", b"\xff")],
)
def test_unreadable_metadata_is_named_and_the_rest_work(site, family, caplog, file, content):
    plugin_on_disk.install(site, f"broken-{family}", next(_names))
    plugin_on_disk.install(site, f"good-{family}", family)
    info = site / f"broken_{family}-1.2.3.dist-info"
    (info / file).write_bytes(content)
    for _ in range(2):
        assert {family, "norm"} <= set(ops)
        [plugin.distribution for claims in plugins.installed().values() for plugin in claims]
    assert ops[family]
    (said,) = (record.getMessage() for record in caplog.records if str(info) in record.getMessage())
    assert "cannot be read" in said
    assert f"problem: {said}" in _list(site).stdout


def test_an_unreadable_requirement_is_named(site, family):
    plugin_on_disk.install(site, f"broken-{family}", family, requires="sgljit-core >>> 1")
    with pytest.raises(errors.PluginLoadError, match=f"broken-{family} 1.2.3.*'sgljit-core >>> 1'"):
        ops[family]


def test_an_entry_that_names_anothers_module_does_not_break_the_owner(tmp_path):
    for group, name in (("sgljit.kernels", "evil"), ("sgljit.extensions", "worse")):
        plugin_on_disk.install(tmp_path, name, name, group=group)
        (tmp_path / f"{name}-1.2.3.dist-info" / "entry_points.txt").write_text(
            f"[{group}]\n{name} = sgljit_norm.plugin:FAMILY\n"
        )
    code = (
        "from sgljit_core import ops\nfrom sgljit_core.plugins import hooks\nhooks.load_plugins()\n"
        "for name in ('evil', 'norm', 'evil', 'norm'):\n"
        " try: print(repr(ops[name]))\n except Exception as error: print(type(error).__name__)"
    )
    first, second, third, fourth = _python(tmp_path, code).stdout.splitlines()
    assert first == third == "PluginConflictError"
    assert second == fourth
    assert "<ops of 'norm' from sgljit-norm" in second
    line = next(line for line in _list(tmp_path).stdout.splitlines() if line.startswith("problem: "))
    assert line.startswith("problem: sgljit_norm.plugin:FAMILY is the entry point of ")
    assert f"evil 1.2.3 ({tmp_path})" in line


@pytest.mark.parametrize("first", ["ops['wanted']", "hooks.load_plugins()"])
def test_an_extension_that_asks_for_a_family_while_it_is_imported_keeps_its_hooks(tmp_path, first):
    plugin_on_disk.install(tmp_path, "wanted", "wanted")
    text = (
        "from pathlib import Path\nfrom sgljit_core import hookimpl, ops\nops['wanted']\n"
        "@hookimpl\ndef sgljit_header_dependencies():\n return {'late': lambda: [Path('/late')]}\n"
    )
    plugin_on_disk.install(tmp_path, "asking", "asking", group="sgljit.extensions", plugin=text)
    code = (
        f"from sgljit_core import ops\nfrom sgljit_core.plugins import hooks\n{first}\n"
        "print(ops['wanted'], hooks.header_directories('late'))"
    )
    done = _python(tmp_path, code, SGLJIT_REMOTE="memory://none", SGLJIT_PLUGINS="asking,wanted")
    assert done.stdout == "<ops of 'wanted' from wanted 1.2.3> [PosixPath('/late')]\n", done.stderr
    assert done.stderr == ""


def test_a_distribution_that_is_installed_twice_is_listed_as_a_problem(tmp_path):
    places = tmp_path / "first", tmp_path / "second"
    for place, version in zip(places, ("1.0", "2.0"), strict=True):
        plugin_on_disk.install(place, "same-name", "same", plugin="raise SystemExit(3)", version=version)
    first, second = places[0] / "same_name-1.0.dist-info", places[1] / "same_name-2.0.dist-info"
    expected = f"problem: same-name is installed more than once: {first} is used, and {second} is not"
    for allowed in ({}, {"SGLJIT_PLUGINS": "Same_Name"}):
        assert expected in _list(os.pathsep.join(map(str, places)), **allowed).stdout.splitlines()
    assert "same-name is installed" not in _list(f"{places[0]}{os.pathsep}{places[0]}/.").stdout


def test_a_distribution_whose_directory_has_another_name_is_listed(tmp_path):
    plugin_on_disk.install(tmp_path, "odd-name", "odd", plugin="raise SystemExit(3)")
    (tmp_path / "odd_name-1.2.3.dist-info").rename(tmp_path / "another-1.2.3.dist-info")
    listed = _list(tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert "odd-name" in listed.stdout


def test_every_installed_entry_point_loads():
    for name in ops:
        if not name.startswith("made_up"):
            assert dir(ops[name])


def test_every_declared_op_of_every_installed_family_can_be_had():
    for family in ("activation", "norm", "quant", "rope", "kvcache", "moe", "sampling", "hicache", "wait_value"):
        for name in dir(ops[family]):
            assert callable(getattr(ops[family], name))


def test_the_ops_of_a_family_can_be_copied():
    assert copy.deepcopy(ops["norm"]).rmsnorm is ops["norm"].rmsnorm


@pytest.mark.parametrize("again", [lambda value: pickle.loads(pickle.dumps(value)), copy.copy, copy.deepcopy])
def test_what_holds_the_families_can_be_copied_and_pickled(again):
    assert again(ops) is ops
    assert again(ops["norm"]).rmsnorm is ops["norm"].rmsnorm
    assert again(functools.partial(print, ops)).args == (ops,)


def test_a_name_that_copy_asks_for_is_looked_up_in_no_metadata(monkeypatch):
    monkeypatch.setattr(plugins, "rescan", lambda: pytest.fail("the installed packages were read again"))
    assert not hasattr(ops._loaded, "__deepcopy__")


def test_a_wrong_way_to_name_a_family_says_the_right_one():
    with pytest.raises(TypeError, match=r'a family is named by a string, such as ops\["norm"\], and not by 0'):
        ops[0]
    with pytest.raises(AttributeError, match=r"'norm' is no attribute of ops: a family is an item, ops\[\"norm\"\]"):
        ops.norm  # noqa: B018
