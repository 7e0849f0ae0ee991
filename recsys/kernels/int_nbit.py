"""The lookup kernel of inference: one FBGEMM int-nbit call for many tables on one device.

Shape letters: B batch, S slots, P padded dim, N number of IDs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn

from recsys.configs import DataType, PoolingType
from recsys.ops import fbgemm
from recsys.rows.format import SPARSE_TYPE_CODES, RowFormat

# FBGEMM 1.8: PoolingMode, EmbeddingLocation (rows in host memory or in the device's) and output SparseType.
_POOLING_CODES = {PoolingType.SUM: 0, PoolingType.MEAN: 1, PoolingType.NONE: 2}
_HOST, _DEVICE = 3, 0
OUTPUT_CODES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 5}


@dataclass(frozen=True, kw_only=True)
class LookupSlot:
    """One feature of one shard: the offset and the format of the shard's rows."""

    row_format: RowFormat
    offset_bytes: int


class IntNBitLookup(nn.Module):
    """Looks up S slots at once. IDs must have been checked: the operator trusts them.

    Args:
        slots: The slots of the input's features, in order.
        pooling: SUM or MEAN: returns ``[B, sum of P]``; NONE: ``[N, P]``, with one P for all slots.
        output_dtype: float32, float16 or bfloat16.
        rows: The uint8 bytes that the slots' offsets point into; may be set later (``rows`` is a plain buffer).
        row_alignment: The alignment of the rows, in bytes.
        device: The device of the lookup; other constants are on the device of ``rows`` until all are moved.
    """

    def __init__(
        self,
        slots: Sequence[LookupSlot],
        pooling: PoolingType,
        output_dtype: torch.dtype,
        rows: Tensor,
        row_alignment: int,
        device: torch.device,
    ) -> None:
        super().__init__()
        if output_dtype not in OUTPUT_CODES:
            raise ValueError(f"output_dtype: got {output_dtype}, expected float32, float16 or bfloat16")
        dims = [slot.row_format.padded_dim for slot in slots]
        assert pooling is not PoolingType.NONE or len(set(dims)) == 1
        location = _DEVICE if device.type == "cuda" else _HOST
        codes = [SPARSE_TYPE_CODES[slot.row_format.data_type] for slot in slots]
        self.dims = dims
        self._total_dim = sum(dims)
        self._max_dims = {
            kind: max((s.row_format.padded_dim for s in slots if s.row_format.data_type is kind), default=0)
            for kind in DataType
        }
        self._pooling_code = _POOLING_CODES[pooling]
        self._output_code = OUTPUT_CODES[output_dtype]
        self._row_alignment = row_alignment

        def constant(name: str, data: list[int], dtype: torch.dtype) -> None:
            self.register_buffer(name, torch.tensor(data, dtype=dtype, device=rows.device), persistent=False)

        self.rows: Tensor
        self.register_buffer("rows", rows, persistent=False)
        constant("unused", [], torch.uint8)
        constant("placements", [location] * len(slots), torch.int32)
        constant("offsets_bytes", [slot.offset_bytes for slot in slots], torch.int64)
        constant("type_codes", codes, torch.uint8)
        constant("dim_offsets", list(accumulate(dims, initial=0)), torch.int32)

    def forward(self, values: Tensor, offsets: Tensor, weights: Tensor | None) -> Tensor:
        """Look up.

        Args:
            values: ``[N]`` int64, slot-major, contiguous.
            offsets: ``[S * B + 1]`` int64.
            weights: ``[N]`` float32, or None.

        Returns:
            ``[B, sum of P]``, or ``[N, P]`` without pooling.
        """
        found: Tensor = fbgemm.int_nbit_split_embedding_codegen_lookup_function(
            self.rows,
            self.unused,
            self.placements,
            self.offsets_bytes,
            self.type_codes,
            self.dim_offsets,
            self._total_dim,
            self._max_dims[DataType.INT2],
            self._max_dims[DataType.INT4],
            self._max_dims[DataType.INT8],
            self._max_dims[DataType.FP16],
            self._max_dims[DataType.FP32],
            values,
            offsets,
            self._pooling_code,
            weights,
            self._output_code,
            None,
            None,
            self._row_alignment,
        )
        return found
