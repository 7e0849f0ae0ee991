"""Units of memory."""

from __future__ import annotations

from recsys.as_torchrec.planner.steps import (
    bytes_to_gb,
    bytes_to_mb,
    gb_to_bytes,
    mb_to_bytes,
    storage_repr_in_gb,
)
from recsys.planner.cost.capacity import Storage


def test_units() -> None:
    assert (bytes_to_gb(3 * 2**29), bytes_to_mb(2**19)) == (1.5, 0.5)
    assert (gb_to_bytes(1.5), mb_to_bytes(0.5)) == (3 * 2**29, 2**19)


def test_texts() -> None:
    assert storage_repr_in_gb(Storage(hbm=2**30, ddr=2**29)) == "Storage(hbm = 1.0 GB, ddr = 0.5 GB)"
    assert storage_repr_in_gb(None) == ""
