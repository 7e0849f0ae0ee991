"""The options of recsys-data."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from recsys.base.cli import Parser, add_program_options, count

_EXAMPLES = """\
examples:
  recsys-data inspect clicks.csv
  recsys-data inspect clicks.csv --out schema.toml
  recsys-data inspect clicks/ --label click --label conversion --out schema.toml
  recsys-data inspect clicks.csv --schema schema.toml
  recsys-train --data clicks.csv --schema schema.toml --out model.pt

Exit status: 0 the schema is shown or written, 2 wrong options or data.
"""


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the parsed arguments."""
    parser = Parser(prog="recsys-data", description="Look at tables of examples.")
    commands = parser.add_subparsers(dest="command", required=True)
    inspect = commands.add_parser(
        "inspect",
        help="show what was inferred of each column",
        description="Infer the use of each column from a sample of the rows, and show the reasons.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    inspect.add_argument(
        "data",
        type=Path,
        help="a CSV, Parquet, ORC, Feather or JSON-lines file, .gz too, a folder of them, or a pattern",
    )
    inspect.add_argument(
        "--label",
        action="append",
        default=[],
        metavar="COLUMN",
        help="a label; COLUMN>=NUMBER or COLUMN=TEXT,TEXT says what is positive; repeatable (default: by its name)",
    )
    inspect.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="COLUMN",
        help="a column to leave out; repeatable",
    )
    inspect.add_argument(
        "--hash-rows",
        type=count,
        default=100_000,
        metavar="R",
        help="rows of tables with many values (default 100000)",
    )
    inspect.add_argument(
        "--out", type=Path, metavar="FILE", help="write the schema, to be edited and given to recsys-train"
    )
    inspect.add_argument("--force", action="store_true", help="replace the schema that is there")
    inspect.add_argument(
        "--schema",
        type=Path,
        metavar="FILE",
        help="infer nothing; show how many rows of the schema's tables the IDs read",
    )
    inspect.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    vectors = commands.add_parser(
        "item-vectors",
        help="write the items' vectors of a two-tower model",
        description="Write the item tower's vector for each row of a table of items, as Parquet.",
        epilog="example:\n  recsys-data item-vectors model.pt --items items.csv --keep item_id --out vectors.parquet\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    vectors.add_argument("checkpoint", type=Path, help="what recsys-train --model twotower wrote")
    vectors.add_argument("--items", type=Path, required=True, metavar="PATH", help="a table of items")
    vectors.add_argument("--out", type=Path, required=True, metavar="FILE", help="the Parquet file to write")
    vectors.add_argument("--keep", default="", metavar="NAME,NAME", help="columns of the table to write too")
    add_program_options(parser)
    return parser.parse_args(argv)
