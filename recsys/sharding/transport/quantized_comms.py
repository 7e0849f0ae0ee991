"""The dtypes of embeddings between ranks, by TorchRec's names.

TorchRec gives sharders a codec for each kind of collective call. Here embeddings cross in one dtype each way
(``CommsConfig``); the codecs say which.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, unique
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from recsys.sharding.transport.group_transport import CommsConfig

QuantizationContext = TypeVar("QuantizationContext")


@unique
class CommType(Enum):
    """How numbers cross. FP8, INT8 and MX4 do not exist here."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"
    MX4 = "mx4"

    def __str__(self) -> str:
        return self.value


@unique
class CommOp(Enum):
    """The kinds of calls that move embeddings."""

    POOLED_EMBEDDINGS_ALL_TO_ALL = "pooled_embeddings_all_to_all"
    POOLED_EMBEDDINGS_REDUCE_SCATTER = "pooled_embeddings_reduce_scatter"
    SEQUENCE_EMBEDDINGS_ALL_TO_ALL = "sequence_embeddings_all_to_all"

    def __str__(self) -> str:
        return self.value


_DTYPES = {CommType.FP32: torch.float32, CommType.FP16: torch.float16, CommType.BF16: torch.bfloat16}


@dataclass
class QCommsConfig:
    """How embeddings and their gradients cross.

    Attributes:
        forward_precision: FP32, FP16 or BF16, of embeddings.
        backward_precision: The same of their gradients; BF16 keeps their range, FP16 may lose small ones.
        forward_loss_scale: None.
        backward_loss_scale: None: give BF16 where FP16 would lose gradients.
        fp8_quantize_dim: None.
        fp8_quantize_dim_bwd: None.
        fp8_bwd_uses_143: False.
        fp8_output_dtype: None.
        mx4_quantize_dim: None.
        mx4_quantize_dim_bwd: None.
        mx4_rounding_mode: None.
        output_dtype: None.

    Raises:
        ValueError: A precision or a setting that does not exist here.
    """

    forward_precision: CommType = CommType.FP32
    backward_precision: CommType = CommType.FP32
    forward_loss_scale: float | None = None
    backward_loss_scale: float | None = None
    fp8_quantize_dim: int | None = None
    fp8_quantize_dim_bwd: int | None = None
    fp8_bwd_uses_143: bool | None = False
    fp8_output_dtype: Any | None = None
    mx4_quantize_dim: int | None = None
    mx4_quantize_dim_bwd: int | None = None
    mx4_rounding_mode: Any | None = None
    output_dtype: Any | None = None

    def __post_init__(self) -> None:
        for name in ("forward_precision", "backward_precision"):
            if getattr(self, name) not in _DTYPES:
                raise ValueError(
                    f"{name}: got {getattr(self, name)}, expected CommType.FP32, FP16 or BF16: others do not exist here"
                )
        for name, value in vars(self).items():
            if not name.endswith("_precision") and value:
                raise ValueError(f"{name}: got {value!r}, expected None: numbers cross as FP32, FP16 or BF16")


class QuantizedCommCodec(ABC, Generic[QuantizationContext]):
    """Converts numbers before and after they cross."""

    @abstractmethod
    def encode(self, input_tensor: Tensor, ctx: QuantizationContext | None = None) -> Tensor:
        """Return the numbers that cross."""

    @abstractmethod
    def decode(self, input_grad: Tensor, ctx: QuantizationContext | None = None) -> Tensor:
        """Return float32 numbers."""

    @property
    @abstractmethod
    def quantized_dtype(self) -> torch.dtype:
        """The dtype of the numbers that cross."""

    def calc_quantized_size(self, input_len: int, ctx: QuantizationContext | None = None) -> int:
        """Return the number of elements that cross."""
        del ctx
        return input_len

    def create_context(self) -> QuantizationContext | None:
        """Return None: nothing is kept between calls."""
        return None


class DtypeCodec(QuantizedCommCodec[None]):
    """Converts to a dtype and back.

    Args:
        dtype: float32, float16 or bfloat16.
    """

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self._dtype = dtype

    def encode(self, input_tensor: Tensor, ctx: Any | None = None) -> Tensor:
        """Return the numbers in the dtype."""
        del ctx
        return input_tensor.to(self._dtype)

    def decode(self, input_grad: Tensor, ctx: Any | None = None) -> Tensor:
        """Return float32 numbers."""
        del ctx
        return input_grad.float()

    @property
    def quantized_dtype(self) -> torch.dtype:
        """The dtype."""
        return self._dtype


@dataclass
class QuantizedCommCodecs:
    """The codecs of embeddings and of their gradients."""

    forward: QuantizedCommCodec[Any] = field(default_factory=DtypeCodec)
    backward: QuantizedCommCodec[Any] = field(default_factory=DtypeCodec)


CodecsRegistry = Mapping[str, QuantizedCommCodecs]


def get_qcomm_codecs(qcomms_config: QCommsConfig | None) -> QuantizedCommCodecs:
    """Return the codecs of a configuration; float32 for None."""
    if qcomms_config is None:
        return QuantizedCommCodecs()
    return QuantizedCommCodecs(
        forward=DtypeCodec(_DTYPES[qcomms_config.forward_precision]),
        backward=DtypeCodec(_DTYPES[qcomms_config.backward_precision]),
    )


def get_qcomm_codecs_registry(
    qcomms_config: QCommsConfig,
    comm_ops: Sequence[CommOp] | None = None,
    device: torch.device | None = None,
) -> dict[str, QuantizedCommCodecs] | None:
    """Return the codecs by the names of calls, for sharders; None if all is float32.

    Args:
        qcomms_config: The precisions. BF16 crosses over gloo too, where TorchRec falls back to FP16.
        comm_ops: The calls; all by default.
        device: Not needed: every dtype crosses on every device.
    """
    del device
    if qcomms_config.forward_precision is qcomms_config.backward_precision is CommType.FP32:
        return None
    return {op.name: get_qcomm_codecs(qcomms_config) for op in comm_ops or list(CommOp)}


def comms_of(registry: CodecsRegistry | None, ops: Sequence[CommOp]) -> CommsConfig:
    """Return the dtypes of a registry for some calls.

    Raises:
        ValueError: The calls' dtypes differ, or a codec is not one of ``get_qcomm_codecs``.
    """
    found = [(registry or {}).get(op.name, QuantizedCommCodecs()) for op in ops]
    for op, codecs in zip(ops, found, strict=True):
        for codec in (codecs.forward, codecs.backward):
            if not isinstance(codec, DtypeCodec):
                raise ValueError(
                    f"qcomm_codecs_registry[{op.name!r}]: got a {type(codec).__name__}, expected codecs of "
                    "get_qcomm_codecs_registry"
                )
    pairs = {(codecs.forward.quantized_dtype, codecs.backward.quantized_dtype) for codecs in found}
    if len(pairs) != 1:
        raise ValueError(
            f"qcomm_codecs_registry: got {sorted(map(str, pairs))} for {[op.name for op in ops]}, expected one pair of "
            "dtypes: their numbers cross in one call"
        )
    forward, backward = pairs.pop()
    return CommsConfig(forward=forward, backward=backward)
