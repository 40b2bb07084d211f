"""Commands that other distributions add to ``sgljit``."""

from __future__ import annotations

import os
import subprocess
import sys

import plugin_on_disk

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


def test_a_command_of_sgljit_itself_asks_no_other_distribution(tmp_path):
    _install(tmp_path, "broken", "raise ValueError('no')")
    assert "cannot be used" not in _sgljit(tmp_path, "list", "--help")
