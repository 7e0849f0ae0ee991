"""The row format: sizes, round trips within the documented bounds, cuts, and rows that cannot be held."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from recsys import DataType
from recsys.rows.format import (
    RowFormat,
    align_rows,
    cut_columns,
    dequantize_rows,
    quantize_rows,
    row_alignment_for,
    row_error_bounds,
)
from tests.support.helpers import STORED_TYPES

CODED = (DataType.INT8, DataType.INT4, DataType.INT2)
DIMS = (1, 2, 3, 7, 8, 10, 16, 63, 64)

SIZES = [
    (DataType.FP32, 64, 256, 256),
    (DataType.FP16, 64, 128, 128),
    (DataType.INT8, 64, 68, 80),
    (DataType.INT4, 64, 36, 48),
    (DataType.INT2, 64, 20, 32),
    (DataType.FP32, 5, 20, 32),
    (DataType.FP16, 5, 10, 16),
    (DataType.INT8, 63, 68, 80),
    (DataType.INT4, 10, 10, 16),
    (DataType.INT2, 10, 8, 16),
    (DataType.INT8, 1, 6, 16),
]


def normal_rows(num_rows: int, dim: int, std: float = 1.0, mean: float = 0.0) -> Tensor:
    return torch.randn(num_rows, dim, generator=torch.Generator().manual_seed(dim)) * std + mean


@pytest.mark.parametrize(("kind", "dim", "packed", "aligned"), SIZES, ids=lambda v: getattr(v, "name", v))
def test_bytes_per_row(kind: DataType, dim: int, packed: int, aligned: int) -> None:
    fmt = RowFormat(data_type=kind, dim=dim)
    assert fmt.row_bytes() == packed
    assert fmt.row_bytes(16) == aligned
    assert quantize_rows(torch.ones(3, dim), kind).shape == (3, packed)


def test_alignment_follows_the_device() -> None:
    assert row_alignment_for(torch.device("cpu")) == 1
    assert row_alignment_for(torch.device("cuda:1")) == 16


@pytest.mark.parametrize("kind", STORED_TYPES, ids=lambda k: k.name)
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize(("std", "mean"), [(1.0, 0.0), (1e-3, 0.0), (100.0, 0.0), (1.0, 10.0), (1e4, 0.0)])
def test_a_round_trip_stays_within_the_bounds(kind: DataType, dim: int, std: float, mean: float) -> None:
    weight = normal_rows(50, dim, std, mean)
    fmt = RowFormat(data_type=kind, dim=dim)
    rows = quantize_rows(weight, kind)
    back = dequantize_rows(rows, fmt)
    assert back.shape == weight.shape
    difference = (back - weight).abs().amax(dim=1)
    bounds = row_error_bounds(rows, fmt)
    assert (difference <= bounds).all()
    if kind is DataType.FP32:
        assert torch.equal(back, weight)
    # The bounds are no blank cheque: they follow the step of the codes.
    spread = weight.amax(dim=1) - weight.amin(dim=1)
    half_step = spread / 2 / (2**fmt.bits - 1) if fmt.is_quantized else torch.zeros(50)
    assert (bounds <= half_step * 1.1 + weight.abs().amax(dim=1) * 2.0**-9 + 2.0**-16).all()


@pytest.mark.parametrize("kind", CODED, ids=lambda k: k.name)
def test_a_number_is_its_code_times_scale_plus_bias(kind: DataType) -> None:
    steps = 2 ** RowFormat(data_type=kind, dim=8).bits - 1
    codes = torch.tensor([[0, steps, 1, 2, steps, 0, 3, 1]])
    weight = codes * 0.25 - 2.0
    rows = quantize_rows(weight, kind)
    header = rows[:, :4].contiguous().view(torch.float16)
    assert header.tolist() == [[0.25, -2.0]]
    bits = RowFormat(data_type=kind, dim=8).bits
    number = int.from_bytes(bytes(rows[0, 4:].tolist()), "little")
    assert [(number >> (bits * i)) & steps for i in range(8)] == codes[0].tolist()
    assert torch.equal(dequantize_rows(rows, RowFormat(data_type=kind, dim=8)), weight)


@pytest.mark.parametrize("kind", STORED_TYPES, ids=lambda k: k.name)
@pytest.mark.parametrize("value", [0.0, 0.5, -3.0, 1.0, 60000.0])
@pytest.mark.parametrize("dim", [1, 7, 64])
def test_constant_rows_are_exact(kind: DataType, value: float, dim: int) -> None:
    weight = torch.full((2, dim), value)
    fmt = RowFormat(data_type=kind, dim=dim)
    rows = quantize_rows(weight, kind)
    assert torch.equal(dequantize_rows(rows, fmt), weight)
    assert (row_error_bounds(rows, fmt) <= abs(value) * 2.0**-9 + 2.0**-16).all()


@pytest.mark.parametrize("kind", CODED, ids=lambda k: k.name)
@pytest.mark.parametrize("dim", [1, 3, 5, 63])
def test_padding_changes_neither_scale_nor_bias(kind: DataType, dim: int) -> None:
    weight = normal_rows(20, dim, mean=5.0)
    fmt = RowFormat(data_type=kind, dim=dim)
    repeated = torch.cat([weight, weight[:, :1].expand(-1, fmt.padded_dim - dim)], dim=1)
    rows = quantize_rows(weight, kind)
    assert fmt.padded_dim % fmt.dim_multiple == 0
    assert torch.equal(rows, quantize_rows(repeated, kind))
    header = rows[:, :4].contiguous().view(torch.float16).float()
    assert torch.equal(header[:, 1], weight.amin(dim=1).half().float())
    low, high = dequantize_rows(rows, fmt).aminmax(dim=1)
    assert (low >= weight.amin(dim=1) - row_error_bounds(rows, fmt)).all()
    assert (high <= weight.amax(dim=1) + row_error_bounds(rows, fmt)).all()


@pytest.mark.parametrize("kind", [k for k in STORED_TYPES if k is not DataType.FP32], ids=lambda k: k.name)
@pytest.mark.parametrize(
    "value", [65536.0, -70000.0, 1e30, math.inf, -math.inf, math.nan], ids=lambda v: f"{v:g}"
)
def test_rows_that_are_too_large_are_named(kind: DataType, value: float) -> None:
    weight = normal_rows(5, 8)
    weight[3, 2] = value
    with pytest.raises(ValueError, match=r"row 3: got a number of magnitude .*at most 65504.*use FP32 rows"):
        quantize_rows(weight, kind)


@pytest.mark.parametrize("kind", [k for k in STORED_TYPES if k is not DataType.FP32], ids=lambda k: k.name)
def test_the_largest_range_that_fp16_can_hold(kind: DataType) -> None:
    weight = torch.tensor([[-65504.0, 65504.0, 0.0, 1000.0]])
    rows = quantize_rows(weight, kind)
    fmt = RowFormat(data_type=kind, dim=4)
    back = dequantize_rows(rows, fmt)
    assert back.isfinite().all()
    assert (back - weight).abs().max() <= row_error_bounds(rows, fmt).max()


@pytest.mark.parametrize("kind", STORED_TYPES, ids=lambda k: k.name)
@pytest.mark.parametrize("dim", [16, 20, 63])
def test_cut_columns_are_bit_equal(kind: DataType, dim: int) -> None:
    weight = normal_rows(10, dim)
    fmt = RowFormat(data_type=kind, dim=dim)
    rows = quantize_rows(weight, kind)
    whole = dequantize_rows(rows, fmt)
    bounds = [0, 8, 16, dim] if dim > 16 else [0, 8, 16]
    for start, end in itertools.pairwise(bounds):
        cut = cut_columns(rows, fmt, start, end)
        cut_fmt = RowFormat(data_type=kind, dim=end - start)
        assert cut.shape[1] == cut_fmt.row_bytes()
        assert torch.equal(dequantize_rows(cut, cut_fmt), whole[:, start:end])


@pytest.mark.parametrize("kind", STORED_TYPES, ids=lambda k: k.name)
@pytest.mark.parametrize("dim", [5, 64])
def test_aligned_rows_hold_the_same(kind: DataType, dim: int) -> None:
    weight = normal_rows(4, dim)
    fmt = RowFormat(data_type=kind, dim=dim)
    rows = quantize_rows(weight, kind)
    aligned = align_rows(rows, fmt, 16)
    assert aligned.shape == (4, fmt.row_bytes(16))
    assert torch.equal(aligned[:, : rows.shape[1]], rows)
    assert not aligned[:, rows.shape[1] :].any()
    assert torch.equal(dequantize_rows(aligned, fmt), dequantize_rows(rows, fmt))
    assert align_rows(rows, fmt, 1) is rows


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", STORED_TYPES, ids=lambda k: k.name)
def test_any_float_type_and_memory_layout_is_read(kind: DataType, dtype: torch.dtype) -> None:
    weight = normal_rows(6, 8).to(dtype)
    expected = quantize_rows(weight.float(), kind)
    assert torch.equal(quantize_rows(weight, kind), expected)
    spread = torch.stack([weight, weight * 9], dim=2)[:, :, 0].requires_grad_()
    assert torch.equal(quantize_rows(spread, kind), expected)


@pytest.mark.parametrize("kind", STORED_TYPES, ids=lambda k: k.name)
def test_no_rows(kind: DataType) -> None:
    fmt = RowFormat(data_type=kind, dim=8)
    rows = quantize_rows(torch.empty(0, 8), kind)
    assert rows.shape == (0, fmt.row_bytes())
    assert dequantize_rows(rows, fmt).shape == (0, 8)


def test_a_type_without_rows_is_named() -> None:
    with pytest.raises(ValueError, match="data_type: got BF16, expected one of FP32, FP16, INT8, INT4, INT2"):
        RowFormat(data_type=DataType.BF16, dim=8)
