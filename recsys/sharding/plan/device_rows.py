"""The rows that each rank's lookups read.

Shape letters: R rows, W world size.

Ranks in host memory read the source blob; ranks on other devices get their own blob with only their shards'
rows, padded to the device's alignment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from recsys.configs import DataType
from recsys.errors import PlanError
from recsys.rows.format import row_alignment_for
from recsys.rows.layout import BlobLayout, RowBlock, copy_blocks, lay_out
from recsys.sharding.plan.plan import ParameterSharding, ShardMetadata


def table_path(collection: str, table: str) -> str:
    """Return a table's name within the whole model."""
    return f"{collection}.{table}" if collection else table


@dataclass(frozen=True, kw_only=True)
class DeviceRows:
    """The rows of one rank.

    Attributes:
        device: The rank's device.
        layout: The place of each shard in ``rows``.
        rows: uint8 bytes, or an empty tensor if the rows are set later.
    """

    device: torch.device
    layout: BlobLayout
    rows: Tensor


def device_layouts(
    source: BlobLayout, plans: Mapping[str, Mapping[str, ParameterSharding]], devices: Sequence[torch.device]
) -> list[BlobLayout]:
    """Return the layout of each rank's rows.

    Args:
        source: The layout of all tables at alignment 1, split by columns as in the plans.
        plans: Each collection's tables.
        devices: The device of each rank.

    Raises:
        PlanError: A CUDA device gets INT2 rows.
    """
    layouts = []
    for rank, device in enumerate(devices):
        if device.type == "cpu":
            layouts.append(source)
            continue
        blocks = [
            _shard_block(source, table_path(path, name), shard, table, device)
            for path, tables in plans.items()
            for name, table in tables.items()
            for shard in table.shards
            if shard.rank == rank
        ]
        layouts.append(lay_out(blocks))
    return layouts


def _shard_block(
    source: BlobLayout, table: str, shard: ShardMetadata, sharding: ParameterSharding, device: torch.device
) -> RowBlock:
    start, end = shard.rows
    whole = source.find(table, shard.columns[0], start)
    # FBGEMM returns other numbers for them, and NaN, from its own module too (fbgemm-gpu 1.6.0, H100).
    if device.type == "cuda" and whole.data_type is DataType.INT2:
        raise PlanError(
            f"table {table!r}: got INT2 rows on {str(device)!r}, where FBGEMM's lookup returns wrong numbers for them; "
            "expected INT4, INT8, FP16 or FP32 (recsys-export --table-dtype)"
        )
    # A row of zeros after the table's last row (ID policy ZERO) belongs to the last shard.
    is_last = end == max(other.rows[1] for other in sharding.shards)
    return replace(
        whole,
        row_start=start,
        row_end=whole.row_end if is_last else end,
        row_alignment=row_alignment_for(device),
    )


def fill(
    source: BlobLayout, blob: Tensor, layouts: Sequence[BlobLayout], devices: Sequence[torch.device]
) -> list[DeviceRows]:
    """Return each rank's rows, copied unless they are read in place."""
    return [
        DeviceRows(
            device=device,
            layout=layout,
            rows=blob if layout is source else copy_blocks(source, blob, layout, device),
        )
        for layout, device in zip(layouts, devices, strict=True)
    ]


def empty(layouts: Sequence[BlobLayout], devices: Sequence[torch.device]) -> list[DeviceRows]:
    """Return ranks whose rows are set later; those of one device in host memory share one buffer."""
    host = torch.empty(0, dtype=torch.uint8)
    return [
        DeviceRows(
            device=device,
            layout=layout,
            rows=host if device.type == "cpu" else torch.empty(0, dtype=torch.uint8),
        )
        for layout, device in zip(layouts, devices, strict=True)
    ]
