"""Tables that forward does not look up, or reads itself, collections without tables, outputs that cannot be served."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from export.config import ExportConfig
from export.pipeline import export_model
from recsys import DataType, EmbeddingBagCollection, EmbeddingCollection, KeyedJaggedTensor
from recsys.errors import ExportError
from tests.export.delta.test_dense import check
from tests.support.helpers import bag, sequence
from tests.support.models.export_models import arguments, assert_close, batch_of, exported, predicted


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.ebc = EmbeddingBagCollection([bag("t", 20, 8, ["f"]), bag("u", 30, 8, ["g"])])
        self.over = nn.Linear(16, 4)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        found: Tensor = self.over(self.ebc(features).values())
        return found


class Unused(Base):
    """Tables for training alone: pooled ones, sequences, and some that share a feature with those that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.aux = EmbeddingBagCollection([bag("z", 9, 8, ["f", "z"])])
        self.more = nn.ModuleDict({"ec": EmbeddingCollection([sequence("s", 9, 8, ["y"])])})


class UnusedInRoot(Unused):
    """Behind a forward that is adapted."""

    def forward(self, features: KeyedJaggedTensor, mask: Tensor | None = None) -> Tensor:
        found: Tensor = super().forward(features)
        return found if mask is None else found * mask


class Empty(Base):
    def __init__(self) -> None:
        super().__init__()
        self.none, self.no_sequences = EmbeddingBagCollection([]), EmbeddingCollection([])

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        nothing = self.none(features)
        assert not self.no_sequences(features)
        assert nothing.keys() == []
        found: Tensor = self.over(torch.cat([self.ebc(features).values(), nothing.values()], dim=1))
        return found


class EmptyAndUnused(Base):
    def __init__(self) -> None:
        super().__init__()
        self.none = EmbeddingBagCollection([])


class Tied(Base):
    """Scores of all items, by a table that is looked up too."""

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        found = self.ebc(features)
        return found["f"] @ self.ebc.embedding_bags["u"].weight.T + found["g"].sum(1, True)


class TiedSequences(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.ec = EmbeddingCollection([sequence("items", 20, 8, ["items"])])
        self.bias = nn.Parameter(torch.randn(20))

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        user = self.ec(features)["items"].to_padded_dense(4).mean(dim=1)
        weight: Any = self.ec.embeddings["items"].weight
        return functional.linear(user, weight, self.bias) / weight.norm(dim=1)


@pytest.mark.parametrize("make", [Unused, UnusedInRoot, Empty, EmptyAndUnused, Tied, TiedSequences])
def test_tables_and_how_they_are_read(tmp_path: Path, make: Callable[[], nn.Module]) -> None:
    model = make().eval()
    options = {"defaults": ("mask",)} if make is UnusedInRoot else {}
    report, artifact = exported(model, tmp_path / "artifact", data_type=DataType.FP32, **options)
    signature = artifact.manifest.signature
    batch = batch_of(signature, 7)
    assert_close(artifact.forward(*batch.inputs()), predicted(model, arguments(signature, batch)))
    left = "tables of aux, more.ec are left out: forward looks nothing up in them"
    assert report.notes == ((left,) if isinstance(model, Unused) else ())
    assert not any(table.name.startswith(("aux", "more")) for table in report.tables)


@pytest.mark.parametrize("kind", [Unused, Tied])
def test_deltas(tmp_path: Path, kind: type[Unused | Tied]) -> None:
    old, new = kind(), kind()
    with torch.no_grad():
        new.ebc.embedding_bags["u"].weight[3] += 1
        new.over.bias += 1
    check(old, new, tmp_path, ExportConfig(data_type=DataType.FP32))


class NothingRead(Base):
    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        return features.lengths().float().view(2, -1).T


class NoneBesides(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = Base()

    def forward(self, features: KeyedJaggedTensor) -> tuple[Tensor, None]:
        return self.base(features), None


class LossBesides(NoneBesides):
    def forward(self, features: KeyedJaggedTensor) -> Any:
        found = self.base(features)
        return {"score": found, "rank": found[:, 0], "loss": found.mean()}


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items, self.over = nn.Embedding(50, 8), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.over(x)
        return found


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (NothingRead, r"collection 'ebc': no KeyedJaggedTensor argument of forward reaches it"),
        (NoneBesides, r"outputs\['output_1'\]: got NoneType.*keep the others: --outputs output_0$"),
        (LossBesides, r"outputs\['loss'\]: got shape \[\].*keep the others: --outputs score,rank\."),
        (Plain, r"inputs: Plain is a model of plain PyTorch.*def example_inputs\(\): return"),
        (lambda: nn.Linear(3, 1), r"holds no recsys.*A model without tables has nothing to quantize"),
    ],
)
def test_what_cannot_be_served_says_what_to_do(
    tmp_path: Path, make: Callable[[], nn.Module], message: str
) -> None:
    with pytest.raises(ExportError, match=message):
        export_model(make(), tmp_path / "artifact")


@pytest.mark.parametrize(("make", "outputs"), [(NoneBesides, ["output_0"]), (LossBesides, ["rank", "score"])])
def test_the_cure_of_outputs_works(tmp_path: Path, make: Callable[[], nn.Module], outputs: list[str]) -> None:
    report = export_model(make(), tmp_path / "artifact", ExportConfig(outputs=tuple(outputs)))
    assert sorted(report.differences["cpu"]) == outputs
