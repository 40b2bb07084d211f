"""The kit as a plugin of pytest, and what the tests of every installed family need.

``pytest --sgljit-family norm`` adds the checks of the family to the run. Tests marked ``gpu`` in the packages of
families are skipped where there is no GPU, with the reason. Other projects' tests see nothing of it but its options.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sgljit_tools.errors import NoDeviceError

if TYPE_CHECKING:
    from .suite import Check

_MARKERS = ("gpu: needs a CUDA device; skipped, with the reason, where there is none", "slow: slow by nature")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the kit's options."""
    group = parser.getgroup("sgljit", "kernel families")
    group.addoption(
        "--sgljit-family", action="append", default=[], metavar="FAMILY", help="check the ops of an installed family"
    )
    group.addoption(
        "--sgljit-device", choices=("cpu", "cuda"), help="check on this device; by default the CPU, and CUDA if there"
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
    """Register the markers before the first module of a family's tests is imported."""
    if _is_of_a_family(module_path):
        _register_markers(parent.config)


def _register_markers(config: pytest.Config) -> None:
    for marker in _MARKERS:
        if marker not in config.getini("markers"):
            config.addinivalue_line("markers", marker)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add the checks of the families that were asked for; skip what needs a GPU where there is none."""
    skip_without_gpu([item for item in items if _is_of_a_family(item.path)])
    if families := config.getoption("--sgljit-family"):
        import torch

        from .suite import checks_of_family

        chosen = config.getoption("--sgljit-device")
        devices = [chosen] if chosen else ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
        try:
            checks = [c for family in families for c in checks_of_family(family, [*map(torch.device, devices)])]
        except NoDeviceError as error:
            raise pytest.UsageError(str(error)) from None
        for check in checks:
            name = "::".join(filter(None, (check.about, check.name, check.device)))
            items.append(CheckItem.from_parent(session, name=name, nodeid=name, check=check))


def skip_without_gpu(items: Sequence[pytest.Item]) -> None:
    """Skip the items marked ``gpu`` where there is no CUDA device, with the reason."""
    for item in items:
        if item.get_closest_marker("gpu"):
            import torch

            built = torch.backends.cuda.is_built()
            reason = "no CUDA device" if built else f"torch {torch.__version__} is built without CUDA"
            item.add_marker(pytest.mark.skipif(not torch.cuda.is_available(), reason=reason))


def _is_of_a_family(file: Path) -> bool:
    """Whether a file is a test of an installed family: other projects' markers are theirs."""
    from sgljit_core.plugins import discovery

    packages = {plugin.module.partition(".")[0] for claims in discovery.installed().values() for plugin in claims}
    return not packages.isdisjoint(file.parts)


class CheckItem(pytest.Item):
    """One check as a test."""

    def __init__(self, *, check: Check, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._check = check

    def runtest(self) -> None:
        from .subject import NotApplicable

        try:
            found = self._check.run()
        except NotApplicable as reason:
            pytest.skip(str(reason))
        if found:
            self.add_report_section("call", "found", found)
            self.user_properties.append(("found", found))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        from .subject import Fault

        return str(excinfo.value) if isinstance(excinfo.value, Fault) else super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        file, _, line = self._check.place.rpartition(":")
        return Path(file or self._check.about), int(line) - 1 if line else None, self.name


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
