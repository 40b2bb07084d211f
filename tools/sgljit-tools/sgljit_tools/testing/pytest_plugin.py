"""The kit as a plugin of pytest: ``pytest --sgljit-family norm`` adds the checks of the family to the run.

Tests of families that are marked ``gpu`` are skipped where there is none, with the reason. Other projects' tests see
nothing of it but its options.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sgljit_core.errors import SgljitError

if TYPE_CHECKING:
    from .suite import Check

_LEFT_OUT = "left out: "
_MARKERS = ("gpu: needs a CUDA device; skipped where there is none", "slow: slow by nature", "engine: needs an engine")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the kit's options."""
    group = parser.getgroup("sgljit", "kernel families")
    group.addoption(
        "--sgljit-family", action="append", default=[], metavar="FAMILY", help="check the ops of an installed family"
    )
    group.addoption(
        "--sgljit-device", choices=("cpu", "cuda"), help="check on this device; by default the CPU, and CUDA if there"
    )
    group.addoption(
        "--sgljit-here", action="store_true", help="check in this process, which a fault of an op may crash"
    )
    group.addoption("--sgljit-json", type=Path, metavar="FILE", help="write a line of JSON for each result")


def pytest_configure(config: pytest.Config) -> None:
    """Do what the options ask for."""
    if config.getoption("--sgljit-family"):
        _register_markers(config)
        config.addinivalue_line("filterwarnings", "ignore:Failed to initialize NumPy:UserWarning")
    if file := config.getoption("--sgljit-json"):
        config.pluginmanager.register(_Results(file), "sgljit-json")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> None:
    """Register the markers before the first module of tests of a family, or of this project, is imported."""
    if _owners_of(module_path):
        _register_markers(parent.config)


def _register_markers(config: pytest.Config) -> None:
    for marker in _MARKERS:
        if marker not in config.getini("markers"):
            config.addinivalue_line("markers", marker)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    """Add the checks of the families that were asked for; skip what needs a GPU where there is none."""
    skip_without_gpu([item for item in items if _owners_of(item.path)])
    if families := config.getoption("--sgljit-family"):
        import torch

        from .suite import checks_of_family

        chosen = config.getoption("--sgljit-device")
        devices = [chosen] if chosen else ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
        worker = _Run(config.getoption("--sgljit-here"))
        config.pluginmanager.register(worker, "sgljit-run")
        try:
            checks = [(f, c) for f in families for c in checks_of_family(f, [*map(torch.device, devices)])]
        except SgljitError as error:
            raise pytest.UsageError(str(error)) from None
        for family, check in checks:
            names = {"name": check.id, "nodeid": check.id}
            items.append(CheckItem.from_parent(session, check=check, family=family, run=worker, **names))
    yield  # -k selects
    items.sort(key=lambda item: not (isinstance(item, CheckItem) and item.check.name == "compiles"))


def skip_without_gpu(items: Sequence[pytest.Item]) -> None:
    """Skip the items marked ``gpu`` where there is no CUDA device, with the reason."""
    for item in items:
        if item.get_closest_marker("gpu"):
            import torch

            built = torch.backends.cuda.is_built()
            reason = "no CUDA device" if built else f"torch {torch.__version__} is built without CUDA"
            item.add_marker(pytest.mark.skipif(not torch.cuda.is_available(), reason=reason))


def _owners_of(file: Path) -> set[str]:
    """The installed families, or other packages of this project, that a test belongs to: others' markers are theirs."""
    from sgljit_core.plugins import discovery

    packages = {plugin.module.partition(".")[0]: f for f, claims in discovery.installed().items() for plugin in claims}
    return {packages.get(part, part) for part in file.parts if part in packages or part.startswith("sgljit_")}


class _Run:
    """The checks' process, and what their outcomes mean for later tests. ``found`` has each family's dry run."""

    def __init__(self, is_here: bool) -> None:
        from sgljit_tools.recording.process import Worker

        self._worker = None if is_here else Worker()
        self._failed: set[str] = set()
        self.found: dict[str, str] = {}

    def check(self, family: str, check: Check) -> str | None:
        """Run a check, in its own process; raises Fault or NotApplicable."""
        from sgljit_tools.recording.process import CrashedError

        from .subject import Fault, NotApplicable
        from .suite import run_by_id

        if check.name in ("opcheck", "compile") and check.id.replace(check.name, "results") in self._failed:
            raise NotApplicable("results failed, and this check calls the op on memory without guards")
        try:
            if self._worker is None:
                return check.run()
            return self._worker.run(functools.partial(run_by_id, family, check.device, check.id))
        except CrashedError as error:
            self._failed.add(check.id)
            raise Fault(check.told(str(error))) from error
        except Fault:
            self._failed.add(check.id)
            raise

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Leave out what belongs to a family that does not compile: one cause is told once."""
        for family in {item.family} if isinstance(item, CheckItem) else _owners_of(item.path):
            if f"{family}::compiles" in self._failed:
                pytest.skip(f"{_LEFT_OUT}{family} does not compile")

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Count what is left out, and do not list it."""
        if report.skipped and isinstance(report.longrepr, tuple) and _LEFT_OUT in report.longrepr[2]:
            return "left out", "", "LEFT OUT"
        return None

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say which kernels only compiled."""
        for family, text in self.found.items():
            terminalreporter.write_line(f"{family}: {text}")

    def pytest_unconfigure(self) -> None:
        """End the process."""
        if self._worker is not None:
            self._worker.close()


class CheckItem(pytest.Item):
    """One check as a test."""

    def __init__(self, *, check: Check, family: str, run: _Run, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.check, self.family, self._run = check, family, run

    def runtest(self) -> None:
        from .subject import NotApplicable

        try:
            found = self._run.check(self.family, self.check)
        except NotApplicable as reason:
            if self.check.name == "dry_run":
                self._run.found[self.family] = f"CUDA: no kernel compiled, none run: {reason}"
            pytest.skip(f"{self.check.name}: {reason}")
        if found:
            self._run.found[self.family] = found
            self.user_properties.append(("found", found))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        from .subject import Fault

        return str(excinfo.value) if isinstance(excinfo.value, Fault) else super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        file, _, line = self.check.place.rpartition(":")
        return Path(file or self.check.about), int(line) - 1 if line else None, self.name


class _Results:
    """Writes each result as a line of JSON, at once: a later test may end the process."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr or "")
        found = dict(report.user_properties).get("found", "")
        line = {"test": report.nodeid, "outcome": report.outcome, "seconds": report.duration, "text": text or found}
        with self._file.open("a") as lines:
            lines.write(json.dumps(line) + "\n")
