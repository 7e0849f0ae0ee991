"""An artifact whose graphs are there in TorchScript and compiled; compiling takes some ten seconds."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from export.artifact.compiling import DEFAULT_ISA, check_compiler
from export.config import ExportConfig
from export.pipeline import export_model
from recsys import EmbeddingBagCollection, EmbeddingCollection, KeyedJaggedTensor
from recsys.errors import ExportError
from recsys.managed import LRU_EvictionPolicy, ManagedCollisionCollection, MCHManagedCollisionModule
from recsys.managed.embedding import ManagedCollisionEmbeddingBagCollection
from recsys.signature import IdPolicy
from tests.recsys.artifact.damage import lie
from tests.support.helpers import bag, sequence


def _why_not() -> str:
    try:
        check_compiler(DEFAULT_ISA)
    except ExportError as error:
        return str(error)
    return ""


needs_compiler = pytest.mark.skipif(bool(_why_not()), reason=_why_not())
CONTEXT = ("user", "age")
KNOWN_IDS = (-(2**63), -7, 0, 10, 2**40, 2**63 - 1)


class EveryKind(nn.Module):
    """Weighted, pooled, unpooled and managed tables, of every policy, and layers with one number and with many."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.plain = EmbeddingBagCollection(
            [bag("users", 50, 16, ["user"]), bag("goods", 30, 24, ["good", "last"], "MEAN")]
        )
        self.scored = EmbeddingBagCollection([bag("tags", 20, 8, ["tag"])], is_weighted=True)
        self.history = EmbeddingCollection([sequence("clicks", 40, 8, ["clicked"])])
        tables = [bag("raw", 10, 8, ["raw"])]
        known = MCHManagedCollisionModule(10, None, LRU_EvictionPolicy(), 1)
        known.train()(torch.tensor(KNOWN_IDS))
        self.managed = ManagedCollisionEmbeddingBagCollection(
            EmbeddingBagCollection(tables),
            ManagedCollisionCollection({"raw": known}, tables).eval(),
            embeddings_only=True,
        )
        self.layers = nn.Sequential(nn.Linear(64 + 8 + 8 + 8 + 3, 16), nn.ReLU(), nn.Linear(16, 6))
        self.temperature = nn.Parameter(torch.tensor([2.0]))

    def forward(
        self,
        age: Tensor,
        price: Tensor,
        plain: KeyedJaggedTensor,
        scored: KeyedJaggedTensor,
        history: KeyedJaggedTensor,
        managed: KeyedJaggedTensor,
    ) -> dict[str, Tensor]:
        clicked = self.history(history)["clicked"].to_padded_dense(4).sum(dim=1)
        pooled = [self.plain(plain).values(), self.scored(scored).values(), self.managed(managed)["raw"]]
        found = self.layers(torch.cat([age, price, clicked, *pooled], dim=1)) / self.temperature
        return {"score": found[:, 0].sigmoid(), "vectors": found[:, 2:].reshape(-1, 2, 2)}


def every_kind(path: Path, **options: Any) -> None:
    """Export the model, compiled too unless ``graph_format`` says otherwise."""
    chosen = {
        "name": "every",
        "dense_widths": {"age": 1, "price": 2},
        "table_id_policies": {"users": IdPolicy.HASH, "goods": IdPolicy.ZERO, "clicks": IdPolicy.FMIX64},
        "context": CONTEXT,
        "graph_format": "both",
        **options,
    }
    export_model(EveryKind().eval(), path, ExportConfig(**chosen))


def without_torchscript(both: Path, path: Path) -> Path:
    """Copy an artifact of both formats as ``--format pt2`` would have written it."""
    shutil.copytree(both, path)

    def drop(data: Any) -> None:
        data["format_version"] = 2
        dropped = set()
        for target in data["targets"]:
            for graph in (target, *([target["ranking"]] if "ranking" in target else [])):
                dropped.add(graph["skeleton"])
                graph |= {"skeleton": None, "rows": {}, "ranks": {}}
        data["skeletons"] = [part for part in data["skeletons"] if part["path"] not in dropped]
        for name in dropped:
            (path / name).unlink()

    lie(path, drop)
    return path
