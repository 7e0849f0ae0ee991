"""The options of recsys-data."""

from __future__ import annotations

from recsys.data.answers.rules import DOUBLED, MISSING
from recsys.options.kinds import (
    COUNT,
    DURATION,
    NAMES,
    PATH,
    SIZE,
    SOME_NAMES,
    SWITCH,
    TEXT,
    one_of,
    text_like,
)
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
                    "a label; COLUMN>=NUMBER or COLUMN=TEXT,TEXT says what is positive, COLUMN:mse or COLUMN:huber "
                    "that it is a number; repeatable (default: by its name)",
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
_JOIN_EXAMPLES = """\
examples:
  recsys-data join --log answers/ --labels clicks.parquet --within 1h --out table.parquet
  recsys-data join --log answers/ --labels 'clicks-*.csv' --within 30m --candidate item_id --missing drop \\
      --model-file model.artifact --schema-out table.toml --out table.parquet
  recsys-train --data table.parquet --schema table.toml --out model.pt

Exit status: 0 the table is written, 2 wrong options, log or labels.
"""
_JOIN = Command(
    program="recsys-data join",
    summary="make a training table from a server's log of answers and labels",
    about="Join the rows of answered requests with labels by request ID, as Parquet.",
    epilog=_JOIN_EXAMPLES,
    has_program_options=False,
    groups=(
        Group(
            "",
            (
                Option(
                    "--log", PATH, "the folder of recsys-serve's answer log", required=True, metavar="PATH"
                ),
                Option(
                    "--labels",
                    PATH,
                    "a table with request_id, labels and, where there are some, row and time; a file, a folder of "
                    "files, or a pattern",
                    required=True,
                    metavar="PATH",
                ),
                Option(
                    "--within", DURATION, "how long after its answer a request's labels come", required=True
                ),
                Option("--out", PATH, "the Parquet file to write", required=True),
                Option("--force", SWITCH, "replace the file that is there"),
                Option(
                    "--label", NAMES, "columns of labels (default: all that are nothing else)", default=()
                ),
                Option("--label-time", TEXT, "the column of the labels' times (default: time)", default=""),
                Option(
                    "--candidate",
                    TEXT,
                    "the sparse input, and column of the labels, whose ID says which row of its request a label is of",
                    default="",
                ),
                Option("--missing", one_of(MISSING), "what a row without a label is", default="negative"),
                Option(
                    "--doubled", one_of(DOUBLED), "which of several labels of a row counts", default="first"
                ),
                Option(
                    "--model", TEXT, "the model whose requests are read (default: the only one)", default=""
                ),
                Option("--version", TEXT, "its version (default: all)", default=""),
                Option(
                    "--until",
                    TEXT,
                    "the end of the log, such as 2026-11-27T12:00:00Z: requests whose labels may come later are left "
                    "out (default: the latest answer)",
                    default="",
                ),
                Option("--memory", SIZE, "what labels and request IDs may take", default=1 << 30),
                Option("--model-file", PATH, "an artifact or a schema file, whose schema the table gets"),
                Option("--schema-out", PATH, "where to write that schema, for recsys-train"),
                json_option(),
            ),
        ),
    ),
)
_ROWS = Command(
    program="recsys-data rows",
    summary="show what the tables of a trained model hold",
    about="Show how long the rows of a model's tables are, how often the IDs of a table read them, or which are alike.",
    epilog="""\
examples:
  recsys-data rows model.pt --data clicks.csv
  recsys-data rows model.pt --data clicks.csv --near item_id=i7 --top 5

Exit status: 0 shown, 2 wrong options, model or data.
""",
    has_program_options=False,
    groups=(
        Group(
            "",
            (
                Option("model", PATH, "what recsys-train --out wrote", required=True),
                Option("--data", PATH, "a table whose IDs are counted, or compared", metavar="PATH"),
                Option(
                    "--near", TEXT, "show values whose rows are most like this one's", metavar="COLUMN=VALUE"
                ),
                Option("--top", COUNT, "how many of them", default=10, metavar="K"),
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
    commands={"inspect": _INSPECT, "item-vectors": _VECTORS, "join": _JOIN, "rows": _ROWS},
)
parse = COMMAND.parse
