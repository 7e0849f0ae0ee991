"""From the clicks on a new item to its row in all servers' answers, by ``examples/fresh.py``: real processes."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure.bars import Bar
from benchmarks.measure.processes import run_json

P50_S, P99_S = 2.0, 5.0


@dataclass(frozen=True, kw_only=True)
class Live:
    """What was measured.

    Attributes:
        new_items: items that appeared, one each second.
        served: of those, how many got a row of their own in the answers of all servers.
        p50_s: seconds from the last of an item's first clicks to that, median.
        p99_s: likewise.
        auc: of what was served in the second half of the time.
        auc_without_deltas: of the first model, on the same rows.
    """

    new_items: int
    served: int
    p50_s: float
    p99_s: float
    auc: float
    auc_without_deltas: float


def bars_of(result: Live) -> list[Bar]:
    """Return the bars of what was measured."""
    return [
        Bar("from clicks to all servers, s, p50", P50_S, result.p50_s, is_most=True),
        Bar("from clicks to all servers, s, p99", P99_S, result.p99_s, is_most=True),
        Bar("new items that all servers know", result.new_items, result.served),
    ]


def measure_live(folder: Path, seconds: float, num_rows: int) -> Live:
    """Run the example.

    Args:
        folder: where its files go.
        seconds: how long users look at items.
        num_rows: clicks before the first model.

    Raises:
        StepError: it failed.
    """
    command = [sys.executable, "examples/fresh.py", "--dir", str(folder), "--seconds", str(seconds), "--json"]
    found = run_json([*command, "--rows", str(num_rows)], good_codes=(0, 1))
    return Live(**{name: found[name] for name in Live.__dataclass_fields__})
