from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.support.artifacts import Exported, export_policies, export_slow, export_small
from tests.conformance.support.chains import Chain, make_chain
from tests.conformance.support.harness import ENGINE, ServerUnderTest, running, with_admin


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What Python does under every engine is run once, with the reference engine; see the mark ``engine``."""
    if ENGINE == "reference":
        return
    others = [
        item
        for item in items
        if "tests/conformance/" in item.nodeid and item.get_closest_marker("engine") is None
    ]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in others]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many cases there are, whatever else was run beside them."""
    counts = {
        outcome: sum(
            "tests/conformance/" in report.nodeid
            for report in terminalreporter.getreports(outcome)
            if getattr(report, "when", "call") == "call"
        )
        for outcome in ("passed", "failed")
    }
    if any(counts.values()):
        terminalreporter.write_line(
            f"conformance, {ENGINE} engine: {sum(counts.values())} cases, {counts['passed']} passed, "
            f"{counts['failed']} failed"
        )


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Every kind of input that the wire knows."""
    return export_small(tmp_path_factory.mktemp("artifacts") / "small")


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The same model with other weights: its answers tell who answered."""
    return export_small(tmp_path_factory.mktemp("artifacts") / "other", seed=1)


@pytest.fixture(scope="session")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A model that takes milliseconds a row."""
    return export_slow(tmp_path_factory.mktemp("artifacts") / "slow")


@pytest.fixture(scope="session")
def chain(small: Exported, tmp_path_factory: pytest.TempPathFactory) -> Chain:
    """Deltas of the small model."""
    return make_chain(small, tmp_path_factory.mktemp("deltas"))


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerUnderTest]:
    """A table for each ID policy; texts of two of them are hashed."""
    folder = tmp_path_factory.mktemp("policies")
    artifact = export_policies(folder / "artifact")
    with running(artifact.path, folder=folder) as started:
        yield started


@pytest.fixture(scope="module")
def server(small: Exported, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerUnderTest]:
    """The small model with default settings, all ports open; shared by the cases of a file."""
    folder = tmp_path_factory.mktemp("server")
    with running(small.path, "--http-port", "0", *with_admin(folder), folder=folder) as started:
        yield started


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """An empty repository."""
    root = tmp_path / "repository"
    root.mkdir()
    return root
