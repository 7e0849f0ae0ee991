"""Our lookup beside FBGEMM's own module: the same op, the same bits."""

from __future__ import annotations

import random
import warnings

import pytest
import torch
from torch import Tensor

from recsys import DataType, PoolingType
from recsys.kernels.int_nbit import OUTPUT_CODES, IntNBitLookup, LookupSlot
from recsys.ops import lengths_to_offsets
from recsys.rows.format import RowFormat, quantize_rows
from recsys.rows.quantize import StoredTable, memory_writer, plan_blob, store_table
from tests.support.helpers import STORED_TYPES

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from fbgemm_gpu.split_embedding_configs import SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import PoolingMode as TbePooling
    from fbgemm_gpu.split_table_batched_embeddings_ops_inference import (
        IntNBitTableBatchedEmbeddingBagsCodegen,
    )

OUTPUTS = {torch.float32: SparseType.FP32, torch.float16: SparseType.FP16, torch.bfloat16: SparseType.BF16}
POOLINGS = {
    PoolingType.SUM: TbePooling.SUM,
    PoolingType.MEAN: TbePooling.MEAN,
    PoolingType.NONE: TbePooling.NONE,
}


def both(
    weights: dict[str, tuple[Tensor, DataType]], pooling: PoolingType, output: torch.dtype
) -> tuple[IntNBitLookup, IntNBitTableBatchedEmbeddingBagsCodegen]:
    tables = [
        StoredTable(name=n, num_embeddings=w.shape[0], embedding_dim=w.shape[1], data_type=kind)
        for n, (w, kind) in weights.items()
    ]
    layout = plan_blob(tables)
    blob = torch.zeros(layout.num_bytes, dtype=torch.uint8)
    slots = []
    for table in tables:
        store_table(weights[table.name][0], table, layout, memory_writer(blob))
        slots.append(LookupSlot(row_format=table.row_format, offset_bytes=layout.offset_of(table.name, 0, 0)))
    ours = IntNBitLookup(slots, pooling, output, blob, 1, torch.device("cpu"))
    official = IntNBitTableBatchedEmbeddingBagsCodegen(
        embedding_specs=[
            (
                t.name,
                t.num_embeddings,
                t.row_format.padded_dim,
                SparseType(t.data_type.value.lower()),
                EmbeddingLocation.HOST,
            )
            for t in tables
        ],
        pooling_mode=POOLINGS[pooling],
        output_dtype=OUTPUTS[output],
        device="cpu",
        row_alignment=1,
    )
    official.initialize_weights()
    for table, (held, _) in zip(
        tables, official.split_embedding_weights(split_scale_shifts=False), strict=True
    ):
        rows = quantize_rows(weights[table.name][0], table.data_type)
        held.copy_(rows)
    return ours, official


@pytest.mark.parametrize("output", OUTPUT_CODES, ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.parametrize("pooling", list(PoolingType), ids=lambda p: p.name)
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_bit_equal_to_fbgemm_for_mixed_types(
    pooling: PoolingType, output: torch.dtype, weighted: bool
) -> None:
    if weighted and pooling is PoolingType.NONE:
        pytest.skip("single rows are not weighted")
    rng, dims = random.Random(3), [8, 20, 63, 64, 5]
    torch.manual_seed(3)
    weights = {}
    for i, kind in enumerate([*STORED_TYPES, *STORED_TYPES]):
        dim = 24 if pooling is PoolingType.NONE else dims[(i * 2) % 5]
        weights[f"t{i}"] = (torch.randn(rng.choice([1, 9, 100]), dim), kind)
    ours, official = both(weights, pooling, output)
    for num_bags in (1, 3, 40):
        lengths = torch.tensor([rng.choice([0, 1, 2, 30]) for _ in range(num_bags * len(weights))])
        per_table = lengths.view(len(weights), num_bags).sum(dim=1).tolist()
        values = torch.cat(
            [
                torch.randint(0, w.shape[0], (n,))
                for n, (w, _) in zip(per_table, weights.values(), strict=True)
            ]
        )
        per_id = torch.rand(values.numel()) if weighted else None
        offsets = lengths_to_offsets(lengths)
        got = ours(values, offsets, per_id)
        expected = official(values, offsets, per_id)
        assert got.dtype == output
        assert torch.equal(got, expected)


def test_other_output_types_are_named() -> None:
    with pytest.raises(
        ValueError, match=r"output_dtype: got torch\.int8, expected float32, float16 or bfloat16"
    ):
        IntNBitLookup(
            [LookupSlot(row_format=RowFormat(data_type=DataType.INT8, dim=8), offset_bytes=0)],
            PoolingType.SUM,
            torch.int8,
            torch.zeros(256, dtype=torch.uint8),
            1,
            torch.device("cpu"),
        )
