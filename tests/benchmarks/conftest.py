from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest


@pytest.fixture
def report_of(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """Runs a benchmark's ``main`` with options, in this process, which has imported torch; returns what it reports."""

    def run(main: Callable[[Sequence[str]], int], *options: str) -> dict[str, Any]:
        assert main([*options, "--json"]) == 0
        report: dict[str, Any] = json.loads(capsys.readouterr().out)
        return report

    return run
