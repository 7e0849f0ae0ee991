"""What tests cost: processor seconds by room, and the tests that take most. A plugin of pytest, also with ``-n``.

    python -m pytest -p tests.support.processor_time tests/export

The time of other processes counts with the test that waited for their end. Servers and ranks are forks of processes
that end last: they count for no test.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Generator
from pathlib import PurePosixPath

import pytest

_NAME = "processor_s"
_NUM_TESTS = 30
_last = 0.0


def _now() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def pytest_runtest_logstart() -> None:
    """Begin to count."""
    global _last
    _last = _now()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note the time since the last note, which workers send with the report."""
    global _last
    report = yield
    now = _now()
    report.user_properties.append((_NAME, now - _last))
    _last = now
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the times."""
    tests: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                tests[report.nodeid] += dict(report.user_properties).get(_NAME, 0)
    rooms: Counter[str] = Counter()
    for name, seconds in tests.items():
        rooms[str(PurePosixPath(name.partition("::")[0]).parent)] += seconds
    for title, times in (("rooms", rooms), ("tests", tests)):
        terminalreporter.section(f"processor seconds of {title}")
        for name, seconds in times.most_common(_NUM_TESTS):
            terminalreporter.write_line(f"{seconds:8.1f} {name}")
