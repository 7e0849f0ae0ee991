"""Units of memory, by TorchRec's names."""

from __future__ import annotations

from typing import Any


def bytes_to_gb(num_bytes: int) -> float:
    """Return bytes in GiB."""
    return num_bytes / 2**30


def bytes_to_mb(num_bytes: float | int) -> float:
    """Return bytes in MiB."""
    return num_bytes / 2**20


def gb_to_bytes(gb: float) -> int:
    """Return GiB in bytes, rounded down."""
    return int(gb * 2**30)


def mb_to_bytes(mb: float) -> int:
    """Return MiB in bytes, rounded down."""
    return int(mb * 2**20)


def sharder_name(t: type[Any]) -> str:
    """Return a module type's name with its module."""
    return f"{t.__module__}.{t.__name__}"


def storage_repr_in_gb(storage: Any | None) -> str:
    """Return a ``Storage`` as text in GiB; an empty text for None."""
    if storage is None:
        return ""
    hbm, ddr = (round(bytes_to_gb(num_bytes), 3) for num_bytes in (storage.hbm, storage.ddr))
    return f"Storage(hbm = {hbm} GB, ddr = {ddr} GB)"
