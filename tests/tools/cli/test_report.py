"""``sgljit report``: one text for an issue, without names and secrets."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sgljit_core import __version__
from sgljit_tools.cli import report


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sgljit_core", "report", *arguments]
    return subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)


def test_a_report_has_what_an_issue_needs(tmp_path):
    log = tmp_path / "debug.log"
    log.write_text("compiling norm.norm\nAPI_KEY=abc123\n")
    cache = tmp_path / "cache"
    done = run(
        "--log", str(log), SGLJIT_REMOTE="https://me:hidden@example.com/a?sig=hidden", SGLJIT_CACHE_DIR=str(cache)
    )
    assert done.returncode == 0, done.stderr
    for part in (
        "## sgljit report",
        "system      Linux",
        f"sgljit-core {__version__}",
        "### debug.log",
        "compiling norm",
    ):
        assert part in done.stdout
    assert "remote      https://***@example.com/a?***" in done.stdout
    assert "API_KEY=***" in done.stdout
    assert "hidden" not in done.stdout
    assert "abc123" not in done.stdout
    assert done.stdout.count("```") % 2 == 0


def test_a_doctor_that_fails_is_in_the_report(tmp_path):
    done = run(SGLJIT_JIT="perhaps")
    assert done.returncode == 0, done.stderr
    assert "SGLJIT_JIT must be one of on, warn, error" in done.stdout


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/jane/x and jane@box", "~/x and USER@HOST"),
        ("janet, boxes, box-2 and jane.doe", "janet, boxes, box-2 and USER.doe"),
        ("HF_TOKEN=abc password: xyz", "HF_TOKEN=*** password: ***"),
        ("s3://key:secret@bucket/a?X-Sig=1#frag", "s3://***@bucket/a?***"),
    ],
)
def test_names_and_secrets_are_left_out(monkeypatch, text, shown):
    monkeypatch.setenv("HOME", "/home/jane")
    monkeypatch.setattr(report.platform, "node", lambda: "box")
    monkeypatch.setattr(report.getpass, "getuser", lambda: "jane")
    assert report.redacted(text) == shown
