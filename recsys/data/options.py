"""The options of recsys-data."""

from __future__ import annotations

from recsys.options.kinds import COUNT, PATH, SOME_NAMES, SWITCH, text_like
from recsys.options.table import Command, Group, Option, json_option

_EXAMPLES = """\
examples:
  recsys-data inspect clicks.csv
  recsys-data inspect clicks.csv --out schema.toml
  recsys-data inspect clicks/ --label click --label conversion --out schema.toml
  recsys-data inspect clicks.csv --schema schema.toml
  recsys-train --data clicks.csv --schema schema.toml --out model.pt

Exit status: 0 the schema is shown or written, 2 wrong options or data.
"""
_VECTORS_EXAMPLE = """\
example:
  recsys-data item-vectors model.pt --data items.csv --keep item_id --out vectors.parquet
"""
_COLUMN = text_like("click", "COLUMN")
_INSPECT = Command(
    program="recsys-data inspect",
    summary="show what was inferred of each column",
    about="Infer the use of each column from a sample of the rows, and show the reasons.",
    epilog=_EXAMPLES,
    has_program_options=False,
    groups=(
        Group(
            "",
            (
                Option(
                    "data",
                    PATH,
                    "a CSV, Parquet, ORC, Feather or JSON-lines file, .gz too, a folder of them, or a pattern",
                    required=True,
                ),
                Option(
                    "--label",
                    _COLUMN,
                    "a label; COLUMN>=NUMBER or COLUMN=TEXT,TEXT says what is positive; repeatable (default: by its "
                    "name)",
                    repeated=True,
                    default=[],
                ),
                Option("--ignore", _COLUMN, "a column to leave out; repeatable", repeated=True, default=[]),
                Option("--hash-rows", COUNT, "rows of tables with many values", default=100_000, metavar="R"),
                Option("--out", PATH, "write the schema, to be edited and given to recsys-train"),
                Option("--force", SWITCH, "replace the schema that is there"),
                Option(
                    "--schema", PATH, "infer nothing; show how many rows of the schema's tables the IDs read"
                ),
                json_option(),
            ),
        ),
    ),
)
_VECTORS = Command(
    program="recsys-data item-vectors",
    summary="write the items' vectors of a two-tower model",
    about="Write the item tower's vector for each row of a table of items, as Parquet.",
    epilog=_VECTORS_EXAMPLE,
    has_program_options=False,
    groups=(
        Group(
            "",
            (
                Option("checkpoint", PATH, "what recsys-train --model twotower wrote", required=True),
                Option("--data", PATH, "a table of items", required=True, metavar="PATH", old=("--items",)),
                Option("--out", PATH, "the Parquet file to write", required=True),
                Option("--keep", SOME_NAMES, "columns of the table to write too", default=()),
                json_option(),
            ),
        ),
    ),
)
COMMAND = Command(
    program="recsys-data",
    about="Look at tables of examples.",
    epilog="example:\n  recsys-data inspect clicks.csv --out schema.toml\n",
    groups=(),
    commands={"inspect": _INSPECT, "item-vectors": _VECTORS},
)
parse = COMMAND.parse
