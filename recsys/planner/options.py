"""The options of recsys-plan."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import replace

from recsys.data_type import DataType
from recsys.options.kinds import COUNT, PATH, SECONDS, SIZE, SWITCH, Kind, one_of
from recsys.options.table import Command, Group, Option, json_option
from recsys.planner.constants import DEFAULT_RESERVED_FRACTION, OPTIMIZERS
from recsys.planner.cost.topology import DEVICES

_EPILOG = """\
examples:
  recsys-plan model.pt --world-size 8 --hbm 80GB           plan, report, model.plan.json, model.plan.html
  recsys-plan tables.json --world-size 128 --hbm 40GB      tables of a model that is not written yet: a list of
                                                           {"name": ..., "num_embeddings": ..., "embedding_dim": ...}
  recsys-plan model.pt --device cpu --world-size 2 --ddr 8GB --dtype int8    for inference on host memory
  recsys-plan model.pt --world-size 8 --plan edited.json   estimate a plan as it is
  recsys-plan calibrate --out topology.json                measure this machine; then --topology topology.json
  recsys-plan diff before.json after.json                  what changed; exit code 1 where something did

exit codes: 0 planned, 1 nothing fits or a file cannot be used, 2 bad usage
"""
_CALIBRATE_EPILOG = """\
example:
  recsys-plan calibrate --device cpu --out topology.json

exit codes: 0 measured, 1 failed or no such device, 2 bad usage
"""
_DIFF_EPILOG = """\
example:
  recsys-plan diff before.json after.json

exit codes: 0 nothing changed, 1 something did, 2 bad usage or a file that is no plan
"""
#: Data types of tables for inference, by their names here.
STORED = {t.value.lower(): t for t in DataType if t is not DataType.BF16}


def _parsed_percent(text: str) -> float:
    if not re.fullmatch(r"\d{1,2}(\.\d+)?%?", text):
        raise ValueError
    return float(text.removesuffix("%"))


_PERCENT = Kind(
    expected="0 to below 100",
    parse=_parsed_percent,
    example="20",
    metavar="PERCENT",
    in_file=(int, float, str),
)
_DEVICE = Option("--device", one_of(DEVICES), "of every rank (default: cuda)")
_WORLD_SIZE = Option("--world-size", COUNT, "number of ranks (default: 1)")
COMMAND = Command(
    program="recsys-plan",
    about="Plan how embedding tables are sharded, and show what lies where and what it costs.",
    epilog=_EPILOG,
    others=("calibrate", "diff"),
    groups=(
        Group(
            "",
            (
                Option(
                    "model",
                    PATH,
                    "what recsys-train --out wrote, or tables in JSON (*.json)",
                    required=True,
                    metavar="MODEL",
                ),
                Option("--out", PATH, "the plan (default: MODEL's name with .plan.json)"),
                Option("--force", SWITCH, "replace a plan that is there"),
                Option("--html", PATH, "the page (default: MODEL's name with .plan.html)"),
                Option("--no-html", SWITCH, "write no page"),
                json_option("print plan and report as one JSON object and nothing else"),
                Option("--plan", PATH, "estimate this plan instead of making one"),
            ),
        ),
        Group(
            "ranks",
            (
                Option("--topology", PATH, "what `recsys-plan calibrate` wrote"),
                _DEVICE,
                _WORLD_SIZE,
                Option("--local-world-size", COUNT, "ranks per host (default: all, up to 8)"),
                Option("--hbm", SIZE, "device memory per rank, such as 80GB"),
                Option("--ddr", SIZE, "host memory per rank, such as 128GB"),
                Option(
                    "--reserve",
                    _PERCENT,
                    "of each rank's device memory that is not for tables",
                    default=100 * DEFAULT_RESERVED_FRACTION,
                ),
            ),
        ),
        Group(
            "work",
            (
                Option("--batch-size", COUNT, "rows per rank and step (default: 512)", metavar="B"),
                Option("--constraints", PATH, "per table, in JSON"),
                Option(
                    "--row-optimizer",
                    one_of(list(OPTIMIZERS)),
                    "of the tables (default: rowwise_adagrad)",
                    old=("--optimizer",),
                ),
                Option(
                    "--dtype",
                    one_of(list(STORED)),
                    "plan inference, all tables stored so (default: plan training)",
                    old=("--data-type",),
                ),
            ),
        ),
    ),
)
CALIBRATE = Command(
    program="recsys-plan calibrate",
    about="Measure this machine's memory and links for the planner's cost model.",
    epilog=_CALIBRATE_EPILOG,
    groups=(
        Group(
            "",
            (
                Option("--out", PATH, "the topology, in JSON; replaced if it is there", required=True),
                replace(_DEVICE, about="to measure (default: cuda where there is one)"),
                replace(_WORLD_SIZE, about="processes for the links", default=2, old=("--ranks",)),
                Option(
                    "--seconds",
                    SECONDS,
                    "for all measurements, roughly",
                    default=10.0,
                ),
                json_option(),
            ),
        ),
    ),
)
DIFF = Command(
    program="recsys-plan diff",
    about="What changed between two plans.",
    epilog=_DIFF_EPILOG,
    groups=(
        Group(
            "",
            (
                Option("before", PATH, "a plan, in JSON", required=True),
                Option("after", PATH, "another plan", required=True),
                json_option(),
            ),
        ),
    ),
)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the parsed arguments; ``command`` is plan, calibrate or diff."""
    words = list(sys.argv[1:] if argv is None else argv)
    others = {"calibrate": CALIBRATE, "diff": DIFF}
    name = words[0] if words and words[0] in others else "plan"
    parsed = others[name].parse(words[1:]) if name in others else COMMAND.parse(words)
    parsed.command = name
    return parsed
