"""The options of recsys-eval."""

from __future__ import annotations

from recsys.options.kinds import ADDRESS, COUNT, PATH, SWITCH, text_like, whole
from recsys.options.table import Command, Group, Option, json_option, threads_option

#: The default where several models are compared; for one model it is 0.
NUM_RESAMPLES = 200
_EXAMPLES = """\
examples:
  recsys-eval model.artifact --data clicks.csv --held-out
  recsys-eval model.artifact --data today.parquet --checkpoint model.pt
  recsys-eval old.artifact new.artifact --data today.parquet --group user_id --slice device --page eval.html

A model's own schema says which column is what. NE is the loss divided by that of the mean label; calibration the mean
prediction divided by the mean label. Rows count by the weights of the schema's weight column. Intervals hold 95 % of
what resampling the groups, or the rows without groups, gives. Exit status: 0 measured, 1 a model failed, 2 wrong
options or data.
"""
_COLUMN = text_like("user_id", "COLUMN")
COMMAND = Command(
    program="recsys-eval",
    about="Measure models on a table of examples, side by side.",
    epilog=_EXAMPLES,
    groups=(
        Group(
            "",
            (
                Option(
                    "models",
                    ADDRESS,
                    "what recsys-export wrote, or its address in an object store; or a .pt file of recsys-train",
                    required=True,
                    repeated=True,
                    metavar="MODEL",
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
                Option("--schema", PATH, "says which column is what (default: each artifact's own)"),
                Option("--limit-rows", COUNT, "use the first N rows only"),
                threads_option(),
                json_option(),
            ),
        ),
        Group(
            "groups and slices",
            (
                Option("--group", _COLUMN, "measure the order of rows within its values too, such as users'"),
                Option("--item", _COLUMN, "with --group: the items, for the share that first rows show"),
                Option("--top", COUNT, "rows of a group that count as its first", default=10, metavar="K"),
                Option(
                    "--slice",
                    _COLUMN,
                    "measure its most frequent values on their own; repeatable",
                    repeated=True,
                    dest="slices",
                    default=[],
                ),
                Option(
                    "--bootstrap",
                    whole(0),
                    f"resamples for intervals (default {NUM_RESAMPLES} with several models, else 0)",
                ),
                Option("--page", PATH, "write a page with plots of calibration, too", metavar="FILE"),
            ),
        ),
    ),
)
parse = COMMAND.parse
