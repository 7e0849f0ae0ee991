"""The options of recsys-eval."""

from __future__ import annotations

from recsys.options.kinds import ADDRESS, COUNT, PATH, SWITCH
from recsys.options.table import Command, Group, Option, json_option, threads_option

_EXAMPLES = """\
examples:
  recsys-eval model.artifact --data clicks.csv --held-out
  recsys-eval model.artifact --data today.parquet --checkpoint model.pt

The artifact's own schema says which column is what. NE is the loss divided by that of the mean label; calibration
the mean prediction divided by the mean label. Rows count by the weights of the schema's weight column.
Exit status: 0 measured, 1 the model failed, 2 wrong options or data.
"""
COMMAND = Command(
    program="recsys-eval",
    about="Measure an artifact on a table of examples.",
    epilog=_EXAMPLES,
    groups=(
        Group(
            "",
            (
                Option(
                    "artifact",
                    ADDRESS,
                    "what recsys-export wrote, or its address in an object store",
                    required=True,
                ),
                Option(
                    "--data",
                    PATH,
                    "a CSV, Parquet, ORC, Feather or JSON-lines file, a folder of them or a pattern",
                    required=True,
                    metavar="PATH",
                ),
                Option("--held-out", SWITCH, "only the rows that recsys-train holds out of this table"),
                Option("--checkpoint", PATH, "measure the float model beside the artifact"),
                Option("--schema", PATH, "says which column is what (default: the artifact's)"),
                Option("--limit-rows", COUNT, "use the first N rows only"),
                threads_option(),
                json_option(),
            ),
        ),
    ),
)
parse = COMMAND.parse
