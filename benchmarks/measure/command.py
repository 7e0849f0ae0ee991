"""What the commands of benchmarks do alike: they read options, measure, and print what they have measured.

The exit status is 0 if everything was measured, that of the error in ``failures`` if not, 2 for bad usage, and
``MISSED`` where a bar is missed and checked.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.measure.bars import Bar, add_bar_options, bar_table, bars_json, exit_status
from benchmarks.measure.machine import prepare, wide_console
from benchmarks.measure.processes import StepError

#: The exit status of each error that a benchmark may end with.
FAILURES: Mapping[type[Exception], int] = {StepError: 1, OSError: 1}


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a benchmark has measured.

    Attributes:
        data: plain data for ``--json``, which gets the machine and the bars too.
        shown: lines and tables for a terminal, between the machine and the bars.
        bars: goals; None if the benchmark has none.
        status: the exit status, unless a bar is missed and checked.
    """

    data: Mapping[str, Any]
    shown: Sequence[str | Table]
    bars: Sequence[Bar] | None = None
    status: int = 0


def make_parser(
    name: str, about: str | None, epilog: str | None = None, *, has_bars: bool = False
) -> argparse.ArgumentParser:
    """Return the parser of a benchmark's command, with ``--json``, and ``--check`` for bars.

    Args:
        name: its module in ``benchmarks``.
        about: what it measures.
        epilog: examples and exit codes.
        has_bars: whether it has bars.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=about,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if has_bars:
        add_bar_options(parser)
    else:
        parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    return parser


def name_of(known: Collection[str]) -> Callable[[str], str]:
    """Return the type of words that are known names, of which there may be several."""

    def parse(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(f"got {text!r}, expected some of {', '.join(known)}")
        return text

    return parse


def names_of(known: Collection[str]) -> Callable[[str], list[str]]:
    """Return the type of an option that takes some of the known names, with commas between."""
    one = name_of(known)
    return lambda text: [one(name) for name in text.split(",")]


def run(
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    measure: Callable[[argparse.Namespace, Path], Measured],
    failures: Mapping[type[Exception], int] = FAILURES,
) -> int:
    """Run the command of a benchmark, and return its exit status.

    Args:
        parser: made by ``make_parser``.
        argv: the words of the command; those of the process if None.
        measure: measures, from the options and an empty folder, which lies in ``--dir`` if there is such an option.
            The allocator keeps freed memory, unless ``--tuned-malloc`` is an option and is not given.
        failures: the exit status by error; the first that fits counts.
    """
    args = parser.parse_args(argv)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", message="TorchScript will treat type annotations", category=UserWarning)
    machine = prepare(tune_allocator=getattr(args, "tuned_malloc", True))
    try:
        with tempfile.TemporaryDirectory(dir=getattr(args, "dir", None)) as folder:
            measured = measure(args, Path(folder))
    except tuple(failures) as error:
        print(f"{parser.prog.removeprefix('python -m ')}: {error}", file=sys.stderr)
        return next(status for kind, status in failures.items() if isinstance(error, kind))
    bars = measured.bars
    if args.json:
        goals = {} if bars is None else {"bars": bars_json(bars)}
        print(json.dumps({"machine": machine.to_json(), **measured.data, **goals}))
    else:
        console = wide_console()
        for part in (machine.text(), *measured.shown):
            console.print(part, soft_wrap=isinstance(part, str), highlight=False)
        if bars:
            console.print(bar_table(bars))
    return measured.status if bars is None else exit_status(bars, args) or measured.status
