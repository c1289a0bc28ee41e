"""A skip names what is missing, and where that is required it is a failure.

The reason of every skip begins with one of NEEDS and a colon, as in "root: it mounts a file system"; any other is a
failure. So is a skip for what `--require` names; `.ci/run` names what the machine has. In the end each reason is shown
once, with the number of its tests.
"""

from collections import Counter
from collections.abc import Generator

import pytest

NEEDS = {
    "native": "the package's native code",
    "compiler": "a C++ compiler with sanitizers, for this machine or for Arm, and what runs the result",
    "root": "the rights of root",
    "namespaces": "network namespaces, and the commands that connect them",
    "groups": "control groups with limits",
    "mounts": "file systems that can be mounted",
    "docker": "a container engine",
    "browser": "Chromium and the program that drives it",
    "node": "a program that runs JavaScript",
    "downloads": "something that is fetched while the tests run",
    "software": "another program or package",
    "system": "what this operating system, file system or processor has or lacks",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require", default="", metavar="NEED,...", help=f"tests may not be skipped for: {', '.join(NEEDS)}"
    )


def pytest_configure(config: pytest.Config) -> None:
    unknown = _required(config) - NEEDS.keys()
    if unknown:
        raise pytest.UsageError(f"--require {', '.join(sorted(unknown))}: there are only {', '.join(NEEDS)}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _check(report, item.config)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _check(report, collector.config)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # pytest-xdist's workers show nothing
        skipped = terminalreporter.stats.get("skipped", [])
        for reason, count in sorted(Counter(map(_reason, skipped)).items()):
            terminalreporter.write_line(f"{count} skipped: {reason}")


def _required(config: pytest.Config) -> set[str]:
    return set(filter(None, config.getoption("--require").split(",")))


def _check(report: pytest.TestReport | pytest.CollectReport, config: pytest.Config) -> None:
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = _reason(report)
    need = reason.partition(":")[0]
    if need not in NEEDS:
        report.outcome, report.longrepr = "failed", f"skipped without a need of tests/skips.py: {reason}"
    elif need in _required(config):
        report.outcome, report.longrepr = "failed", f"skipped, though --require names {need}: {reason}"


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """One line."""
    words = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = " ".join(words.removeprefix("Skipped: ").split())
    # Of pytest itself: a test for each instruction set that the kernels were built for, where they were not.
    return f"native: {reason}" if reason.startswith("got empty parameter set") else reason
