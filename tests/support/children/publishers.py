"""Processes that publish, forked from one that has imported the exporter: starting one takes no seconds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from recsys.training.publisher_process import START
from tests.support.fork_server import PROGRAMS, Forked


def _forked(descriptor: int) -> Forked:
    process = Forked(
        ["-c", START],
        cwd=Path.cwd(),
        environment=os.environ,
        streams=(None, 2),
        imported=PROGRAMS,
        passed=descriptor,
    )
    process.stdout.close()
    return process


@pytest.fixture
def forked_publishers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishers fork their processes, which run the same code over the same pipe as those that they start."""
    monkeypatch.setattr("recsys.training.publisher_process.start_process", _forked)
