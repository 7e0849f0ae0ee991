"""The least that an operator has to do: rows, products, bytes; and the time that the machine's limits leave for it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from serve.profiler.limits import Limits

_FBGEMM_LOOKUP = "fbgemm::int_nbit_split_embedding_codegen_lookup_function"
# The place of the IDs among its arguments.
_IDS = 12
#: Operators and steps that look rows up.
LOOKUPS = (_FBGEMM_LOOKUP, "lookup", "sequence")
#: Operators and steps that are linear layers.
LINEAR = ("aten::linear", "aten::addmm", "linear")
#: What a program does beside its steps: to read inputs, and to run what no step computes.
INPUTS, REGION = "read inputs", "torch region"
# Where the factors stand among the arguments.
_PRODUCTS = {
    "aten::mm": (0, 1),
    "aten::matmul": (0, 1),
    "aten::bmm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::baddbmm": (1, 2),
}
# Bytes of types, by kineto's names.
_ITEM_BYTES = {
    "bool": 1, "signed char": 1, "unsigned char": 1, "c10::Half": 2, "c10::BFloat16": 2, "float": 4, "int": 4,
    "double": 8, "long": 8, "long int": 8,
}  # fmt: skip
_DTYPES = {"float": "float32", "c10::BFloat16": "bfloat16", "signed char": "int8", "c10::Half": "bfloat16"}
# Operators that return views, or may read less than their inputs.
_NO_BYTES = frozenset({
    "aten::alias", "aten::as_strided", "aten::chunk", "aten::contiguous", "aten::detach",
    "aten::embedding", "aten::empty", "aten::empty_like", "aten::expand", "aten::expand_as",
    "aten::flatten", "aten::full_like", "aten::gather", "aten::index", "aten::index_select",
    "aten::narrow", "aten::numel", "aten::ones_like", "aten::permute", "aten::reshape", "aten::select",
    "aten::size", "aten::slice", "aten::split", "aten::split_with_sizes", "aten::squeeze", "aten::stack",
    "aten::t", "aten::tensor_split", "aten::to", "aten::transpose", "aten::unbind", "aten::unflatten",
    "aten::unsqueeze", "aten::view", "aten::view_as", "aten::zeros_like",
})  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Work:
    """The least work of an operator in a batch.

    Attributes:
        num_rows: Stored rows that it reads.
        flops: Additions and multiplications.
        dtype: The type of their factors, one of ``serve.profiler.limits.DTYPES``; empty without any.
        num_bytes: Bytes that it reads besides rows: weights and inputs.
    """

    num_rows: float = 0.0
    flops: float = 0.0
    dtype: str = ""
    num_bytes: float = 0.0

    def least_us(self, limits: Limits, gather_rows_per_s: float | None) -> float | None:
        """Return the time that the machine needs for it at its limits; None if it is not known.

        Rows are read first; then products are as fast as the slower of arithmetic and reading.

        Args:
            limits: The limits of the machine.
            gather_rows_per_s: How fast the rows of this batch can be read.
        """
        if self.num_rows and not gather_rows_per_s:
            return None
        rows_s = self.num_rows / gather_rows_per_s if gather_rows_per_s else 0.0
        flops_s = self.flops / limits.flops[self.dtype] if self.flops else 0.0
        least_s = rows_s + max(flops_s, self.num_bytes / limits.cached_bytes_per_s)
        return least_s * 1e6 if least_s else None


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of an operator, as the profiler recorded it.

    Attributes:
        name: The operator.
        shapes: Of its arguments; lists of shapes for lists of tensors.
        dtypes: Kineto's names of their types.
        values: Their values where they are numbers or lists of numbers.
    """

    name: str
    shapes: Sequence[Any]
    dtypes: Sequence[str]
    values: Sequence[Any]

    def last(self, count: int) -> Call:
        """Return it with its last ``count`` arguments: TorchScript's interpreter records some before them."""
        return Call(
            name=self.name,
            shapes=self.shapes[-count:] if count else (),
            dtypes=self.dtypes[-count:] if count else (),
            values=self.values[-count:] if count else (),
        )


def work_of(call: Call) -> Work:
    """Return the least work of a call, which has its own arguments alone."""
    shapes = call.shapes
    try:
        if call.name == _FBGEMM_LOOKUP:
            return Work(num_rows=math.prod(shapes[_IDS]))
        if call.name == "aten::linear":
            flops = 2.0 * math.prod(shapes[0]) * shapes[1][0]
            return Work(flops=flops, dtype=_dtype(call, 0), num_bytes=_bytes(call))
        if call.name in _PRODUCTS:
            first, second = _PRODUCTS[call.name]
            flops = 2.0 * math.prod(shapes[first]) * shapes[second][-1]
            return Work(flops=flops, dtype=_dtype(call, first), num_bytes=_bytes(call))
    except (IndexError, TypeError, ValueError):
        return Work()
    return Work() if call.name in _NO_BYTES else Work(num_bytes=_bytes(call))


def label_of(call: Call) -> str:
    """Return what tells calls of an operator apart, such as ``415 → 512``; empty if nothing does."""
    shapes = call.shapes
    try:
        if call.name == "aten::linear":
            return f"{shapes[1][1]} → {shapes[1][0]}"
        if call.name == "aten::addmm":
            return f"{shapes[2][0]} → {shapes[2][1]}"
    except (IndexError, TypeError):
        pass
    return ""


def _dtype(call: Call, index: int) -> str:
    return _DTYPES.get(call.dtypes[index], "float32")


def _bytes(call: Call) -> float:
    return float(
        sum(
            math.prod(shape) * _ITEM_BYTES.get(dtype, 4)
            for all_shapes, dtype in zip(call.shapes, call.dtypes, strict=True)
            for shape in _flat(all_shapes)
        )
    )


def _flat(shapes: Any) -> Iterator[Sequence[int]]:
    """Yield the shapes of an argument; none of one that is no tensor."""
    if isinstance(shapes, (list, tuple)) and shapes:
        if isinstance(shapes[0], int):
            yield shapes
        else:
            for each in shapes:
                yield from _flat(each)
