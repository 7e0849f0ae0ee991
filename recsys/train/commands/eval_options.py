"""The options of recsys-eval."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from recsys.base.cli import Parser, add_program_options, count

_EXAMPLES = """\
examples:
  recsys-eval model.artifact --data clicks.csv --held-out
  recsys-eval model.artifact --data today.parquet --checkpoint model.pt

The artifact's own schema says which column is what. NE is the loss divided by that of the mean label; calibration
the mean prediction divided by the mean label. Rows count by the weights of the schema's weight column.
Exit status: 0 measured, 1 the model failed, 2 wrong options or data.
"""


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the parsed arguments."""
    parser = Parser(
        prog="recsys-eval",
        description="Measure an artifact on a table of examples.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("artifact", type=Path, help="what recsys-export wrote")
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        metavar="PATH",
        help="a CSV, Parquet, ORC, Feather or JSON-lines file, a folder of them or a pattern",
    )
    parser.add_argument(
        "--held-out", action="store_true", help="only the rows that recsys-train holds out of this table"
    )
    parser.add_argument(
        "--checkpoint", type=Path, metavar="FILE", help="measure the float model beside the artifact"
    )
    parser.add_argument(
        "--schema", type=Path, metavar="FILE", help="says which column is what (default: the artifact's)"
    )
    parser.add_argument("--limit-rows", type=count, metavar="N", help="use the first N rows only")
    parser.add_argument("--threads", type=count, default=1, metavar="N", help="CPU threads (default 1)")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    add_program_options(parser)
    return parser.parse_args(argv)
