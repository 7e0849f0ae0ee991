"""From float tables to a blob of rows: what is stored, what it costs, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from recsys import DataType
from recsys.rows import quantize as store_module
from recsys.rows.format import RowFormat, dequantize_rows, quantize_rows
from recsys.rows.layout import BlobLayout
from recsys.rows.quantize import (
    MAX_RELATIVE_ERRORS,
    QuantizationError,
    StoredTable,
    memory_writer,
    plan_blob,
    recut,
    store_table,
)
from tests.support.helpers import STORED_TYPES

LOSSY = tuple(MAX_RELATIVE_ERRORS)


def normal_rows(num_rows: int, dim: int, std: float = 1.0) -> Tensor:
    return torch.randn(num_rows, dim, generator=torch.Generator().manual_seed(1)) * std


def table(weight: Tensor, kind: DataType = DataType.INT8, **changes: object) -> StoredTable:
    return StoredTable(
        name="t",
        num_embeddings=weight.shape[0],
        embedding_dim=weight.shape[1],
        data_type=kind,
        **changes,  # type: ignore[arg-type]
    )


def stored(
    weight: Tensor, of: StoredTable, alignment: int = 1
) -> tuple[BlobLayout, Tensor, QuantizationError]:
    layout = plan_blob([of], alignment)
    blob = torch.zeros(layout.num_bytes, dtype=torch.uint8)
    return layout, blob, store_table(weight, of, layout, memory_writer(blob))


@pytest.mark.parametrize("kind", STORED_TYPES, ids=lambda k: k.name)
@pytest.mark.parametrize("alignment", [1, 16])
def test_what_is_stored_is_what_the_format_says(kind: DataType, alignment: int) -> None:
    weight = normal_rows(37, 20)
    layout, blob, _ = stored(weight, table(weight, kind), alignment)
    rows = layout.find("t", 0, 0).rows(blob)
    fmt = RowFormat(data_type=kind, dim=20)
    assert rows.shape == (37, fmt.row_bytes(alignment))
    assert torch.equal(rows[:, : fmt.row_bytes()], quantize_rows(weight, kind))


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = normal_rows(50, 16)
    cuts = {"column_cuts": ((0, 8), (8, 16)), "zero_row": True}
    _, whole, error = stored(weight, table(weight, **cuts))
    monkeypatch.setattr(store_module, "CHUNK_ROWS", 7)
    seen: list[int] = []
    of = table(weight, **cuts)
    layout = plan_blob([of])
    blob = torch.zeros(layout.num_bytes, dtype=torch.uint8)
    in_chunks = store_table(weight, of, layout, memory_writer(blob), seen.append)
    assert torch.equal(blob, whole)
    assert seen == [7] * 7 + [1]
    assert math.isclose(in_chunks.noise, error.noise, rel_tol=1e-6)
    assert in_chunks.max_abs == error.max_abs


@pytest.mark.parametrize("kind", STORED_TYPES, ids=lambda k: k.name)
def test_a_zero_row_lies_behind_the_last(kind: DataType) -> None:
    weight = normal_rows(3, 8)
    layout, blob, _ = stored(weight, table(weight, kind, zero_row=True))
    block = layout.find("t", 0, 0)
    assert block.num_rows == 4
    assert not dequantize_rows(block.rows(blob), block.row_format)[3].any()


# Errors of quantized normally distributed numbers in rows of 64: measured here, quoted in recsys/rows/quantize.py.
USUAL_ERRORS = {DataType.INT8: 0.007, DataType.INT4: 0.09, DataType.INT2: 0.45, DataType.FP16: 0.0003}


@pytest.mark.parametrize("kind", LOSSY, ids=lambda k: k.name)
@pytest.mark.parametrize("std", [1.0, 0.01, 1000.0])
def test_rows_of_normal_numbers_lie_well_below_the_limit(kind: DataType, std: float) -> None:
    weight = normal_rows(2000, 64, std)
    back = dequantize_rows(quantize_rows(weight, kind), RowFormat(data_type=kind, dim=64))
    relative = (back - weight).norm(dim=1) / weight.norm(dim=1)
    assert float(relative.mean()) <= USUAL_ERRORS[kind]
    assert float(relative.max()) < MAX_RELATIVE_ERRORS[kind] / 2
    _, _, error = stored(weight, table(weight, kind))
    assert math.isclose(error.sqnr_db, -20 * math.log10(float(relative.square().mean().sqrt())), abs_tol=0.2)
    assert math.isclose(error.max_abs, float((back - weight).abs().max()), rel_tol=1e-6)


def test_lossless_rows_have_no_noise() -> None:
    weight = normal_rows(10, 8)
    assert stored(weight, table(weight, DataType.FP32))[2].sqnr_db == math.inf
    zeros = torch.zeros(10, 8)
    assert stored(zeros, table(zeros, DataType.INT8))[2].sqnr_db == math.inf


UNFAITHFUL = {
    "tiny": torch.linspace(-1e-7, 1e-7, 16),
    "smaller than fp16 can say": torch.linspace(1e-9, 3e-9, 16),
    "a narrow range far from zero": 40000 + torch.linspace(0, 1, 16),
}


@pytest.mark.parametrize(
    "row", [UNFAITHFUL["tiny"], UNFAITHFUL["smaller than fp16 can say"]], ids=["tiny", "tinier"]
)
@pytest.mark.parametrize("kind", [DataType.INT8, DataType.INT4], ids=lambda k: k.name)
def test_rows_that_cannot_be_held_are_named(
    kind: DataType, row: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "CHUNK_ROWS", 8)
    weight = normal_rows(20, 16)
    weight[13] = row
    with pytest.raises(
        ValueError, match=rf"table 't', row 13: .*cannot be held by {kind.value} rows.*FP32 or FP16"
    ):
        stored(weight, table(weight, kind))
    stored(weight, table(weight, DataType.FP32))


@pytest.mark.parametrize("kind", [DataType.INT8, DataType.FP16], ids=lambda k: k.name)
def test_rows_that_are_too_large_are_named_with_their_table(
    kind: DataType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "CHUNK_ROWS", 8)
    weight = normal_rows(20, 16)
    weight[13, 3] = 1e6
    with pytest.raises(ValueError, match="table 't', row 13: got a number of magnitude 1e"):
        stored(weight, table(weight, kind))


def test_other_shapes_than_the_table_says() -> None:
    weight = normal_rows(4, 8)
    layout = plan_blob([table(weight)])
    with pytest.raises(ValueError, match=r"table 't': got weights \[3, 8\], expected \[4, 8\]"):
        store_table(weight[:3], table(weight), layout, lambda _offset, _rows: None)


@pytest.mark.parametrize(
    ("kind", "cuts"),
    [
        (DataType.INT8, ((0, 3), (3, 8))),
        (DataType.INT4, ((0, 6), (6, 8))),
        (DataType.INT2, ((0, 4), (4, 8))),
    ],
    ids=lambda v: getattr(v, "name", ""),
)
def test_cuts_that_a_format_does_not_allow(kind: DataType, cuts: tuple[tuple[int, int], ...]) -> None:
    weight = normal_rows(4, 8)
    with pytest.raises(ValueError, match=r"table 't': got columns cut at .*expected multiples of"):
        plan_blob([table(weight, kind, column_cuts=cuts)])


@pytest.mark.parametrize("alignment", [1, 16])
def test_recut_rows_hold_the_same_numbers(alignment: int) -> None:
    weight = normal_rows(9, 24)
    layout, blob, _ = stored(weight, table(weight, DataType.INT4), alignment)
    whole = layout.find("t", 0, 0)
    numbers = dequantize_rows(whole.rows(blob), whole.row_format)
    cut_layout, cut_blob = recut(layout, blob, {"t": [(0, 8), (8, 24)]})
    for start, end in ((0, 8), (8, 24)):
        block = cut_layout.find("t", start, 0)
        assert block.row_alignment == alignment
        assert torch.equal(dequantize_rows(block.rows(cut_blob), block.row_format), numbers[:, start:end])
