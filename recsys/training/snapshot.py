"""A copy of what has changed in a model over ranks, on rank 0.

Shape letters: D embedding dimension, N number of rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed._shard.sharded_tensor.api import ShardedTensor

from recsys.embedding import EmbeddingBagCollection, EmbeddingCollection, FloatCollection
from recsys.model_parallel import DistributedModelParallel, get_unwrapped_module
from recsys.quant import float_weights
from recsys.sharding.plan.device_rows import table_path
from recsys.sharding.sharded import ShardedCollection
from recsys.sharding.table_shards import TableShards


class Snapshots:
    """Copies rows and dense weights of a model to the host memory of rank 0.

    Args:
        model: The model; on several ranks, a ``DistributedModelParallel``.

    Attributes:
        group: The ranks; None for a model of one process.
        rank: This rank.
        world_size: The number of ranks.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.group = model.env.process_group if isinstance(model, DistributedModelParallel) else None
        self._device = model.device if isinstance(model, DistributedModelParallel) else torch.device("cpu")
        self.rank = 0 if self.group is None else dist.get_rank(self.group)
        self.world_size = 1 if self.group is None else dist.get_world_size(self.group)
        self._sharded: dict[str, TableShards] = {}
        self._unsharded: dict[str, tuple[FloatCollection, str]] = {}
        self._names: set[str] = set()
        for path, part in get_unwrapped_module(model).named_modules():
            if isinstance(part, ShardedCollection):
                self._sharded |= {
                    table_path(path, name): table for name, table in part.trained_tables.items()
                }
                kind = "embedding_bags" if hasattr(part, "embedding_bags") else "embeddings"
                names = list(part.trained_tables)
            elif isinstance(part, (EmbeddingBagCollection, EmbeddingCollection)):
                names = list(float_weights(part))
                self._unsharded |= {table_path(path, name): (part, name) for name in names}
                kind = "embedding_bags" if isinstance(part, EmbeddingBagCollection) else "embeddings"
            else:
                continue
            self._names |= {f"{table_path(path, kind)}.{name}.weight" for name in names}

    @property
    def sizes(self) -> dict[str, tuple[int, int]]:
        """R and D of each table."""
        return {
            **{name: table.size for name, table in self._sharded.items()},
            **{
                name: tuple(float_weights(part)[table].shape)  # type: ignore[misc]
                for name, (part, table) in self._unsharded.items()
            },
        }

    def flush(self) -> None:
        """Write rows that lookups cache on devices back; call it between the last step and ``rows``."""
        lookups = {id(one): one for table in self._sharded.values() for one in table.fused_lookups()}
        for lookup in lookups.values():
            lookup.flush()

    @torch.no_grad()
    def rows(self, table: str, numbers: Tensor) -> Tensor | None:
        """Return rows ``[N, D]`` float32 on rank 0, None on others. Every rank must call it, with the same rows.

        Args:
            table: The table's path.
            numbers: ``[N]`` int64, ascending rows of the whole table.
        """
        if table in self._unsharded:
            part, name = self._unsharded[table]
            weight = float_weights(part)[name]
            return weight.detach()[numbers.to(weight.device)].to("cpu", torch.float32)
        shards = self._sharded[table]
        if shards.sharding.is_replicated:
            if self.rank:
                return None
            weight = shards.local_weights()[0][1]
            return weight[numbers.to(weight.device)].to("cpu", torch.float32)
        return self._gathered(shards, numbers)

    def _gathered(self, table: TableShards, numbers: Tensor) -> Tensor | None:
        local = dict(table.local_weights())
        whole = torch.empty(len(numbers), table.size[1]) if self.rank == 0 else None
        # The same order on all ranks: messages between two ranks arrive in the order in which they are sent.
        for shard in table.sharding.shards:
            (first, end), (left, right) = shard.rows, shard.columns
            start, stop = torch.searchsorted(numbers, torch.tensor([first, end])).tolist()
            if start == stop or self.rank not in (0, shard.rank):
                continue
            if self.rank == shard.rank:
                weight = local[shard]
                rows = weight[(numbers[start:stop] - first).to(weight.device)].float()
            else:
                rows = torch.empty(stop - start, right - left, device=self._device)
            if shard.rank:
                if whole is None:
                    dist.send(rows, group=self.group, group_dst=0)
                else:
                    dist.recv(rows, group=self.group, group_src=shard.rank)
            if whole is not None:
                whole[start:stop, left:right] = rows.cpu()
        return whole

    @torch.no_grad()
    def dense(self, without: Collection[str] = ()) -> dict[str, Tensor]:
        """Return a copy of the state dict without tables, in host memory. Every rank must call it.

        Args:
            without: Names that are left out.
        """
        state: Mapping[str, Tensor] = self._model.state_dict()
        found = {}
        for name, tensor in state.items():
            if name in self._names or name in without:
                continue
            if isinstance(tensor, ShardedTensor):  # of a mapping of raw IDs
                assert self.group is not None
                whole = gathered(tensor, self.group, self._device)
                if whole is not None:
                    found[name] = whole
            elif self.rank == 0:
                found[name] = tensor.detach().to("cpu", copy=True)
        return found


def gathered(tensor: ShardedTensor, group: dist.ProcessGroup, device: torch.device) -> Tensor | None:
    """Return the whole tensor in rank 0's host memory; None on other ranks. Every rank must call it.

    Args:
        tensor: The tensor.
        group: Its ranks.
        device: What the group's backend can send from.
    """
    rank = dist.get_rank(group)
    metadata = tensor.metadata()
    dtype = metadata.tensor_properties.dtype
    whole = torch.empty(metadata.size, dtype=dtype) if rank == 0 else None
    local = {tuple(shard.metadata.shard_offsets): shard.tensor for shard in tensor.local_shards()}
    # The same order on all ranks: messages between two ranks arrive in the order in which they are sent.
    for shard in sorted(metadata.shards_metadata, key=lambda shard: list(shard.shard_offsets)):
        assert shard.placement is not None
        owner = shard.placement.rank()
        if whole is None:
            if owner == rank:
                rows = local[tuple(shard.shard_offsets)].to(device).contiguous()
                dist.send(rows, group=group, group_dst=0)
            continue
        if owner == 0:
            rows = local[tuple(shard.shard_offsets)]
        else:
            rows = torch.empty(shard.shard_sizes, dtype=dtype, device=device)
            dist.recv(rows, group=group, group_src=owner)
        part = tuple(
            slice(start, start + size)
            for start, size in zip(shard.shard_offsets, shard.shard_sizes, strict=True)
        )
        whole[part] = rows.cpu()
    return whole
