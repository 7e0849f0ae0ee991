"""Bars of a benchmark: goals, what was measured, and the options that check them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from benchmarks.measure.tables import table_of

#: The exit status of a missed bar, as of recsys-bench.
MISSED = 3
#: For the epilog of a command.
MISSED_TEXT = f"{MISSED} a bar is missed (with --check)"


@dataclass(frozen=True)
class Bar:
    """A goal and the measured value.

    Attributes:
        text: what is measured.
        bar: the goal.
        got: the measured value.
        is_most: whether the goal is an upper limit.
    """

    text: str
    bar: float
    got: float
    is_most: bool = False

    @property
    def is_met(self) -> bool:
        """Whether the goal was reached."""
        return self.got <= self.bar if self.is_most else self.got >= self.bar


def add_bar_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--check`` and ``--json``."""
    parser.add_argument("--check", action="store_true", help=f"exit with {MISSED} where a bar is missed")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def exit_status(bars: Sequence[Bar], args: argparse.Namespace) -> int:
    """Return the exit status of a benchmark that has measured everything."""
    return MISSED if args.check and not all(bar.is_met for bar in bars) else 0


def bars_json(bars: Sequence[Bar]) -> list[dict[str, Any]]:
    """Return the bars as plain data."""
    return [{**asdict(bar), "is_met": bar.is_met} for bar in bars]


def bar_table(bars: Sequence[Bar]) -> Table:
    """Return the bars as a table."""
    rows = [
        {
            "what": bar.text,
            "bar": f"{'at most' if bar.is_most else 'at least'} {bar.bar:g}",
            "got": f"{bar.got:.3g}",
            "": "met" if bar.is_met else "missed",
        }
        for bar in bars
    ]
    return table_of("bars", rows, texts=("what", ""))
