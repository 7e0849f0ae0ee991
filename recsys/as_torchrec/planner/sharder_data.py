"""What estimators may know of sharders, without the sharders themselves, by TorchRec's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

from recsys.sharding.sharders import BaseEmbeddingSharder
from recsys.sharding.transport.quantized_comms import CommOp


class StorageUsageType(Enum):
    """Whose rows are counted; ``BASE_QUANT`` is only a name here."""

    BASE_QUANT = "BaseQuantEmbeddingSharder"
    BASE = "BaseEmbeddingSharder"
    DEFAULT = "ModuleSharder"


@dataclass
class SharderData:
    """The settings of a sharder.

    Attributes:
        fused_params: A copy of its ``fused_params``.
        qcomm_dtype_sizes: Bytes of a number sent forward and backward, by the name of the call in ``CommOp``; calls
            in float32 are missing.
        storage_usage_type: Whose rows are counted.
    """

    fused_params: dict[str, Any]
    qcomm_dtype_sizes: dict[str, tuple[float, float]]
    storage_usage_type: StorageUsageType


SharderDataMap = dict[str, SharderData]


def build_sharder_data(sharder: Any) -> SharderData:
    """Return the settings of a sharder."""
    codecs = getattr(sharder, "qcomm_codecs_registry", None) or {}
    is_base = isinstance(sharder, BaseEmbeddingSharder)
    return SharderData(
        fused_params=dict(getattr(sharder, "fused_params", None) or {}),
        qcomm_dtype_sizes={
            op.name: (
                _num_bytes(codecs[op.name].forward.quantized_dtype),
                _num_bytes(codecs[op.name].backward.quantized_dtype),
            )
            for op in CommOp
            if op.name in codecs
        },
        storage_usage_type=StorageUsageType.BASE if is_base else StorageUsageType.DEFAULT,
    )


def build_sharder_data_map(sharder_map: Mapping[str, Any]) -> SharderDataMap:
    """Return the settings of each sharder."""
    return {key: build_sharder_data(sharder) for key, sharder in sharder_map.items()}


def _num_bytes(dtype: torch.dtype) -> int:
    return dtype.itemsize
