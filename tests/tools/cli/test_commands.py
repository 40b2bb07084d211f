"""Commands that other distributions add to ``sgljit``."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import zipfile

import plugin_on_disk
import pytest

COMMAND = """\
def {name}(word: str) -> None:
    '''Say a word.'''
    print("said", word)
"""


def _sgljit(site, *arguments, status=0, **environment):
    paths = os.pathsep.join([str(site), *filter(None, sys.path)])
    variables = {**os.environ, "PYTHONPATH": paths, "SGLJIT_CACHE_DIR": str(site / "cache"), **environment}
    command = [sys.executable, "-m", "sgljit_core", *arguments]
    done = subprocess.run(command, env=variables, cwd=site, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


def _install(site, name, text):
    word = name.rpartition(".")[2]
    distribution = f"stranger-{word}"
    attribute = f":{word}"
    group = "sgljit.commands"
    plugin_on_disk.install(site, distribution, name, plugin=text.format(name=word), group=group, attribute=attribute)


@pytest.mark.slow
def test_a_distribution_adds_commands_also_to_the_group_of_the_cache(tmp_path):
    _install(tmp_path, "utter", COMMAND)
    _install(tmp_path, "cache.shout", COMMAND)
    assert _sgljit(tmp_path, "utter", "one") == "said one\n"
    assert _sgljit(tmp_path, "cache", "shout", "two") == "said two\n"
    assert "Say a word." in _sgljit(tmp_path, "cache", "--help")
    assert "No such command" in _sgljit(tmp_path, "utter", "one", status=2, SGLJIT_PLUGINS="stranger-shout")


def test_a_command_that_fails_leaves_the_others_at_work(tmp_path):
    _install(tmp_path, "broken", "raise ValueError('no')")
    said = _sgljit(tmp_path, "cache", "path")
    assert f"{tmp_path}/cache\n" in said
    assert "the command broken of stranger-broken 1.2.3 cannot be used: " in said
    assert "ValueError: no" in said


PUBLISH = """\
def {name}(name: str, artifact: list[str], dry_run: bool) -> None:
    print(dry_run, name, *sorted(path.parts[-5:] for path in artifact))
"""


@pytest.mark.slow
def test_prepare_hands_what_a_model_asked_for_to_the_command_that_pushes(tmp_path, private_cache):
    config = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 2, "dtype": "float32"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    arguments = ("prepare", "--model", str(tmp_path), "--push", "llama")
    said = _sgljit(tmp_path, *arguments, status=1, SGLJIT_PLUGINS="sgljit-norm")
    assert said == "error: --push needs the command cache.push of sgljit-remote: pip install sgljit-remote\n"
    _install(tmp_path, "cache.push", PUBLISH)
    # The cache of the run: other tests compile the same.
    found = {"SGLJIT_PLUGINS": "sgljit-norm,stranger-push", "SGLJIT_CACHE_DIR": str(private_cache)}
    said = _sgljit(tmp_path, *arguments, **found)
    assert "\npublishing 3 of them, those of the cache /" in said
    published = said.splitlines()[-1]
    assert published.startswith("False llama ")
    assert f"('cpu-{platform.machine()}', 'norm', 'norm', " in published
    # The same, before anything is compiled.
    found["SGLJIT_CACHE_DIR"] = str(tmp_path / "empty")
    said = _sgljit(tmp_path, *arguments, "--dry-run", **found)
    assert said.count(": a miss, ") == 3
    assert "\nwould publish 3 of them, those of the cache /" in said
    assert said.splitlines()[-1] == published.replace("False", "True")
    assert not [*(tmp_path / "empty").glob("[!.]*/*/*/*/*")]


def test_a_push_that_could_not_be_made_fails_before_anything_is_compiled(tmp_path):
    (tmp_path / "config.json").write_text("no model")
    plugins = "sgljit-norm,sgljit-remote"
    arguments = ("prepare", "--model", str(tmp_path), "--push")
    said = _sgljit(tmp_path, *arguments, "llama", status=1, SGLJIT_PLUGINS=plugins)
    assert said == "error: no remote is named: set SGLJIT_REMOTE to a URL\n"
    remote = {"SGLJIT_PLUGINS": plugins, "SGLJIT_REMOTE": str(tmp_path)}
    said = _sgljit(tmp_path, *arguments, "a/b", status=1, **remote)
    assert said == "error: --name takes letters, digits, '-' and '_'; got 'a/b'\n"
    said = _sgljit(tmp_path, *arguments, "llama", status=1, SGLJIT_SIGNING_KEY=str(tmp_path / "key"), **remote)
    assert f"{tmp_path}/key cannot be read (No such file or directory)" in said
    assert "config.json" in _sgljit(tmp_path, *arguments, "llama", status=1, **remote)


@pytest.mark.slow
def test_a_dry_run_of_prepare_sends_nothing_to_a_remote(tmp_path):
    """Not even the host parts that it compiles for its question, where the mode publishes what is compiled."""
    config = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 2, "dtype": "float32"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "store").mkdir()
    remote = {"SGLJIT_REMOTE": str(tmp_path / "store"), "SGLJIT_REMOTE_MODE": "readwrite"}
    arguments = ("prepare", "--model", str(tmp_path), "--push", "llama", "--dry-run")
    said = _sgljit(tmp_path, *arguments, SGLJIT_PLUGINS="sgljit-norm,sgljit-remote", **remote)
    assert said.count(" would push, once it is compiled: ") == 3
    assert said.splitlines()[-1] == f"3 artifacts would be in {tmp_path / 'store'}"
    assert [*(tmp_path / "store").iterdir()] == []
    assert "SGLJIT_PREBUILT_PATH" not in said


def test_a_wheel_that_is_to_be_signed_fails_before_anything_is_compiled(tmp_path):
    with zipfile.ZipFile(tmp_path / "acme-1.0-py3-none-any.whl", "w"):
        pass
    said = _sgljit(
        tmp_path, "wheel", "acme-1.0-py3-none-any.whl", "--sign", "key", status=1, SGLJIT_PLUGINS="sgljit-norm"
    )
    assert said == "error: --sign needs the command sign of sgljit-remote: pip install sgljit-remote\n"


def test_a_command_of_sgljit_itself_asks_no_other_distribution(tmp_path):
    _install(tmp_path, "broken", "raise ValueError('no')")
    assert "cannot be used" not in _sgljit(tmp_path, "list", "--help")
