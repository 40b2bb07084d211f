"""``sgljit report``: one text for an issue, without names and secrets."""

from __future__ import annotations

import os
import subprocess
import sys
import time

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
        ("-https://me:xyz@example.org", "-https://***@example.org"),
        ('{"password": "x \\" yz", "num_tokens": 3}', '{"password": ***, "num_tokens": 3}'),
        ("{'api_key': 'xyz', 'b': 1}", "{'api_key': ***, 'b': 1}"),
        (r'{"text": "{\"token\": \"xyz\"} end"}', r'{"text": "{\"token\": *** end"}'),
        ("AWS_SECRET_ACCESS_KEY=xyz AWS_ACCESS_KEY_ID=xyz", "AWS_SECRET_ACCESS_KEY=*** AWS_ACCESS_KEY_ID=***"),
        ("serve --hf-token xyz --api-key=xyz --port 1", "serve --hf-token *** --api-key=*** --port 1"),
        ("Authorization: Basic xyz=\nnext, Bearer xyz", "Authorization: Basic ***\nnext, Bearer ***"),
        ("PASSWORD=\nnum_tokens=128, tokens: 5, a token is", "PASSWORD=\nnum_tokens=128, tokens: 5, a token is"),
    ],
)
def test_names_and_secrets_are_left_out(monkeypatch, text, shown):
    monkeypatch.setenv("HOME", "/home/jane")
    monkeypatch.setattr(report.platform, "node", lambda: "box")
    monkeypatch.setattr(report.getpass, "getuser", lambda: "jane")
    assert report.redacted(text) == shown


def test_a_user_without_a_name_and_a_home_gets_a_report(monkeypatch):
    def unknown(*_):
        raise KeyError("uid not found")

    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", unknown)
    monkeypatch.setattr(report.getpass, "getuser", unknown)
    assert report.redacted("~ is /") == "~ is /"


def test_a_long_word_takes_no_time():
    text = "a" * 200_000 + " " + "-".join(["ab"] * 50_000)
    start = time.monotonic()
    assert report.redacted(text) == text
    assert time.monotonic() - start < 10
