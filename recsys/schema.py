"""The schema of a table of examples, by its short name; see ``recsys.inputs.schema``."""

from recsys.inputs.schema import DenseColumn, LabelColumn, Schema, TableSpec

__all__ = ["DenseColumn", "LabelColumn", "Schema", "TableSpec"]
