"""Quantized rows and predictions beside TorchRec's: the same bytes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import recsys
from recsys import DataType, PoolingType
from recsys.quant import QuantEmbeddingBagCollection
from recsys.rows.format import RowFormat
from tests.peer.torchrec_peer import configs, quantize_inference_model, torchrec
from tests.support.helpers import bag, kjt_of

pytestmark = [
    pytest.mark.peer,
    pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning"),
]

THEIR_TYPES = {
    DataType.INT8: torch.qint8,
    DataType.INT4: torch.quint4x2,
    DataType.FP16: torch.float16,
    DataType.FP32: torch.float32,
}


class Holder(torch.nn.Module):
    """TorchRec quantizes collections inside a module only."""

    def __init__(self, ebc: Any) -> None:
        super().__init__()
        self.ebc = ebc

    def forward(self, features: Any) -> Any:
        return self.ebc(features)


def both(kind: DataType, pooling: str, std: float, mean: float) -> tuple[Any, Any]:
    tables = [bag("t", 200, 64, ["a"], pooling), bag("u", 50, 16, ["b"], pooling)]
    ours = recsys.EmbeddingBagCollection(tables)
    generator = torch.Generator().manual_seed(7)
    for weight in ours.parameters():
        with torch.no_grad():
            weight.normal_(mean, std, generator=generator)
    theirs = torchrec.EmbeddingBagCollection(
        [
            configs.EmbeddingBagConfig(
                name=t.name,
                num_embeddings=t.num_embeddings,
                embedding_dim=t.embedding_dim,
                feature_names=t.feature_names,
                pooling=configs.PoolingType(t.pooling.value),
            )
            for t in tables
        ]
    )
    theirs.load_state_dict(ours.state_dict())
    quantized = QuantEmbeddingBagCollection.from_float(ours, data_type=kind, row_alignment=16)
    their_types = {t.name: THEIR_TYPES[kind] for t in tables}
    peer = quantize_inference_model(Holder(theirs), per_table_weight_dtype=their_types)
    return quantized, peer


@pytest.mark.parametrize("pooling", [PoolingType.SUM.value, PoolingType.MEAN.value])
@pytest.mark.parametrize("kind", THEIR_TYPES, ids=lambda k: k.name)
@pytest.mark.parametrize(("std", "mean"), [(1.0, 0.0), (0.01, 0.0), (1.0, 30.0)])
def test_rows_byte_for_byte_and_predictions(kind: DataType, pooling: str, std: float, mean: float) -> None:
    ours, theirs = both(kind, pooling, std, mean)
    held = theirs.ebc.tbes[0].split_embedding_weights(split_scale_shifts=False)
    for (name, rows), (peer_rows, _) in zip(ours.state_dict().items(), held, strict=True):
        assert rows.dtype == peer_rows.dtype == torch.uint8
        packed = RowFormat(data_type=kind, dim={"t": 64, "u": 16}[name.split(".")[1]]).row_bytes()
        assert rows.shape == peer_rows.shape
        assert torch.equal(rows[:, :packed], peer_rows[:, :packed])
        if kind is not DataType.INT4:  # whose tensors report two numbers a byte there
            assert torch.equal(rows[:, :packed], theirs.state_dict()[f"ebc.{name}"][:, :packed])
    ids = {"a": [[1, 199], [], [5]], "b": [[49], [0, 4, 4], []]}
    batch = kjt_of(ids)
    their_batch = torchrec.KeyedJaggedTensor(batch.keys(), batch.values(), lengths=batch.lengths())
    assert torch.equal(ours(batch).values(), theirs(their_batch).values().float())
