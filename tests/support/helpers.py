"""Random collections, plans and batches; how far two right answers can lie apart; collections as scripted graphs.

Shape letters: B batch, F features, N number of IDs.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from recsys import (
    DataType,
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    KeyedJaggedTensor,
    PoolingType,
)
from recsys.configs import BaseEmbeddingConfig
from recsys.quant import QuantEmbeddingBagCollection, QuantEmbeddingCollection
from recsys.scripting.torchscript import script
from recsys.sharding.plan.plan import ParameterSharding
from recsys.sharding.plan.sharding_types import COLUMN_MULTIPLE, column_wise, row_wise, table_wise

STORED_TYPES = (DataType.FP32, DataType.FP16, DataType.INT8, DataType.INT4, DataType.INT2)

needs_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; this machine has none"),
]


def bag(name: str, rows: int, dim: int, features: Sequence[str], pooling: str = "SUM") -> EmbeddingBagConfig:
    """A pooled table in one line."""
    return EmbeddingBagConfig(
        name=name,
        num_embeddings=rows,
        embedding_dim=dim,
        feature_names=list(features),
        pooling=PoolingType(pooling),
    )


def sequence(name: str, rows: int, dim: int, features: Sequence[str]) -> EmbeddingConfig:
    """A table of single rows in one line."""
    return EmbeddingConfig(name=name, num_embeddings=rows, embedding_dim=dim, feature_names=list(features))


def kjt_of(
    features: Mapping[str, Sequence[Sequence[int]]], weights: Sequence[float] | None = None
) -> KeyedJaggedTensor:
    """A batch from each feature's bags, as one writes them down."""
    return KeyedJaggedTensor(
        list(features),
        values=[i for bags in features.values() for ids in bags for i in ids],
        lengths=[len(ids) for bags in features.values() for ids in bags],
        weights=weights,
    )


@dataclass(frozen=True, kw_only=True)
class Case:
    """A random collection, what its rows become, how they are cut, and batches."""

    sequence: bool
    weighted: bool
    world_size: int
    tables: list[Any]
    data_types: dict[str, DataType]
    plan: dict[str, ParameterSharding]
    keys: list[str]
    id_limits: dict[str, int]

    def float_collection(self) -> EmbeddingBagCollection | EmbeddingCollection:
        """With rows of a normal distribution, of a different scale for each table."""
        made = (
            EmbeddingCollection(self.tables)
            if self.sequence
            else EmbeddingBagCollection(self.tables, is_weighted=self.weighted)
        )
        for i, weight in enumerate(made.parameters()):
            nn.init.normal_(weight, std=0.1 * 2.0**i)
        return made

    def quantized(self) -> QuantEmbeddingBagCollection | QuantEmbeddingCollection:
        """Quantize ``float_collection``."""
        made = self.float_collection()
        if isinstance(made, EmbeddingCollection):
            return QuantEmbeddingCollection.from_float(made, table_data_types=self.data_types)
        return QuantEmbeddingBagCollection.from_float(made, table_data_types=self.data_types)

    def batch(self, rng: random.Random, num_rows: int) -> KeyedJaggedTensor:
        """B bags of 0 to 5 IDs for each key."""
        bags = {
            key: [
                [rng.randrange(self.id_limits[key]) for _ in range(rng.choice([0, 0, 1, 2, 5]))]
                for _ in range(num_rows)
            ]
            for key in self.keys
        }
        num_ids = sum(len(ids) for rows in bags.values() for ids in rows)
        return kjt_of(bags, [rng.random() for _ in range(num_ids)] if self.weighted else None)


def random_case(rng: random.Random) -> Case:
    """Tables share features, features share tables; odd widths; every type and way to cut."""
    of_rows = rng.random() < 0.4
    weighted = not of_rows and rng.random() < 0.4
    features = [f"f{i}" for i in range(rng.randint(1, 5))]
    same_dim = rng.choice([7, 8, 16, 20, 64])
    tables: list[BaseEmbeddingConfig] = []
    for i in range(rng.randint(1, 5)):
        rows, chosen = rng.choice([1, 7, 100]), rng.sample(features, rng.randint(1, len(features)))
        if of_rows:
            tables.append(sequence(f"t{i}", rows, same_dim, chosen))
        else:
            dim = rng.choice([1, 3, 8, 10, 16, 63, 64])
            tables.append(bag(f"t{i}", rows, dim, chosen, rng.choice(["SUM", "MEAN"])))
    world_size = rng.randint(1, 3)
    used = sorted({feature for table in tables for feature in table.feature_names})
    limits = {f: min(t.num_embeddings for t in tables if f in t.feature_names) for f in used}
    keys = [*used, "of no table"]
    rng.shuffle(keys)
    return Case(
        sequence=of_rows,
        weighted=weighted,
        world_size=world_size,
        tables=tables,
        data_types={t.name: rng.choice(STORED_TYPES) for t in tables},
        plan=random_plan(rng, tables, world_size),
        keys=keys,
        id_limits={**limits, "of no table": 5},
    )


def random_plan(
    rng: random.Random, tables: Sequence[BaseEmbeddingConfig], world_size: int
) -> dict[str, ParameterSharding]:
    """Any cut for each table, its ranks in any order."""
    plan = {}
    for table in tables:
        ranks = rng.sample(range(world_size), world_size)
        kind = rng.choice(["table", "column", "row"])
        if kind == "column":
            most = min(world_size, max(table.embedding_dim // COLUMN_MULTIPLE, 1))
            plan[table.name] = column_wise(table, ranks[: rng.randint(1, most)])
        elif kind == "row":
            most = min(world_size, table.num_embeddings)
            plan[table.name] = row_wise(table, ranks[: rng.randint(1, most)])
        else:
            plan[table.name] = table_wise(table, ranks[0])
    return plan


def rounding(collection: nn.Module, batch: KeyedJaggedTensor) -> float:
    """How far apart two float32 sums of the same rows in another order can lie.

    Each of the at most n addends of a bag is off by a few units in the last place of the largest number.
    """
    largest = max((float(w.detach().abs().max()) for w in collection.parameters()), default=0.0)
    most_ids = int(batch.lengths().max()) if batch.lengths().numel() else 0
    weights = batch.weights_or_none()
    heaviest = float(weights.max()) if weights is not None and weights.numel() else 1.0
    return 8 * torch.finfo(torch.float32).eps * max(most_ids, 1) * largest * max(heaviest, 1.0)


def outputs_of(found: Any) -> dict[str, Tensor]:
    """A collection's answer by name, pooled or not."""
    if isinstance(found, dict):
        return {name: jagged.values() for name, jagged in found.items()}
    named: dict[str, Tensor] = found.to_dict()
    return named


class OfTensors(nn.Module):
    """A collection behind plain tensors, as an exported model has it."""

    def __init__(self, collection: nn.Module, keys: Sequence[str], weighted: bool) -> None:
        super().__init__()
        self.collection = collection
        self.keys = list(keys)
        self.weighted = weighted

    # No annotations: as texts, FX would hand them on to TorchScript, which cannot read them.
    def forward(self, lengths, values, weights):  # type: ignore[no-untyped-def]
        """Key-major lengths ``[F * B]``, values and weights ``[N]``."""
        batch = KeyedJaggedTensor(
            self.keys, values, lengths=lengths, weights=weights if self.weighted else None
        )
        return outputs_of(self.collection(batch))


class CollectionTracer(fx.Tracer):
    """Goes through everything of ours."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Only torch's own layers are leaves."""
        del module_qualified_name
        containers = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
        return m.__module__.startswith("torch.nn") and not isinstance(m, containers)


def traced(collection: nn.Module, keys: Sequence[str], *, weighted: bool = False) -> fx.GraphModule:
    """A collection as a graph of plain tensors."""
    tracer = CollectionTracer()
    graph = tracer.trace(OfTensors(collection, keys, weighted))
    return fx.GraphModule(tracer.root, graph)


def scripted(collection: nn.Module, keys: Sequence[str], *, weighted: bool = False) -> torch.jit.ScriptModule:
    """A collection as TorchScript."""
    return script(traced(collection, keys, weighted=weighted))
