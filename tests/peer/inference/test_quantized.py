"""Models quantized by TorchRec's functions beside TorchRec's: the same bits, asked for by the same arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import recsys
from recsys.inference import quantize as ours
from tests.peer.torchrec_peer import configs, torchrec

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore")]

KEYS = ["a", "b", "c"]
VALUES = torch.tensor([1, 2, 2, 9, 0, 3, 4])
LENGTHS = torch.tensor([3, 0, 1, 2, 0, 1])


class Model(nn.Module):
    def __init__(self, m: Any) -> None:
        super().__init__()
        kinds = m if m is recsys else configs
        bags = [
            kinds.EmbeddingBagConfig(name="t", num_embeddings=10, embedding_dim=16, feature_names=["a", "b"]),
            kinds.EmbeddingBagConfig(name="u", num_embeddings=30, embedding_dim=8, feature_names=["c"]),
        ]
        rows = [
            kinds.EmbeddingConfig(name="v", num_embeddings=10, embedding_dim=16, feature_names=["a", "c"])
        ]
        self.pooled = m.EmbeddingBagCollection(tables=bags)
        self.rows = m.EmbeddingCollection(tables=rows)

    def forward(self, features: Any) -> dict[str, Tensor]:
        rows = {f"row {key}": jagged.values() for key, jagged in self.rows(features).items()}
        return self.pooled(features).to_dict() | rows


def answers(m: Any, quantize: Any, state: dict[str, Tensor], **arguments: Any) -> dict[str, Tensor]:
    model = Model(m)
    model.load_state_dict(state)
    quantized = quantize(model, **arguments)
    return quantized(m.KeyedJaggedTensor(KEYS, VALUES, lengths=LENGTHS))


CASES: dict[str, dict[str, Any]] = {
    "by default": {},
    "4 bits": {"quantization_dtype": torch.quint4x2},
    "2 bits": {"quantization_dtype": torch.quint2x4},
    "halves": {"quantization_dtype": torch.float16},
    "answers in halves": {"output_dtype": torch.float16},
    "by table": {"per_table_weight_dtype": {"t": torch.quint4x2, "u": torch.int8, "v": torch.float16}},
}


@pytest.mark.parametrize("arguments", CASES.values(), ids=CASES)
def test_answers_are_bit_equal(arguments: dict[str, Any]) -> None:
    from tests.peer.torchrec_peer import quantize_inference_model

    torch.manual_seed(0)
    state = {name: torch.randn_like(weight) for name, weight in Model(recsys).state_dict().items()}
    found = answers(recsys, ours.quantize_inference_model, state, **arguments)
    expected = answers(torchrec, quantize_inference_model, state, **arguments)
    assert set(found) == set(expected)
    for key, values in found.items():
        assert values.dtype == expected[key].dtype
        assert torch.equal(values, expected[key]), key
