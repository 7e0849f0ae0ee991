"""Codecs of embeddings between ranks, by TorchRec's names: what crosses in which dtype."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from recsys.sharding.sharders import EmbeddingBagCollectionSharder, EmbeddingCollectionSharder
from recsys.sharding.transport.group_transport import CommsConfig
from recsys.sharding.transport.quantized_comms import (
    CommOp,
    CommType,
    QCommsConfig,
    QuantizedCommCodecs,
    comms_of,
    get_qcomm_codecs,
    get_qcomm_codecs_registry,
)

HALVES = QCommsConfig(forward_precision=CommType.FP16, backward_precision=CommType.BF16)
POOLED = (CommOp.POOLED_EMBEDDINGS_ALL_TO_ALL, CommOp.POOLED_EMBEDDINGS_REDUCE_SCATTER)


def test_a_registry_says_the_dtypes() -> None:
    registry = get_qcomm_codecs_registry(HALVES, device=torch.device("cpu"))
    assert registry is not None
    assert sorted(registry) == sorted(op.name for op in CommOp)
    expected = CommsConfig(forward=torch.float16, backward=torch.bfloat16)
    assert comms_of(registry, POOLED) == comms_of(registry, list(CommOp)) == expected
    assert comms_of(None, POOLED) == CommsConfig()
    assert get_qcomm_codecs_registry(QCommsConfig()) is None
    for sharder in (EmbeddingBagCollectionSharder(None, registry), EmbeddingCollectionSharder({}, registry)):
        assert sharder.qcomm_codecs_registry is registry
        assert sharder._comms == expected


def test_each_kind_of_collection_reads_its_calls() -> None:
    pooled = get_qcomm_codecs_registry(HALVES, list(POOLED))
    assert EmbeddingBagCollectionSharder(qcomm_codecs_registry=pooled)._comms.forward is torch.float16
    assert EmbeddingCollectionSharder(qcomm_codecs_registry=pooled)._comms == CommsConfig()


def test_codecs_convert() -> None:
    codecs = get_qcomm_codecs(HALVES)
    numbers = torch.tensor([1.0, 1 / 3])
    encoded = codecs.forward.encode(numbers)
    assert encoded.dtype is codecs.forward.quantized_dtype is torch.float16
    assert torch.equal(codecs.forward.decode(encoded), numbers.half().float())
    assert (codecs.forward.calc_quantized_size(5), codecs.forward.create_context()) == (5, None)
    assert get_qcomm_codecs(None).backward.quantized_dtype is torch.float32


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"forward_precision": CommType.INT8}, "forward_precision: got int8, expected"),
        ({"backward_precision": CommType.FP8}, "backward_precision: got fp8"),
        ({"backward_loss_scale": 2.0}, "backward_loss_scale: got 2.0, expected None"),
        ({"fp8_quantize_dim": 8}, "fp8_quantize_dim: got 8"),
    ],
)
def test_what_does_not_exist_here_is_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        QCommsConfig(**settings)


def test_calls_that_differ_and_foreign_codecs_are_refused() -> None:
    registry = get_qcomm_codecs_registry(HALVES, [CommOp.POOLED_EMBEDDINGS_ALL_TO_ALL])
    with pytest.raises(ValueError, match=r"got \[.*\], expected one pair of dtypes"):
        EmbeddingBagCollectionSharder(qcomm_codecs_registry=registry)
    foreign: Any = QuantizedCommCodecs(forward=object())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="got a object, expected codecs of get_qcomm_codecs_registry"):
        comms_of({op.name: foreign for op in POOLED}, POOLED)
