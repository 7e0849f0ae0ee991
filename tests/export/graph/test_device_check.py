"""Models that would mix devices on their first request are refused when they are exported; others are not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from export.config import ExportConfig
from export.pipeline import export_model
from recsys import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    KeyedJaggedTensor,
    PoolingType,
)
from recsys.errors import ExportError
from recsys.sharding.plan.plan import ShardingPlan
from recsys.sharding.plan.sharding_types import column_wise, row_wise, table_wise

TABLES = [
    EmbeddingBagConfig(
        name="a", num_embeddings=40, embedding_dim=16, feature_names=["f"], pooling=PoolingType.MEAN
    ),
    EmbeddingBagConfig(name="b", num_embeddings=30, embedding_dim=16, feature_names=["g", "f"]),
]
CUDA = (("cuda:0",), ("cuda:0", "cuda:1"))


class Pooled(nn.Module):
    """One collection and a layer; subclasses mix in what they like."""

    def __init__(self) -> None:
        super().__init__()
        self.ebc = EmbeddingBagCollection(TABLES)
        self.over = nn.Linear(48, 1)

    def forward(self, dense: Tensor, kjt: KeyedJaggedTensor) -> Tensor:
        return self.mix(self.over(self.ebc(kjt).values()), dense.relu(), kjt)

    def mix(self, out: Tensor, dense: Tensor, kjt: KeyedJaggedTensor) -> Tensor:
        return out + dense


class AddsLengths(Pooled):
    def mix(self, out: Tensor, dense: Tensor, kjt: KeyedJaggedTensor) -> Tensor:
        return out + kjt["f"].lengths().unsqueeze(1)


class AddsOnHost(Pooled):
    def mix(self, out: Tensor, dense: Tensor, kjt: KeyedJaggedTensor) -> Tensor:
        return out + torch.zeros(size=(out.size(0), 1))


class MakesOnDevice(Pooled):
    def mix(self, out: Tensor, dense: Tensor, kjt: KeyedJaggedTensor) -> Tensor:
        return out + torch.zeros(size=(out.size(0), 1), device=out.device) + dense.to(out.device)


class Permutes(Pooled):
    def forward(self, dense: Tensor, kjt: KeyedJaggedTensor) -> Tensor:
        return self.over(self.ebc(kjt.permute([1, 0])).values()) + dense


class MeanOfSequence(nn.Module):
    """Sums a sequence and divides it by lengths, from the batch or from what the collection returned."""

    def __init__(self, *, from_batch: bool) -> None:
        super().__init__()
        table = EmbeddingConfig(name="s", num_embeddings=20, embedding_dim=8, feature_names=["f"])
        self.ec = EmbeddingCollection([table])
        self._from_batch = from_batch

    def forward(self, kjt: KeyedJaggedTensor) -> Tensor:
        sequence = self.ec(kjt)["f"]
        lengths = kjt["f"].lengths() if self._from_batch else sequence.lengths()
        return sequence.to_padded_dense(4).sum(dim=1) / lengths.clamp(min=1).unsqueeze(1)


@pytest.mark.parametrize("devices", CUDA, ids=["one", "two"])
@pytest.mark.parametrize(
    "model",
    [AddsLengths(), AddsOnHost(), MeanOfSequence(from_batch=True)],
    ids=["lengths", "made on host", "sequence"],
)
def test_mixed_devices_are_refused(model: nn.Module, devices: tuple[str, ...], tmp_path: Path) -> None:
    config = ExportConfig(targets=(devices,), dense_widths={"dense": 1} if isinstance(model, Pooled) else {})
    with pytest.raises(ExportError, match=r"would be given tensors on \['cpu', 'cuda:0'\]"):
        export_model(model, tmp_path / "artifact", config)
    assert not (tmp_path / "artifact").exists()
    export_model(model, tmp_path / "artifact", ExportConfig(dense_widths=config.dense_widths))


@pytest.mark.parametrize("devices", CUDA, ids=["one", "two"])
@pytest.mark.parametrize(
    "model",
    [Pooled(), MakesOnDevice(), Permutes(), MeanOfSequence(from_batch=False)],
    ids=["plain", "made on device", "permuted", "sequence"],
)
def test_sound_models_pass(model: nn.Module, devices: tuple[str, ...], tmp_path: Path) -> None:
    widths = {"dense": 1} if isinstance(model, Pooled) else {}
    export_model(model, tmp_path / "artifact", ExportConfig(targets=(devices,), dense_widths=widths))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_kind_of_shard_passes(dtype: str, tmp_path: Path) -> None:
    for i, (left, right) in enumerate([("row", "column"), ("column", "table"), ("table", "row")]):
        cuts = {"row": row_wise, "column": column_wise}
        plan = {
            table.name: cuts[kind](table, [1, 0]) if kind in cuts else table_wise(table, 1)
            for table, kind in zip(TABLES, (left, right), strict=True)
        }
        config = ExportConfig(
            targets=(("cuda:0", "cuda:1"), ("cpu", "cpu")),
            plan=ShardingPlan(plan={"ebc": plan}),
            dense_dtype=dtype,
            dense_widths={"dense": 1},
        )
        export_model(Pooled(), tmp_path / f"artifact-{i}", config)
