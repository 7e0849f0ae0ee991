"""Inference of a schema from a table's names, types and first rows.

What is inferred is a proposal, which ``recsys-data inspect`` shows with the reason of each choice.
"""

from recsys.data.tables.infer.column import ColumnReport
from recsys.data.tables.infer.labels import NoLabelError
from recsys.data.tables.infer.table import SAMPLE_ROWS, Inferred, infer

__all__ = ["SAMPLE_ROWS", "ColumnReport", "Inferred", "NoLabelError", "infer"]
