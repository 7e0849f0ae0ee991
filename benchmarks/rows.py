"""Lookups of rows on huge and on ordinary pages; and of tables that are larger than the memory.

The first is measured in interleaved rounds of processor time. ``--large`` compares an artifact of 5/4 of the memory
with one of 5/12 (30 GB and 10 GB of 24 GB), by IDs of a Zipf distribution whose frequent ones are spread over the
tables.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.loading.load import answer_of, drop_from_cache
from benchmarks.measure.bars import MISSED_TEXT, Bar
from benchmarks.measure.command import Measured, make_parser, run
from benchmarks.measure.tables import table_of, tracked
from recsys.base.machine import memory_bytes
from recsys.base.terminal import size_text

_EPILOG = f"""\
examples:
  python -m benchmarks.rows --check
  python -m benchmarks.rows --large --memory-gb 3 --dir /var/tmp

The first needs three times --size-gb of memory. --large writes files of 5/3 of the memory, which --memory-gb limits by
a control group; this takes root. Exit codes: 0 measured, 1 a step failed, 2 bad usage, {MISSED_TEXT}.
"""
_ROOT = Path(__file__).resolve().parent.parent
_HUGE_BAR = 1.3
_SMALL, _HUGE = "copied, ordinary pages", "copied"
_CASES = {"mapped": (), _SMALL: ("--copy-rows", "--small-pages"), _HUGE: ("--copy-rows",)}
_WAYS = {"by itself": (), "reading ahead": ("--no-random-access",), "single pages": ("--random-access",)}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    return run(_parser(), argv, _measured)


def _measured(args: argparse.Namespace, folder: Path) -> Measured:
    if args.large:
        result = _large(folder, args)
        return Measured(data=result, shown=[_large_table(result)], bars=[])
    result = _pages(folder, args)
    return Measured(data=result, shown=[_pages_table(result)], bars=[_bar(result)])


def _pages(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    artifact = folder / "artifact"
    _export(artifact, round(args.size_gb * 1e9))
    cases: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        children = {}
        for name, options in _CASES.items():
            children[name] = stack.enter_context(_step("turns", str(artifact), *options))
            cases[name] = {"pages": answer_of(children[name]), "rows_per_s": []}
        for number in tracked(range(args.rounds + 1), "rows"):
            names = list(children)
            for name in names[number % 3 :] + names[: number % 3]:
                _go_on(children[name])
                found = answer_of(children[name])["rows_per_s"]
                if number > 0:  # the first fills the caches
                    cases[name]["rows_per_s"].append(found)
    return {"size_gb": args.size_gb, "cases": cases}


def _bar(result: dict[str, Any]) -> Bar:
    huge, small = (result["cases"][name]["rows_per_s"] for name in (_HUGE, _SMALL))
    ratio = statistics.median(h / s for h, s in zip(huge, small, strict=True))
    return Bar("copied rows: huge ÷ ordinary pages", _HUGE_BAR, ratio)


def _large(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    memory = round(args.memory_gb * 1e9) if args.memory_gb else memory_bytes()
    limit = ("--memory-bytes", str(memory if args.memory_gb else 0))
    loads = []
    for share in (5 / 12, 5 / 4):
        artifact = folder / f"{share:.2f}"
        _export(artifact, round(share * memory))
        ways = _WAYS if share > 1 else {"by itself": ()}
        runs = [(way, threads) for way in ways for threads in args.threads]
        for way, threads in tracked(runs, "rows"):
            drop_from_cache(artifact)
            options = ("--zipf", str(args.zipf), "--seconds", str(args.seconds), "--threads", str(threads))
            with _step("load", str(artifact), *ways[way], *limit, *options) as child:
                found = answer_of(child)
            loads.append({"share": share, "way": way, "threads": threads, **found})
    return {"memory_bytes": memory, "zipf": args.zipf, "loads": loads}


def _export(artifact: Path, num_bytes: int) -> None:
    with _step("export", str(artifact), "--bytes", str(num_bytes)) as child:
        answer_of(child)


@contextmanager
def _step(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-m", "benchmarks.steps.rows", *arguments]
    child = subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield child
    finally:
        child.communicate()


def _go_on(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


def _pages_table(result: dict[str, Any]) -> Table:
    rows = []
    for name, case in result["cases"].items():
        pages = case["pages"]
        share = pages["huge_bytes"] / max(pages["resident_bytes"], 1)
        median = f"{statistics.median(case['rows_per_s']) / 1e6:.1f}"
        rows.append({"rows": name, "on huge pages": f"{share:.0%}", "M rows/s (median)": median})
    return table_of(f"lookups of {result['size_gb']:g} GB of rows, batch 128", rows)


def _large_table(result: dict[str, Any]) -> Table:
    rows = [
        {
            "rows ÷ memory": f"{load['share']:.2f}",
            "reads": f"{load['way']} ({'single pages' if load['is_random'] else 'ahead'})",
            "threads": str(load["threads"]),
            "samples/s": f"{load['samples_per_s']:,.0f}",
            "p50 (ms)": f"{load['p50_ms']:,.2f}",
            "p99 (ms)": f"{load['p99_ms']:,.2f}",
        }
        for load in result["loads"]
    ]
    memory = size_text(result["memory_bytes"])
    return table_of(f"memory of {memory}, Zipf {result['zipf']:g}, batch 128", rows, texts=("reads",))


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("rows", __doc__, _EPILOG, has_bars=True)
    parser.add_argument("--size-gb", type=float, default=1.0, metavar="GB", help="of the rows (default 1)")
    parser.add_argument("--rounds", type=int, default=11, help="default 11")
    parser.add_argument("--large", action="store_true", help="tables that are larger than the memory")
    parser.add_argument("--memory-gb", type=float, metavar="GB", help="limit of --large (default: none)")
    parser.add_argument("--zipf", type=float, default=1.05, help="exponent of --large (default 1.05)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each run of --large (default 60)")
    parser.add_argument(
        "--threads",
        type=lambda text: [int(word) for word in text.split(",")],
        default=[1, 8],
        metavar="N,N",
        help="that predict at a time (default 1,8)",
    )
    parser.add_argument("--dir", type=Path, metavar="DIR", help="where the artifacts go meanwhile")
    return parser


if __name__ == "__main__":
    sys.exit(main())
