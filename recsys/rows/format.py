"""FBGEMM's inference row format: quantize, dequantize, cut and align rows. The layout is documented here alone.

Shape letters: D embedding dim, P padded dim, R rows.

A table is ``[R, row_bytes]`` uint8, read by FBGEMM 1.8's int-nbit lookup (checked bit for bit in the tests):

| type | one row | bytes at alignment 1 | P multiple |
|---|---|---|---|
| FP32 | D floats | 4 P | 1 |
| FP16 | D halves | 2 P | 1 |
| INT8 | scale (fp16), bias (fp16), D codes | 4 + P | 2 |
| INT4 | scale (fp16), bias (fp16), two codes a byte, low nibble first | 4 + P / 2 | 4 |
| INT2 | scale (fp16), bias (fp16), four codes a byte, low bits first | 4 + P / 4 | 8 |

A number is ``code * scale + bias``. A row is padded to a multiple of the row alignment: 1 in host memory, 16
on CUDA, where width 64 in INT8 takes 80 bytes instead of 68. Widths that are not a multiple (FBGEMM's quantizer
works on pairs of bytes) are padded with copies of the row's first number, which change neither scale nor
bias.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from recsys.base.json_checks import choice
from recsys.configs import DATA_TYPE_NUM_BITS, DataType
from recsys.ops import fbgemm

# FBGEMM 1.8, SparseType: the lookup's codes for the types of rows.
SPARSE_TYPE_CODES = {
    DataType.FP32: 0,
    DataType.FP16: 1,
    DataType.INT8: 2,
    DataType.INT4: 3,
    DataType.INT2: 4,
}
_DIM_MULTIPLES = {DataType.INT8: 2, DataType.INT4: 4, DataType.INT2: 8}
SCALE_BIAS_BYTES = 4

#: Rows in host memory are packed; CUDA kernels read 16 bytes at a time (FBGEMM 1.8).
HOST_ROW_ALIGNMENT = 1
CUDA_ROW_ALIGNMENT = 16

# Half of a unit in the last place of fp16: 11 significant bits, subnormals 2^-24 apart (IEEE 754 binary16).
_FP16_RELATIVE = 2.0**-11
_FP16_ABSOLUTE = 2.0**-25
_FP16_MAX = 65504.0


def stored_type(data: Any, key: str, at: str) -> DataType:
    """Return a field of untrusted JSON that is a data type with a row format.

    Raises:
        ManifestError: It is not one.
    """
    return DataType(choice(data, key, at, tuple(one.value for one in SPARSE_TYPE_CODES)))


def row_alignment_for(device: torch.device) -> int:
    """Return the alignment of rows in bytes that FBGEMM's lookup takes on a device."""
    return CUDA_ROW_ALIGNMENT if device.type == "cuda" else HOST_ROW_ALIGNMENT


@dataclass(frozen=True, kw_only=True)
class RowFormat:
    """The format of stored rows of ``dim`` numbers.

    Raises:
        ValueError: The type has no row format.
    """

    data_type: DataType
    dim: int

    def __post_init__(self) -> None:
        if self.data_type not in SPARSE_TYPE_CODES:
            names = ", ".join(t.value for t in SPARSE_TYPE_CODES)
            raise ValueError(f"data_type: got {self.data_type.value}, expected one of {names}")

    @property
    def bits(self) -> int:
        """Bits of a stored number."""
        return DATA_TYPE_NUM_BITS[self.data_type]

    @property
    def is_quantized(self) -> bool:
        """Whether numbers are codes with a scale and a bias."""
        return self.bits <= 8

    @property
    def dim_multiple(self) -> int:
        """Multiple at which columns can be cut."""
        return _DIM_MULTIPLES.get(self.data_type, 1)

    @property
    def padded_dim(self) -> int:
        """P: ``dim`` rounded up to a multiple of ``dim_multiple``; the lookup's output width."""
        return -(-self.dim // self.dim_multiple) * self.dim_multiple

    @property
    def header_bytes(self) -> int:
        """Bytes of scale and bias in front of the codes."""
        return SCALE_BIAS_BYTES if self.is_quantized else 0

    def row_bytes(self, alignment: int = HOST_ROW_ALIGNMENT) -> int:
        """Return bytes of one row."""
        packed = self.header_bytes + self.padded_dim * self.bits // 8
        return -(-packed // alignment) * alignment


def quantize_rows(weight: Tensor, data_type: DataType, first_row: int = 0) -> Tensor:
    """Convert float rows to stored rows at alignment 1.

    Codes are rounded against the fp16 scale and bias that are stored, as TorchRec does.

    Args:
        weight: ``[R, D]``, any float dtype.
        data_type: FP32, FP16, INT8, INT4 or INT2.
        first_row: The first row's number, for messages.

    Returns:
        ``[R, row_bytes]`` uint8.

    Raises:
        ValueError: Names the row: a number is not finite, or too large for fp16 (65 504) where fp16 has to hold it.
    """
    fmt = RowFormat(data_type=data_type, dim=weight.shape[1])
    weight = weight.detach().to(torch.float32)
    _check_range(weight, data_type, first_row)
    padding = fmt.padded_dim - fmt.dim
    if padding:
        weight = torch.cat([weight, weight[:, :1].expand(-1, padding)], dim=1)
    if data_type is DataType.FP32:
        return weight.contiguous().view(torch.uint8)
    if data_type is DataType.FP16:
        return weight.to(torch.float16).contiguous().view(torch.uint8)
    tailed = fbgemm.FloatOrHalfToFusedNBitRowwiseQuantizedSBHalf(weight.contiguous(), fmt.bits)
    codes, header = tailed[:, :-SCALE_BIAS_BYTES], tailed[:, -SCALE_BIAS_BYTES:]
    return torch.cat([header, codes], dim=1)


def _check_range(weight: Tensor, data_type: DataType, first_row: int) -> None:
    if weight.numel() == 0 or data_type is DataType.FP32:
        return
    largest = weight.abs().amax(dim=1)
    # A row's scale times 255 can reach twice the largest number and fits an fp16 scale; the bias is fp16.
    wrong = torch.nonzero(~(largest <= _FP16_MAX)).flatten()
    if wrong.numel():
        row = int(wrong[0])
        raise ValueError(
            f"row {first_row + row}: got a number of magnitude {float(largest[row]):g}, expected at most "
            f"{_FP16_MAX:g}, the most that fp16 holds (scale and bias of {data_type.value} rows are fp16); "
            "use FP32 rows"
        )


def _scale_bias(rows: Tensor) -> tuple[Tensor, Tensor]:
    header = rows[:, :SCALE_BIAS_BYTES].contiguous().view(torch.float16).to(torch.float32)
    return header[:, :1], header[:, 1:]


def _codes(rows: Tensor, fmt: RowFormat) -> Tensor:
    stored = rows[:, SCALE_BIAS_BYTES : fmt.row_bytes()]
    per_byte = 8 // fmt.bits
    parts = [(stored >> (fmt.bits * i)) & ((1 << fmt.bits) - 1) for i in range(per_byte)]
    return torch.stack(parts, dim=2).flatten(1)[:, : fmt.dim]


def dequantize_rows(rows: Tensor, fmt: RowFormat) -> Tensor:
    """Convert stored rows ``[R, row_bytes]`` of any alignment to float32 ``[R, D]``, without FBGEMM."""
    if fmt.is_quantized:
        scale, bias = _scale_bias(rows)
        return _codes(rows, fmt).to(torch.float32) * scale + bias
    dtype = torch.float32 if fmt.data_type is DataType.FP32 else torch.float16
    return rows[:, : fmt.row_bytes()].contiguous().view(dtype)[:, : fmt.dim].to(torch.float32)


def row_error_bounds(rows: Tensor, fmt: RowFormat) -> Tensor:
    """Return a bound of the quantization error of each row.

    It is half a step of the row's scale, plus the fp16 rounding of scale and bias, which can also cause
    clipping at both ends of the range, or a range that becomes zero in fp16.

    Args:
        rows: ``[R, row_bytes]``.
        fmt: Their format.

    Returns:
        ``[R]`` float32, in the unit of the weights.
    """
    if fmt.data_type is DataType.FP32:
        return torch.zeros(rows.shape[0])
    if fmt.data_type is DataType.FP16:
        largest = dequantize_rows(rows, fmt).abs().amax(dim=1)
        return largest * _FP16_RELATIVE * 2 + _FP16_ABSOLUTE
    scale, bias = (part.flatten() for part in _scale_bias(rows))
    steps = float((1 << fmt.bits) - 1)
    # Constant rows have the scale 1 and only the code 0.
    largest_code = _codes(rows, fmt).amax(dim=1)
    from_fp16 = _FP16_RELATIVE * (bias.abs() + largest_code * scale) + _FP16_ABSOLUTE * (1 + steps)
    half_step = scale / 2 * (largest_code > 0)
    return half_step * (1 + 2**-10) + from_fp16


def cut_columns(rows: Tensor, fmt: RowFormat, start: int, end: int) -> Tensor:
    """Return columns ``[start, end)`` of stored rows, with the same scale and bias: the numbers stay bit-equal.

    Args:
        rows: ``[R, row_bytes]``, at alignment 1.
        fmt: Their format.
        start: A multiple of ``fmt.dim_multiple``.
        end: A multiple of it, or ``fmt.dim``.

    Returns:
        ``[R, row_bytes of the cut]`` uint8, at alignment 1.
    """
    assert start % fmt.dim_multiple == 0
    assert end % fmt.dim_multiple == 0 or end == fmt.dim
    cut = RowFormat(data_type=fmt.data_type, dim=end - start)
    first = fmt.header_bytes + start * fmt.bits // 8
    codes = rows[:, first : first + cut.row_bytes() - cut.header_bytes]
    return torch.cat([rows[:, : fmt.header_bytes], codes], dim=1)


def align_rows(rows: Tensor, fmt: RowFormat, alignment: int) -> Tensor:
    """Return rows at alignment 1 padded with zeros to another alignment, ``[R, row_bytes(alignment)]``."""
    padding = fmt.row_bytes(alignment) - rows.shape[1]
    return torch.nn.functional.pad(rows, (0, padding)) if padding else rows
