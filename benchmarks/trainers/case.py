"""The tables, plans, weights and batches that both sides of the training comparison get.

Shape letters: B batch of one rank, D embedding dim, F features, N number of IDs, R rows, W world size.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import Tensor, nn

from recsys.configs import EmbeddingBagConfig
from recsys.sharding.plan.plan import ParameterSharding
from recsys.sharding.plan.sharding_types import column_wise, row_wise, table_wise

EMBEDDING_DIM = 64
NUM_DENSE = 13
DENSE_LAYERS = (512, 256, EMBEDDING_DIM)
OVER_LAYERS = (512, 256, 1)
#: Where a DLRM keeps its tables, in ours and in TorchRec's.
DLRM_PATH = "sparse_arch.embedding_bag_collection"
LEARNING_RATE = 0.02
#: TorchRec's keys and ours.
FUSED_PARAMS = {
    "optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    "learning_rate": LEARNING_RATE,
    "eps": 1e-8,
}
#: The batches of each rank that are used in rotation.
NUM_BATCHES = 16
_WEIGHT_STD = 0.25


@dataclass(frozen=True, kw_only=True)
class TrainingCase:
    """What is trained.

    Attributes:
        sharding_type: of all tables: ``table_wise``, ``row_wise`` or ``column_wise``.
        ids_per_bag: smallest and largest number of IDs in a bag; uniform between them.
        dlrm: a whole DLRM with its dense layers, not the tables alone.
        num_tables: F; each has one feature.
        num_rows: R of every table.
        batch_size: B.
    """

    sharding_type: str
    ids_per_bag: tuple[int, int] = (1, 10)
    dlrm: bool = False
    num_tables: int = 26
    num_rows: int = 100_000
    batch_size: int = 1024

    @property
    def path(self) -> str:
        """Where the collection lies in the model that is sharded."""
        return DLRM_PATH if self.dlrm else ""

    @property
    def feature_names(self) -> list[str]:
        """One for each table."""
        return [f"feature_{i}" for i in range(self.num_tables)]

    def tables(self) -> list[EmbeddingBagConfig]:
        """Pooled by sum."""
        return [
            EmbeddingBagConfig(
                name=f"table_{i}",
                num_embeddings=self.num_rows,
                embedding_dim=EMBEDDING_DIM,
                feature_names=[feature],
            )
            for i, feature in enumerate(self.feature_names)
        ]

    def plan(self, world_size: int) -> dict[str, ParameterSharding]:
        """Whole tables go round the ranks; rows and columns are cut into one part for each rank."""
        return {
            table.name: PLANS[self.sharding_type](table, i, world_size)
            for i, table in enumerate(self.tables())
        }


PLANS: Mapping[str, Callable[[EmbeddingBagConfig, int, int], ParameterSharding]] = {
    "table_wise": lambda table, number, world_size: table_wise(table, number % world_size),
    "row_wise": lambda table, _, world_size: row_wise(table, range(world_size)),
    "column_wise": lambda table, _, world_size: column_wise(table, range(world_size)),
}


@dataclass(frozen=True)
class TrainingBatch:
    """A rank's batch as plain tensors, the way a data loader gives it.

    Attributes:
        lengths: int64 ``[F * B]``, key-major.
        values: int64 ``[N]``, uniform over the rows.
        gradient: float32 ``[B, F * D]``: of a loss that is linear in the pooled embeddings.
        dense: float32 ``[B, 13]``.
        labels: float32 ``[B]``, 0 or 1.
    """

    lengths: Tensor
    values: Tensor
    gradient: Tensor
    dense: Tensor
    labels: Tensor


def batches(case: TrainingCase, rank: int) -> list[TrainingBatch]:
    """Different ones for each rank."""
    generator = torch.Generator().manual_seed(1 + rank)
    size, (low, high) = case.batch_size, case.ids_per_bag
    # A gradient has the size of the output: one for all batches, so that it stays as warm as a loss would leave it.
    gradient = torch.randn(size, case.num_tables * EMBEDDING_DIM, generator=generator) / size
    made = []
    for _ in range(NUM_BATCHES):
        lengths = torch.randint(low, high + 1, (case.num_tables * size,), generator=generator)
        made.append(
            TrainingBatch(
                lengths=lengths,
                values=torch.randint(case.num_rows, (int(lengths.sum()),), generator=generator),
                gradient=gradient,
                dense=torch.randn(size, NUM_DENSE, generator=generator),
                labels=torch.randint(2, (size,), generator=generator).float(),
            )
        )
    return made


class Side:
    """One side of the comparison, on one rank: a sharded model that a step trains.

    Args:
        model: a ``DistributedModelParallel``, ours or TorchRec's; its tables are updated in the backward pass.
        kjt: the class of its batches.
        case: what is trained.
    """

    def __init__(self, model: Any, kjt: type, case: TrainingCase) -> None:
        self.model = model
        self._kjt = kjt
        self._keys = case.feature_names
        dense = [p for name, p in model.named_parameters() if "embedding_bags" not in name.split(".")]
        self._dense_optimizer = torch.optim.SGD(dense, lr=LEARNING_RATE) if case.dlrm else None
        self._columns = torch.arange(case.num_tables * EMBEDDING_DIM)

    def prepared(self, batches: Sequence[TrainingBatch]) -> list[TrainingBatch]:
        """The same batches for this side: TorchRec gives features rank by rank, so gradients follow its order."""
        if self._dense_optimizer is not None:
            return list(batches)
        keys = self.model(self._features(batches[0])).keys()
        columns = self._columns.view(-1, EMBEDDING_DIM)
        self._columns = torch.cat([columns[self._keys.index(key)] for key in keys])
        gradient = batches[0].gradient.index_select(1, self._columns)
        return [replace(batch, gradient=gradient) for batch in batches]

    def in_order(self, output: Tensor) -> Tensor:
        """A step's output with the features in the order of the case."""
        return output if self._dense_optimizer is not None else output[:, self._columns.argsort()]

    def _features(self, batch: TrainingBatch) -> Any:
        return self._kjt(keys=self._keys, values=batch.values, lengths=batch.lengths)

    def step(self, batch: TrainingBatch) -> Tensor:
        """Forward, backward and update: pooled embeddings ``[B, F * D]``, or logits ``[B, 1]``."""
        features = self._features(batch)
        if self._dense_optimizer is None:
            pooled: Tensor = self.model(features).values()
            pooled.backward(batch.gradient)
            return pooled.detach()
        self._dense_optimizer.zero_grad()
        logits: Tensor = self.model(batch.dense, features)
        nn.functional.binary_cross_entropy_with_logits(logits.squeeze(1), batch.labels).backward()
        self._dense_optimizer.step()
        return logits.detach()

    def local_weights(self) -> dict[str, Tensor]:
        """The weights that this rank holds, by ``shard_name`` or name: the very memory that is trained."""
        found = {}
        for name, value in self.model.state_dict().items():
            if not hasattr(value, "local_shards"):
                found[name] = value
                continue
            for shard in value.local_shards():
                row, column = shard.metadata.shard_offsets
                found[shard_name(name, (row, column))] = shard.tensor.detach()
        return found


def initialize(weights: Mapping[str, Tensor], case: TrainingCase) -> None:
    """Initialize local weights by name, independently of the rank that holds them.

    Args:
        weights: by ``shard_name``, or a parameter's own name where every rank holds all of it.
        case: says how large whole tables are.
    """
    for name, weight in weights.items():
        parameter, _, corner = name.partition("@")
        generator = torch.Generator().manual_seed(zlib.crc32(parameter.encode()))
        if corner:
            row, column = (int(number) for number in corner.split(","))
            table = torch.randn(case.num_rows, EMBEDDING_DIM, generator=generator).mul_(_WEIGHT_STD)
            value = table[row : row + weight.size(0), column : column + weight.size(1)]
        else:
            value = torch.randn(weight.shape, generator=generator) / weight.size(-1) ** 0.5
        with torch.no_grad():
            weight.copy_(value)


def shard_name(parameter: str, offsets: tuple[int, int]) -> str:
    """A shard's name: its parameter's and its first row and column."""
    return f"{parameter}@{offsets[0]},{offsets[1]}"
