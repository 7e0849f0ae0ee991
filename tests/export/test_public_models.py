"""Models as public code writes them: routing of interests, self-attention with tied scores, bilinear crosses."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from recsys import DataType, EmbeddingBagCollection, EmbeddingCollection, KeyedJaggedTensor
from recsys.artifact.load import load_artifact
from tests.support.helpers import bag, sequence
from tests.support.models.export_models import arguments, assert_close, batch_of, exported, predicted


class Bilinear(nn.Module):
    """Squeeze and excitation, and a product of each pair of fields."""

    def __init__(self) -> None:
        super().__init__()
        self.ebc = EmbeddingBagCollection([bag(f"t_{name}", 50, 8, [name]) for name in "abc"])
        self.excite = nn.Sequential(nn.Linear(3, 1, bias=False), nn.ReLU(), nn.Linear(1, 3, bias=False))
        self.pairs = nn.ModuleList([nn.Linear(8, 8, bias=False) for _ in range(3)])
        self.over = nn.Linear(48, 1)

    def crossed(self, fields: list[Tensor]) -> Tensor:
        pairs = itertools.combinations(range(len(fields)), 2)
        return torch.cat([self.pairs[i](fields[i]) * fields[j] for i, j in pairs], dim=1)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        fields = list(self.ebc(features).to_dict().values())
        x = torch.stack(fields, 1)
        weights = self.excite(torch.mean(x, dim=-1, out=None))
        parts = torch.split(x * torch.unsqueeze(weights, dim=2), 1, dim=1)
        crosses = (self.crossed(fields), self.crossed([part.squeeze(1) for part in parts]))
        found: Tensor = self.over(torch.cat(crosses, 1)).squeeze(1)
        return found


class SelfAttention(nn.Module):
    """A transformer over the history, whose scores are by the history's own table."""

    def __init__(self) -> None:
        super().__init__()
        self.ec = EmbeddingCollection([sequence("items", 50, 8, ["history"])])
        self.places = nn.Embedding(6, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.register_buffer("mask", torch.triu(torch.full((6, 6), -math.inf), 1))

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        history = self.ec(features)["history"]
        x = history.to_padded_dense(6)
        x = x * math.sqrt(x.shape[-1]) + self.places(torch.arange(6, device=x.device))[None, :, :]
        x = self.encoder(x, mask=self.mask)
        last = (history.lengths().clamp(1, 6) - 1).long()
        weight = self.ec.embeddings["items"].weight
        assert isinstance(weight, Tensor)
        return x[torch.arange(x.shape[0]), last] @ weight.t()


class Routing(nn.Module):
    """Interests by capsules, of which the target takes the nearest."""

    def __init__(self) -> None:
        super().__init__()
        tables = [sequence("items", 50, 8, ["history", "target"])]
        self.ec = EmbeddingCollection(tables)
        self.bilinear = nn.Parameter(torch.randn(8, 8))
        self.register_buffer("start", torch.randn(1, 3, 6))

    def forward(self, features: KeyedJaggedTensor) -> tuple[Tensor, Tensor]:
        found = self.ec(features)
        history = found["history"]
        x = history.to_padded_dense(6) @ self.bilinear
        num_rows, length, _ = x.shape
        mask = torch.arange(length).expand(num_rows, length) < history.lengths().unsqueeze(-1)
        mask = mask.unsqueeze(1).repeat(1, 3, 1)
        logits: Tensor = self.start.repeat(num_rows, 1, 1)  # type: ignore[operator]
        interests = x
        for i in range(2):
            weights = functional.softmax(logits.masked_fill(~mask, torch.finfo(x.dtype).min), dim=1)
            sums = torch.bmm(weights * mask, x)
            squared = sums.pow(2).sum(-1, keepdim=True)
            interests = squared / (1 + squared) * sums / torch.sqrt(squared + 1e-9)
            if i < 1:
                logits = logits + torch.bmm(interests, x.detach().transpose(1, 2))
        target = found["target"].to_padded_dense(1).squeeze(1)
        scores = torch.einsum("bkd,bd->bk", interests, target)
        best = torch.argmax(scores, dim=1)
        return scores.max(dim=1).values, interests[torch.arange(num_rows), best]


@pytest.mark.parametrize("make", [Bilinear, SelfAttention, Routing])
@pytest.mark.parametrize("native_kernels", [False, True])
def test_public_models(tmp_path: Path, make: Callable[[], nn.Module], native_kernels: bool) -> None:
    torch.manual_seed(0)
    model = make().eval()
    _, artifact = exported(model, tmp_path / "a", data_type=DataType.FP32)
    if native_kernels:
        artifact = load_artifact(tmp_path / "a")
    signature = artifact.manifest.signature
    batch = batch_of(signature, 7)
    assert_close(
        artifact.forward(*batch.inputs()), predicted(model, arguments(signature, batch)), relative=2.0**-13
    )
