"""The batches that warm servers up, and that exports try, are those that the native engine's tests read."""

from __future__ import annotations

from pathlib import Path

from recsys.artifact.batches.answers import WARM_UP_SIZES

FILE = Path(__file__).with_name("warm_up_sizes.txt")


def test_the_sizes() -> None:
    lines = [line.split() for line in FILE.read_text().splitlines() if not line.startswith("#")]
    assert [(int(num_requests), int(num_rows)) for num_requests, num_rows in lines] == list(WARM_UP_SIZES)
