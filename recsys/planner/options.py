"""The options of recsys-plan."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from recsys.base.cli import Parser, add_program_options, count, size
from recsys.data_type import DataType
from recsys.planner.constants import DEFAULT_RESERVED_FRACTION, OPTIMIZERS
from recsys.planner.cost.topology import DEVICES

_EPILOG = """\
examples:
  recsys-plan model.pt --world-size 8 --hbm 80GB           plan, report, model.plan.json, model.plan.html
  recsys-plan tables.json --world-size 128 --hbm 40GB      tables of a model that is not written yet: a list of
                                                           {"name": ..., "num_embeddings": ..., "embedding_dim": ...}
  recsys-plan model.pt --device cpu --world-size 2 --ddr 8GB --data-type int8    for inference on host memory
  recsys-plan model.pt --world-size 8 --plan edited.json   estimate a plan as it is
  recsys-plan calibrate --out topology.json                measure this machine; then --topology topology.json
  recsys-plan diff before.json after.json                  what changed; exit code 1 where something did

exit codes: 0 planned, 1 nothing fits or a file cannot be used, 2 bad usage
"""
#: Data types of tables for inference, by their names here.
STORED = {t.value.lower(): t for t in DataType if t is not DataType.BF16}


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the parsed arguments; ``command`` is plan, calibrate or diff."""
    words = list(sys.argv[1:] if argv is None else argv)
    others = {"calibrate": _calibrate_parser, "diff": _diff_parser}
    if words and words[0] in others:
        return others[words[0]]().parse_args(words[1:], argparse.Namespace(command=words[0]))
    return _plan_parser().parse_args(words, argparse.Namespace(command="plan"))


def _plan_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="recsys-plan",
        description="Plan how embedding tables are sharded, and show what lies where and what it costs.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL", help="what recsys-train --out wrote, or tables in JSON (*.json)")
    add("--out", type=Path, help="the plan (default: MODEL's name with .plan.json)")
    add("--force", action="store_true", help="replace a plan that is there")
    add("--html", type=Path, help="the page (default: MODEL's name with .plan.html)")
    add("--no-html", action="store_true", help="write no page")
    add("--json", action="store_true", help="print plan and report as JSON")
    add("--plan", type=Path, metavar="FILE", help="estimate this plan instead of making one")
    ranks = parser.add_argument_group("ranks")
    ranks.add_argument("--topology", type=Path, metavar="FILE", help="what `recsys-plan calibrate` wrote")
    ranks.add_argument("--device", choices=DEVICES, help="of every rank (default: cuda)")
    ranks.add_argument("--world-size", type=count, metavar="N", help="number of ranks (default: 1)")
    ranks.add_argument(
        "--local-world-size", type=count, metavar="N", help="ranks per host (default: all, up to 8)"
    )
    ranks.add_argument("--hbm", type=size, metavar="SIZE", help="device memory per rank, such as 80GB")
    ranks.add_argument("--ddr", type=size, metavar="SIZE", help="host memory per rank, such as 128GB")
    ranks.add_argument(
        "--reserve",
        type=_percent,
        default=100 * DEFAULT_RESERVED_FRACTION,
        metavar="PERCENT",
        help="of each rank's device memory that is not for tables (default: 15)",
    )
    work = parser.add_argument_group("work")
    work.add_argument(
        "--batch-size", type=count, metavar="N", help="samples per rank and step (default: 512)"
    )
    work.add_argument("--constraints", type=Path, metavar="FILE", help="per table, in JSON")
    work.add_argument(
        "--optimizer", choices=list(OPTIMIZERS), help="of the tables (default: rowwise_adagrad)"
    )
    work.add_argument(
        "--data-type",
        choices=list(STORED),
        help="plan inference, all tables stored so (default: plan training)",
    )
    parser.commands = ("calibrate", "diff")
    add_program_options(parser)
    return parser


def _calibrate_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="recsys-plan calibrate",
        description="Measure this machine's memory and links for the planner's cost model.",
        epilog="exit codes: 0 measured, 1 failed or no such device, 2 bad usage",
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, help="the topology, in JSON; replaced if it is there")
    add("--device", choices=DEVICES, help="to measure (default: cuda where there is one)")
    add("--ranks", type=count, default=2, metavar="N", help="processes for the links (default: 2)")
    add("--seconds", type=float, default=10.0, help="for all measurements, roughly (default: 10)")
    return parser


def _diff_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="recsys-plan diff",
        description="What changed between two plans.",
        epilog="exit codes: 0 nothing changed, 1 something did, 2 bad usage or a file that is no plan",
    )
    parser.add_argument("before", type=Path, help="a plan, in JSON")
    parser.add_argument("after", type=Path, help="another plan")
    return parser


def _percent(text: str) -> float:
    if not re.fullmatch(r"\d{1,2}(\.\d+)?%?", text):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected 0 to below 100")
    return float(text.removesuffix("%"))
