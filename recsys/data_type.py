"""The data types of stored numbers, by name; without torch."""

from __future__ import annotations

from enum import Enum, unique


@unique
class DataType(Enum):
    """The data type of a table's stored numbers."""

    FP32 = "FP32"
    FP16 = "FP16"
    BF16 = "BF16"
    INT8 = "INT8"
    INT4 = "INT4"
    INT2 = "INT2"

    def __str__(self) -> str:
        return self.value


#: Types in which linear layers multiply.
LINEAR_DTYPES = ("float32", "bfloat16", "int8")
