"""What GitHub reads: workflows that call what is there, a release that takes its files; and the support matrix."""

from __future__ import annotations

import re
import subprocess

import isolated
import pytest

yaml = pytest.importorskip("yaml", reason="these tests read workflows; pip install pyyaml")

ROOT = isolated.ROOT
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((ROOT / ".github/workflows").glob("*.yml"))}


def version_of(name: str) -> str:
    (file,) = (ROOT / isolated.PROJECTS[name]).glob("sgljit_*/_version.py")
    return re.search(r'__version__ = "(.+)"', file.read_text())[1]


def steps(workflow: dict) -> list[dict]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_calls_targets_that_are_there(name):
    workflow = WORKFLOWS[name]
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called = {
        word for step in steps(workflow) for word in re.findall(r"^make ([a-z-]+)", step.get("run", ""), re.MULTILINE)
    }
    for job in workflow["jobs"].values():
        called |= {*job.get("strategy", {}).get("matrix", {}).get("target", [])}
    assert called <= targets
    assert workflow["permissions"] == {"contents": "read"}


def test_there_is_a_workflow_for_each_purpose():
    assert {"ci", "docs", "gpu", "release"} == WORKFLOWS.keys()
    matrix = WORKFLOWS["ci"]["jobs"]["test"]["strategy"]["matrix"]
    assert matrix == {"python": ["3.10", "3.11", "3.12", "3.13", "3.14"], "target": ["test", "test-oldest"]}
    assert "pull_request" not in WORKFLOWS["gpu"][True]  # YAML reads "on" as a truth value


@pytest.mark.parametrize("name", isolated.PROJECTS)
def test_a_tag_releases_the_two_files_of_its_distribution(tmp_path, name):
    (script,) = (step["run"] for step in steps(WORKFLOWS["release"]) if "release-files" in step.get("run", ""))
    version = version_of(name)
    (tmp_path / "dist").mkdir()
    for other in isolated.PROJECTS:
        stem = f"{other.replace('-', '_')}-{version_of(other)}"
        (tmp_path / "dist" / f"{stem}.tar.gz").touch()
        (tmp_path / "dist" / f"{stem}-py3-none-any.whl").touch()

    def release(tag: str) -> int:
        command = ["bash", "-e", "-c", script]
        return subprocess.run(command, cwd=tmp_path, env={"GITHUB_REF_NAME": tag, "PATH": "/usr/bin:/bin"}).returncode

    tag = f"{name.removeprefix('sgljit-')}-v"
    assert release(f"{tag}99.0") != 0
    (tmp_path / "release-files").rmdir()
    assert release(f"{tag}{version}") == 0
    stem = f"{name.replace('-', '_')}-{version}"
    taken = {path.name for path in (tmp_path / "release-files").iterdir()}
    assert taken == {f"{stem}.tar.gz", f"{stem}-py3-none-any.whl"}


def test_forms_of_issues_are_what_github_reads():
    for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text())
        if path.stem == "config":
            continue
        assert {"name", "description", "body"} == form.keys()
        names = [field["id"] for field in form["body"]]
        assert len(names) == len(set(names))
        assert all(field["type"] == "textarea" and field["attributes"]["label"] for field in form["body"])


@pytest.mark.parametrize("page", ["SECURITY.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md"])
def test_links_of_a_page_lead_somewhere(page):
    links = re.findall(r"\]\(\s*([^)\s]+)\)", (ROOT / page).read_text())
    assert links
    assert [link for link in links if not (ROOT / link.partition("#")[0]).exists()] == []


def test_each_cell_of_the_support_matrix_says_how_it_was_tested():
    text = (ROOT / "docs/support.md").read_text()
    named = re.findall(r"`((?:tests|engines|bench|\.github)/[\w./-]+|constraints\.txt)`", text)
    assert len(named) > 8
    assert [name for name in named if not (ROOT / name).exists()] == []
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    states = [
        (row, next((cell for cell in map(str.strip, row) if cell.startswith(("runs", "compiles", "installs"))), ""))
        for row in rows
    ]
    assert all(row[-1].strip() for row, state in states if state)
