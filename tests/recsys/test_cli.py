"""Long steps of commands say what they do."""

from __future__ import annotations

import io
import threading

import pytest

from recsys.cli import announced


class _Lines(io.StringIO):
    """Knows when two lines have been written."""

    def __init__(self) -> None:
        super().__init__()
        self.has_two = threading.Event()

    def flush(self) -> None:
        super().flush()
        if self.getvalue().count("\n") >= 2:
            self.has_two.set()


def test_a_long_step_is_announced_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = _Lines()
    monkeypatch.setattr("sys.stderr", lines)
    with announced("recsys-data", "looking at a.csv", after_s=0.001, every_s=0.001):
        assert lines.has_two.wait(timeout=30)
    written = lines.getvalue().splitlines()
    assert set(written) == {"recsys-data: looking at a.csv (0 s)"}


def test_a_short_step_is_silent_and_its_error_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = _Lines()
    monkeypatch.setattr("sys.stderr", lines)
    with pytest.raises(ValueError, match="wrong"), announced("recsys-data", "looking at a.csv", after_s=60):
        raise ValueError("wrong")
    assert lines.getvalue() == ""
