"""Random tables, plans and batches for the ranks of a process group; every process draws the same from one name.

Shape letters: B batch, D embedding dimension, N number of IDs, R rows, W world size.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from recsys import (
    DataType,
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    KeyedJaggedTensor,
    ParameterSharding,
    PoolingType,
    ShardMetadata,
)
from recsys.configs import BaseEmbeddingConfig
from recsys.jagged.dedup import deduplicate
from recsys.sharding.plan.sharding_types import (
    COLUMN_MULTIPLE,
    column_wise,
    data_parallel,
    grid,
    row_wise,
    table_row_wise,
    table_wise,
)
from tests.support.helpers import bag, kjt_of, sequence

#: Beside the six types, rectangles cut by hand: uneven, on any ranks, several on one.
KINDS = ("data_parallel", "table", "column", "row", "table_row", "grid", "by hand")
_BATCH_SIZES = (0, 1, 2, 5)
_BAG_SIZES = (0, 0, 1, 2, 4)
_COLUMNS = 4  # the fused kernel's multiple


@dataclass(frozen=True, kw_only=True)
class Draw:
    """From what a case is drawn.

    Attributes:
        world_size: W; 1 runs in a group of one among two ranks.
        sequence: single rows, not pooled.
        data_types: of the tables.
        kernels: of tables that are not data-parallel.
        num_steps: batches per rank.
        deduplicated: whether batches come with equal bags stored once: on all ranks, some of them, or none.
    """

    world_size: int
    sequence: bool = False
    data_types: tuple[DataType, ...] = (DataType.FP32,)
    kernels: tuple[str, ...] = ("fused", "dense")
    num_steps: int = 2
    deduplicated: str = "none"


@dataclass(frozen=True, kw_only=True)
class RankCase:
    """A collection, how it is sharded, and each rank's batches.

    Attributes:
        name: seeds all that is drawn later.
        draw: from what it was drawn.
        local_world_size: ranks per simulated host.
        weighted: whether every ID comes with a weight.
        tables: configs.
        plan: for each table.
        batch_sizes: for each step and rank.
        id_limits: feature -> first ID that one of its tables lacks.
        deduplicated: for each rank, whether its batches store equal bags once.
    """

    name: str
    draw: Draw
    local_world_size: int
    weighted: bool
    tables: list[Any]
    plan: Mapping[str, ParameterSharding]
    batch_sizes: list[list[int]]
    id_limits: dict[str, int]
    deduplicated: list[bool]

    def collection(self, tables: Sequence[Any] | None = None) -> EmbeddingBagCollection | EmbeddingCollection:
        """The float collection; every table of the same numbers wherever it is made.

        Args:
            tables: instead of the case's, with the same names and sizes.
        """
        tables = self.tables if tables is None else tables
        made = (
            EmbeddingCollection(tables)
            if self.draw.sequence
            else EmbeddingBagCollection(tables, is_weighted=self.weighted)
        )
        for name, weight in made.named_parameters():
            with torch.no_grad():
                weight.copy_(torch.randn(weight.shape, generator=generator(f"{self.name} {name}")))
        return made

    def batch(self, step: int, rank: int) -> KeyedJaggedTensor:
        """A rank's batch; IDs repeat within bags, and the order of the keys is the rank's own."""
        rng = random.Random(f"{self.name} batch {step} {rank}")
        keys = list(self.id_limits)
        rng.shuffle(keys)
        num_bags = self.batch_sizes[step][rank]
        bags = {key: [self._bag(rng, key) for _ in range(num_bags)] for key in keys}
        if self.deduplicated[rank]:
            bags = {key: [rng.choice(found[:2]) for _ in found] for key, found in bags.items()}
        num_ids = sum(len(ids) for found in bags.values() for ids in found)
        weights = None
        if self.weighted:
            # Few different numbers where bags are to be equal: those with other weights are not.
            few = any(self.deduplicated)
            weights = [rng.choice([0.5, 1.5]) if few else rng.random() for _ in range(num_ids)]
        return kjt_of(bags, weights)

    def batch_to_shard(self, step: int, rank: int) -> KeyedJaggedTensor:
        """The same batch as the sharded collection gets it."""
        whole = self.batch(step, rank)
        return deduplicate(whole) if self.deduplicated[rank] else whole

    def _bag(self, rng: random.Random, key: str) -> list[int]:
        return [rng.randrange(self.id_limits[key]) for _ in range(rng.choice(_BAG_SIZES))]

    def loss(self, outputs: Mapping[str, Tensor], step: int, rank: int, *, absolute: bool = False) -> Tensor:
        """Outputs by name, times random numbers of their own; ``absolute``: times the numbers' absolute values."""
        parts = []
        for name, output in outputs.items():
            upstream = torch.randn(output.shape, generator=generator(f"{self.name} {step} {rank} {name}"))
            parts.append((output * (upstream.abs() if absolute else upstream)).sum())
        return torch.stack(parts).sum()

    def column_blocks(self, table: BaseEmbeddingConfig) -> list[tuple[int, int]]:
        """Columns with an optimizer state of their own."""
        blocks = {shard.columns for shard in self.plan[table.name].shards}
        return sorted(blocks) or [(0, table.embedding_dim)]


def generator(name: str) -> torch.Generator:
    """The same numbers for the same name in every process."""
    return torch.Generator().manual_seed(zlib.crc32(name.encode()))


def random_case(name: str, draw: Draw) -> RankCase:
    """Tables share features, features share tables; every type and way to cut; ranks of any batch size."""
    rng = random.Random(name)
    features = [f"f{i}" for i in range(rng.randint(1, 4))]
    local_world_size = rng.choice([n for n in (1, 2, 4) if draw.world_size % n == 0])
    same_dim = rng.choice([4, 8, 16, 24])
    tables: list[BaseEmbeddingConfig] = []
    plan = {}
    for i in range(rng.randint(1, 4)):
        kernel = rng.choice(draw.kernels)
        data_type = rng.choice([t for t in draw.data_types if kernel == "dense" or t is not DataType.BF16])
        dims = [4, 8, 12, 16, 32] if kernel == "fused" else [1, 3, 8, 16, 20]
        common = {
            "name": f"t{i}",
            "num_embeddings": rng.choice([1, 3, 7, 40]),
            "embedding_dim": same_dim if draw.sequence else rng.choice(dims),
            "feature_names": rng.sample(features, rng.randint(1, len(features))),
            "data_type": data_type,
        }
        pooling = rng.choice([PoolingType.SUM, PoolingType.MEAN])
        table = EmbeddingConfig(**common) if draw.sequence else EmbeddingBagConfig(**common, pooling=pooling)
        tables.append(table)
        plan[table.name] = random_sharding(rng, table, draw.world_size, local_world_size, kernel)
    used = sorted({feature for table in tables for feature in table.feature_names})
    limits = {f: min(t.num_embeddings for t in tables if f in t.feature_names) for f in used}
    sizes = [[rng.choice(_BATCH_SIZES) for _ in range(draw.world_size)] for _ in range(draw.num_steps)]
    ranks = range(draw.world_size)
    deduplicated = {"none": lambda: False, "all": lambda: True, "some": lambda: rng.random() < 0.5}
    return RankCase(
        name=name,
        draw=draw,
        local_world_size=local_world_size,
        weighted=not draw.sequence and rng.random() < 0.4,
        tables=tables,
        plan=plan,
        batch_sizes=sizes,
        id_limits={**limits, "of no table": 9},
        deduplicated=[deduplicated[draw.deduplicated]() for _ in ranks],
    )


def case_of_every_type(name: str, draw: Draw, local_world_size: int | None = None) -> RankCase:
    """A table for each type, trained by the first of the draw's kernels; every rank has a batch."""
    world_size = draw.world_size
    local = local_world_size or world_size
    everywhere = range(world_size)
    cuts: dict[str, Callable[[BaseEmbeddingConfig], ParameterSharding]] = {
        "copied": data_parallel,
        "whole": lambda table: table_wise(table, world_size - 1),
        "by_columns": lambda table: column_wise(table, everywhere),
        "by_rows": lambda table: row_wise(table, everywhere),
        "in_host": lambda table: table_row_wise(table, 0, local),
        "in_grid": lambda table: grid(table, range(world_size // local), local),
    }
    tables, plan = [], {}
    for i, (kind, cut) in enumerate(cuts.items()):
        features = [f"f{i % 3}", f"f{(i + 1) % 3}"]
        pooling = "MEAN" if i % 2 else "SUM"
        size = (kind, 11, 32, features)
        table = sequence(*size) if draw.sequence else bag(*size, pooling)
        sharding = cut(table)
        tables.append(replace(table, data_type=draw.data_types[0]))
        plan[kind] = sharding if kind == "copied" else sharding.with_kernel(draw.kernels[0])
    return RankCase(
        name=name,
        draw=draw,
        local_world_size=local,
        weighted=False,
        tables=tables,
        plan=plan,
        batch_sizes=[[3 + rank for rank in everywhere] for _ in range(draw.num_steps)],
        id_limits={f"f{i}": 11 for i in range(3)},
        deduplicated=[False for _ in everywhere],
    )


def random_sharding(
    rng: random.Random, table: BaseEmbeddingConfig, world_size: int, local_world_size: int, kernel: str
) -> ParameterSharding:
    """One of the kinds that the table is large enough for; ranks in any order, some more than once."""
    num_rows = table.num_embeddings
    num_hosts = world_size // local_world_size
    most_columns = max(table.embedding_dim // COLUMN_MULTIPLE, 1)
    kinds = [k for k in KINDS if num_rows >= local_world_size or k not in ("table_row", "grid")]
    kind = rng.choice(kinds)
    if kind == "data_parallel":
        return data_parallel(table)
    if kind == "column":
        made = column_wise(table, rng.choices(range(world_size), k=rng.randint(1, most_columns)))
    elif kind == "row":
        made = row_wise(
            table, rng.choices(range(world_size), k=rng.randint(1, min(num_rows, world_size + 1)))
        )
    elif kind == "table_row":
        made = table_row_wise(table, rng.randrange(num_hosts), local_world_size)
    elif kind == "grid":
        hosts = rng.sample(range(num_hosts), rng.randint(1, min(num_hosts, most_columns)))
        made = grid(table, hosts, local_world_size)
    elif kind == "by hand":
        made = _cut_by_hand(rng, table, world_size)
    else:
        made = table_wise(table, rng.randrange(world_size))
    return made.with_kernel(kernel)


def _cut_by_hand(rng: random.Random, table: BaseEmbeddingConfig, world_size: int) -> ParameterSharding:
    """Columns at any multiple of 4, each block's rows anywhere."""
    shards = []
    for start, end in _random_parts(rng, table.embedding_dim, _COLUMNS):
        for first, last in _random_parts(rng, table.num_embeddings, 1):
            shards.append(
                ShardMetadata(
                    shard_offsets=(first, start),
                    shard_sizes=(last - first, end - start),
                    rank=rng.randrange(world_size),
                )
            )
    rng.shuffle(shards)
    return ParameterSharding(sharding_type="grid_shard", shards=tuple(shards))


def _random_parts(rng: random.Random, size: int, multiple: int) -> list[tuple[int, int]]:
    inner = range(multiple, size, multiple)
    cuts = sorted(rng.sample(inner, rng.randint(0, min(3, len(inner)))))
    bounds = [0, *cuts, size]
    return list(pairwise(bounds))


def named_outputs(found: Any) -> dict[str, Tensor]:
    """A collection's answer by name, pooled or not, waited for."""
    waited = found.wait() if hasattr(found, "wait") else found
    if isinstance(waited, dict):
        return {name: jagged.values() for name, jagged in waited.items()}
    named: dict[str, Tensor] = waited.to_dict()
    return named


def float32_twin(case: RankCase) -> nn.Module:
    """The collection in float32, of the same numbers as its tables hold."""
    held = case.collection()
    twin = case.collection([replace(table, data_type=DataType.FP32) for table in case.tables])
    twin.load_state_dict({name: tensor.float() for name, tensor in held.state_dict().items()})
    return twin
