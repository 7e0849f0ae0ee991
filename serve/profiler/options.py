"""The options of recsys-profile."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from recsys.base.cli import Parser, add_program_options, count, counts
from serve.bench.load.requests import Mix, parse_mix

_EPILOG = """\
examples:
  recsys-profile model.artifact                                     table, what to change, and profile.html
  recsys-profile model.artifact --mix 1:0.5,32:0.3,128:0.2          half of the batches have one row, and so on
  recsys-profile model.artifact --zipf 1.05 --ids-per-bag 0-20
  recsys-profile model.artifact --rank --batch-sizes 50,200         batches of one context with 50 or 200 candidates
  recsys-profile model.artifact --samples requests.jsonl --json

Measures processor time of one thread; other processes still take caches and memory away. Measuring ends after
--seconds, with fewer rounds if need be: the limits of the machine get a quarter, the batch sizes the rest.

exit codes: 0 profiled, 1 the artifact or a file cannot be used, 2 bad usage
"""
#: Rows of the batches that are measured by default.
BATCH_SIZES = (1, 8, 32, 128, 512)
_MAX_BATCH_SIZE = 1 << 16
_SECONDS = 45


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the parsed arguments."""
    top = Parser(
        prog="recsys-profile",
        description="Show where an artifact's time goes, step by step, against the limits of this machine, "
        "and what to change.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = top.add_argument
    add("artifact", type=Path, metavar="ARTIFACT", help="what recsys-export wrote")
    add(
        "--target",
        metavar="NAME",
        help="the artifact's target, in host memory (default: the first that fits)",
    )
    add("--scripted", action="store_true", help="run TorchScript, also where the program could run")
    add("--copy-rows", action="store_true", help="copy the rows into memory, as recsys-serve --copy-rows")
    batches = top.add_argument_group("batches")
    batches.add_argument(
        "--batch-sizes",
        type=_sizes,
        metavar="B,B",
        help=f"rows of a batch (default: those of the mix, or {','.join(map(str, BATCH_SIZES))})",
    )
    batches.add_argument(
        "--mix",
        type=_mix,
        metavar="B:SHARE,...",
        help="share of batches of each size (default: all the same)",
    )
    batches.add_argument("--rank", action="store_true", help="ranking batches: one context, B candidates")
    batches.add_argument(
        "--ids-per-bag",
        type=_bags,
        metavar="MIX",
        help="IDs of a row in each sparse input that takes any number, such as 1, 0-20 or 1:0.9,50:0.1 (default: as "
        "in the model's example rows, or 1)",
    )
    batches.add_argument(
        "--random-inputs",
        action="store_true",
        help="take nothing from the model's example rows: standard normal numbers, and bags of one ID",
    )
    batches.add_argument(
        "--ids",
        choices=("uniform", "zipf"),
        default="uniform",
        help="distribution of the IDs (default: uniform)",
    )
    batches.add_argument(
        "--zipf",
        type=_exponent,
        metavar="S",
        help="exponent of the distribution; means --ids zipf (default: 1.05)",
    )
    batches.add_argument(
        "--samples",
        type=Path,
        metavar="FILE",
        help="rows of real requests, in JSON as recsys-predict takes them",
    )
    batches.add_argument("--seed", type=int, default=0, help="of random batches (default: %(default)s)")
    result = top.add_argument_group("result")
    result.add_argument(
        "--rounds", type=count, default=7, metavar="N", help="turns of each measurement (default: 7)"
    )
    result.add_argument(
        "--seconds",
        type=count,
        default=_SECONDS,
        metavar="S",
        help="time for all measurements; loading comes on top (default: %(default)s)",
    )
    result.add_argument("--out", type=Path, metavar="FILE", help="the page (default: profile.html)")
    result.add_argument("--no-html", action="store_true", help="write no page")
    result.add_argument("--json", action="store_true", help="print one JSON object; a page only with --out")
    add_program_options(top)
    args = top.parse_args(argv)
    if args.no_html and args.out is not None:
        top.error("--out: got it with --no-html, expected one of them")
    return args


def _sizes(text: str) -> tuple[int, ...]:
    sizes = counts(text)
    if max(sizes) > _MAX_BATCH_SIZE:
        raise argparse.ArgumentTypeError(f"got {max(sizes)}, expected at most {_MAX_BATCH_SIZE} rows")
    return sizes


def _mix(text: str) -> dict[int, float]:
    found: dict[int, float] = {}
    for part in _parsed(text, least=1).parts:
        if part.least != part.most or part.least > _MAX_BATCH_SIZE:
            raise argparse.ArgumentTypeError(
                f"got {part.label!r}, expected batch sizes of at most {_MAX_BATCH_SIZE}, such as 1:0.5,32:0.5"
            )
        found[part.least] = found.get(part.least, 0.0) + part.weight
    return found


def _bags(text: str) -> Mix:
    return _parsed(text, least=0)


def _parsed(text: str, *, least: int) -> Mix:
    try:
        return parse_mix(text, least=least)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _exponent(text: str) -> float:
    try:
        exponent = float(text)
    except ValueError:
        exponent = -1.0
    if not 0 <= exponent < 100:
        raise argparse.ArgumentTypeError(f"got {text[:40]!r}, expected a number from 0 to 100")
    return exponent
