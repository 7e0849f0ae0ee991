"""The options of recsys-profile."""

from __future__ import annotations

from dataclasses import replace

from recsys.options.kinds import COUNT, COUNTS, PATH, SECONDS, SEED, SWITCH, TEXT, Kind
from recsys.options.table import Command, Group, Option, json_option
from serve.bench.load.requests import parse_mix
from serve.bench.settings import ZIPF

_EPILOG = """\
examples:
  recsys-profile model.artifact                                     table, what to change, and profile.html
  recsys-profile model.artifact --mix 1:0.5,32:0.3,128:0.2          half of the batches have one row, and so on
  recsys-profile model.artifact --zipf 1.05 --ids-per-bag 0-20
  recsys-profile model.artifact --ranking --batch-sizes 50,200      batches of one context with 50 or 200 candidates
  recsys-profile model.artifact --samples requests.jsonl --json

Measures processor time of one thread; other processes still take caches and memory away. Measuring ends after
--seconds, with fewer rounds if need be: the limits of the machine get a quarter, the batch sizes the rest.

exit codes: 0 profiled, 1 the artifact or a file cannot be used, 2 bad usage
"""
#: Rows of the batches that are measured by default.
BATCH_SIZES = (1, 8, 32, 128, 512)
_MAX_BATCH_SIZE = 1 << 16
_SECONDS = 45


def _sizes(text: str) -> tuple[int, ...]:
    sizes: tuple[int, ...] = COUNTS.parse(text)
    if max(sizes) > _MAX_BATCH_SIZE:
        raise ValueError(f"got {max(sizes)}, expected at most {_MAX_BATCH_SIZE} rows")
    return sizes


def _mix(text: str) -> dict[int, float]:
    found: dict[int, float] = {}
    for part in parse_mix(text, least=1).parts:
        if part.least != part.most or part.least > _MAX_BATCH_SIZE:
            raise ValueError(
                f"got {part.label!r}, expected batch sizes of at most {_MAX_BATCH_SIZE}, such as 1:0.5,32:0.5"
            )
        found[part.least] = found.get(part.least, 0.0) + part.weight
    return found


_SIZES = replace(COUNTS, parse=_sizes, metavar="B,B")
_SHARES = Kind(
    expected="batch sizes with shares, such as 1:0.5,32:0.5",
    parse=_mix,
    example="1:0.5,32:0.5",
    metavar="B:SHARE,...",
)
_BAGS = Kind(
    expected="a number of IDs such as 1, 0-20 or 1:0.9,50:0.1",
    parse=lambda text: parse_mix(text, least=0),
    example="0-20",
    metavar="MIX",
    in_file=(str, int),
)
# The words that --ids took.
_SKEWS = {"uniform": "0", "zipf": "1.05"}
_ZIPF = replace(ZIPF, parse=lambda text: ZIPF.parse(_SKEWS.get(text, text)))
_ARTIFACT = (
    Option("artifact", PATH, "what recsys-export wrote", required=True),
    Option(
        "--target",
        TEXT,
        "the artifact's target, in host memory (default: the first that fits)",
        metavar="NAME",
    ),
    Option("--scripted", SWITCH, "run TorchScript, also where the program could run"),
    Option("--copy-rows", SWITCH, "copy the rows into memory, as recsys-serve --copy-rows"),
)
_BATCHES = (
    Option(
        "--batch-sizes",
        _SIZES,
        f"rows of a batch (default: those of the mix, or {','.join(map(str, BATCH_SIZES))})",
    ),
    Option("--mix", _SHARES, "share of batches of each size (default: all the same)"),
    Option("--ranking", SWITCH, "ranking batches: one context, B candidates", old=("--rank",)),
    Option(
        "--ids-per-bag",
        _BAGS,
        "IDs of a row in each sparse input that takes any number, such as 1, 0-20 or 1:0.9,50:0.1 (default: as "
        "in the model's example rows, or 1)",
    ),
    Option(
        "--random-inputs",
        SWITCH,
        "take nothing from the model's example rows: standard normal numbers, and bags of one ID",
    ),
    Option(
        "--zipf",
        _ZIPF,
        "the ID of rank k with a probability proportional to k to the power of -S; 0 is uniform",
        default=0.0,
        old=("--ids",),
    ),
    Option("--samples", PATH, "rows of real requests, in JSON as recsys-predict takes them"),
    Option("--seed", SEED, "of random batches", default=0),
)
_RESULT = (
    Option("--rounds", COUNT, "turns of each measurement", default=7),
    Option(
        "--seconds",
        SECONDS,
        "time for all measurements; loading comes on top",
        default=_SECONDS,
    ),
    Option("--html", PATH, "the page (default: profile.html)", old=("--out",)),
    Option("--no-html", SWITCH, "write no page"),
    json_option("print one JSON object and nothing else; a page only with --html"),
)
COMMAND = Command(
    program="recsys-profile",
    about="Show where an artifact's time goes, step by step, against the limits of this machine, and what to change.",
    epilog=_EPILOG,
    groups=(Group("", _ARTIFACT), Group("batches", _BATCHES), Group("result", _RESULT)),
)
parse = COMMAND.parse
