"""A sharded table in a model: its parameters on this rank, its place in state dicts, its optimizer's state.

Shape letters: D embedding dimension, R rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed._shard.metadata import ShardMetadata as TorchShardMetadata
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed._shard.sharded_tensor.metadata import ShardedTensorMetadata, TensorProperties
from torch.distributed._shard.sharded_tensor.shard import Shard

from recsys.configs import BaseEmbeddingConfig
from recsys.embedding import FLOAT_DTYPES
from recsys.kernels.training import FusedLookup, TrainingLookup
from recsys.optim.fused_config import FusedConfig
from recsys.sharding.plan.env import ShardingEnv
from recsys.sharding.plan.plan import ParameterSharding, ShardMetadata

#: Offsets and sizes.
Rectangle = tuple[tuple[int, ...], tuple[int, ...]]


def rectangle_of(shard: ShardMetadata | TorchShardMetadata) -> Rectangle:
    """Return the rectangle of a shard in the whole tensor."""
    return tuple(shard.shard_offsets), tuple(shard.shard_sizes)


def sharded_tensor(
    size: Sequence[int],
    dtype: torch.dtype,
    shards: Mapping[Rectangle, int],
    local: Mapping[Rectangle, Tensor],
    env: ShardingEnv,
) -> ShardedTensor:
    """Return a ShardedTensor of the shards' metadata and this rank's shards, without communication.

    Args:
        size: The size of the whole tensor.
        dtype: The dtype of its elements.
        shards: The rank of each rectangle (offsets, sizes).
        local: This rank's shards: views of the trained memory.
        env: The ranks.
    """
    # torch uses ranks of the default group, even for a tensor of another group.
    group = env.process_group
    numbers = range(env.world_size) if group is None else dist.get_process_group_ranks(group)
    metadata = {
        where: TorchShardMetadata(list(where[0]), list(where[1]), f"rank:{numbers[rank]}/{env.devices[rank]}")
        for where, rank in shards.items()
    }
    made: ShardedTensor = ShardedTensor._init_from_local_shards_and_global_metadata(
        [Shard(tensor.detach(), metadata[where]) for where, tensor in local.items()],
        ShardedTensorMetadata(
            shards_metadata=list(metadata.values()),
            size=torch.Size(size),
            tensor_properties=TensorProperties(dtype=dtype),
        ),
        process_group=env.process_group,
    )
    return made


def copy_into(targets: Mapping[Rectangle, Tensor], source: Any, name: str) -> None:
    """Fill shards from the whole tensor, or from a ShardedTensor with the same cuts.

    Args:
        targets: By rectangle (offsets, sizes).
        source: The tensor.
        name: For messages.

    Raises:
        ValueError: The source lacks a rectangle.
    """
    if isinstance(source, ShardedTensor):
        held = {rectangle_of(shard.metadata): shard.tensor for shard in source.local_shards()}
        missing = [where for where in targets if where not in held]
        if missing:
            raise ValueError(
                f"{name}: got a ShardedTensor without the shard at offsets {missing[0][0]}, sizes {missing[0][1]} on "
                "this rank; load checkpoints of another plan through torch.distributed.checkpoint"
            )
        for where, target in targets.items():
            target.copy_(held[where])
        return
    for (offsets, sizes), target in targets.items():
        bounds = [o + s for o, s in zip(offsets, sizes, strict=True)]
        if source.dim() != len(bounds) or any(b > n for b, n in zip(bounds, source.shape, strict=True)):
            raise ValueError(f"{name}: got shape {list(source.shape)}, expected at least {bounds}")
        target.copy_(source[tuple(slice(o, b) for o, b in zip(offsets, bounds, strict=True))])


class TableShards(nn.Module):
    """One table: parameter ``weight`` is this rank's first shard, ``weight_1`` its second, and so on.

    State dicts hold ``weight`` as a ShardedTensor of the whole table, or as a plain tensor if every rank
    holds all of it.

    Args:
        config: The table.
        sharding: Its sharding.
        env: The ranks.
        held: This rank's shards: the rectangle of each, its kernel and its position among the kernel's
            shards.
    """

    def __init__(
        self,
        config: BaseEmbeddingConfig,
        sharding: ParameterSharding,
        env: ShardingEnv,
        held: Sequence[tuple[ShardMetadata, TrainingLookup, int]],
    ) -> None:
        super().__init__()
        self.config = config
        self.sharding = sharding
        self._env = env
        self._held = list(held)
        self._watchers: list[Callable[[Tensor | None], None]] = []
        for i, (_, lookup, position) in enumerate(held):
            weight = lookup.weights[position]
            if not isinstance(weight, nn.Parameter):
                weight = nn.Parameter(weight.detach(), requires_grad=lookup.trained)
            self.register_parameter(f"weight_{i}" if i else "weight", weight)

    @property
    def is_fused(self) -> bool:
        """Whether kernels update this rank's shards in the backward pass."""
        return any(lookup.trained for lookup in self.fused_lookups())

    def fused_lookups(self) -> list[FusedLookup]:
        """Return the kernels of this rank's shards that have an optimizer; two shards may have one kernel."""
        return [lookup for _, lookup, _ in self._held if isinstance(lookup, FusedLookup)]

    @property
    def size(self) -> tuple[int, int]:
        """R and D."""
        return self.config.num_embeddings, self.config.embedding_dim

    @property
    def column_blocks(self) -> list[tuple[int, int]]:
        """First column and end of each column block, from left to right; one block if there are no cuts."""
        blocks = {shard.columns for shard in self.sharding.shards}
        return sorted(blocks) or [(0, self.config.embedding_dim)]

    def held(self) -> list[tuple[ShardMetadata, TrainingLookup, int]]:
        """Return this rank's shards: the rectangle of each, its kernel and its position among the kernel's shards."""
        return list(self._held)

    def watch_writes(self, watcher: Callable[[Tensor | None], None]) -> Callable[[], None]:
        """Call a function after rows are overwritten other than by the optimizer.

        Args:
            watcher: Called with the rows, ``[N]`` int64, rows of the whole table; with None for all.

        Returns:
            A function that ends it.
        """
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    def local_weights(self) -> list[tuple[ShardMetadata, Tensor]]:
        """Return this rank's shards: the rectangle of each, and a view of its weights."""
        return [(where, lookup.weights[i].detach()) for where, lookup, i in self._held]

    def sharded_weight(self) -> ShardedTensor | Tensor:
        """Return the whole table ``[R, D]``; this rank's parts are views."""
        for lookup in self.fused_lookups():
            lookup.flush()
        if self.sharding.is_replicated:
            return self.local_weights()[0][1]
        return sharded_tensor(
            self.size,
            FLOAT_DTYPES[self.config.data_type],
            {rectangle_of(shard): shard.rank for shard in self.sharding.shards},
            {rectangle_of(where): weight for where, weight in self.local_weights()},
            self._env,
        )

    def sharded_states(self, config: FusedConfig) -> dict[str, ShardedTensor]:
        """Return the fused optimizer's state, ``<table>.momentum1`` and so on, in the form of ``state_shape``.

        Args:
            config: The configuration of the table's kernel, needed also on ranks without a shard.
        """
        made = {}
        for name in config.state_names():
            row_wise = config.is_row_wise(name)
            local = {}
            for where, lookup, i in self._held:
                assert isinstance(lookup, FusedLookup)
                rectangle = self.state_rectangle(where, row_wise=row_wise)
                local[rectangle] = lookup.states()[i][name].view(rectangle[1])
            made[f"{self.config.name}.{name}"] = sharded_tensor(
                self.state_shape(row_wise=row_wise),
                torch.float32,
                self.state_ranks(row_wise=row_wise),
                local,
                self._env,
            )
        return made

    def state_shape(self, *, row_wise: bool) -> tuple[int, ...]:
        """Return the shape of an optimizer's state for the whole table.

        ``[R, D]`` for one number per weight. ``[R]`` for one number per row; if columns are cut, each column
        block has its own number: ``[R, blocks]``.
        """
        if not row_wise:
            return self.size
        num_blocks = len(self.column_blocks)
        return self.size[:1] if num_blocks == 1 else (self.size[0], num_blocks)

    def state_rectangle(self, shard: ShardMetadata, *, row_wise: bool) -> Rectangle:
        """Return the rectangle of a shard's state in the whole table's."""
        if not row_wise:
            return rectangle_of(shard)
        start, end = shard.rows
        blocks = self.column_blocks
        if len(blocks) == 1:
            return (start,), (end - start,)
        return (start, blocks.index(shard.columns)), (end - start, 1)

    def state_ranks(self, *, row_wise: bool) -> dict[Rectangle, int]:
        """Return the rank of each shard's state."""
        return {self.state_rectangle(shard, row_wise=row_wise): shard.rank for shard in self.sharding.shards}

    @torch.no_grad()
    def set_weight(self, source: Any, name: str) -> None:
        """Copy this rank's part of a table.

        Args:
            source: ``[R, D]``, or a ShardedTensor with this plan's cuts.
            name: For messages.

        Raises:
            ValueError: The source lacks the part.
        """
        if tuple(source.metadata().size if isinstance(source, ShardedTensor) else source.shape) != self.size:
            raise ValueError(f"{name}: got another shape than the table's {list(self.size)}")
        if self.sharding.is_replicated and isinstance(source, ShardedTensor):
            raise ValueError(
                f"{name}: got a ShardedTensor, expected a plain tensor: every rank holds the table"
            )
        copy_into({rectangle_of(where): weight for where, weight in self.local_weights()}, source, name)
        self._tell(None)

    def _tell(self, rows: Tensor | None) -> None:
        for watcher in self._watchers:
            watcher(rows)

    @torch.no_grad()
    def reset_rows(self, rows: Tensor, values: Tensor) -> None:
        """Overwrite rows, and set their fused optimizers' state to zero.

        Args:
            rows: ``[N]`` int64 in host memory, rows of the whole table.
            values: ``[N, D]`` float32 in host memory.
        """
        for where, lookup, i in self._held:
            (first, end), (left, right) = where.rows, where.columns
            mine = (rows >= first) & (rows < end)
            weight = lookup.weights[i].detach()
            local = (rows[mine] - first).to(weight.device)
            weight[local] = values[mine, left:right].to(weight.device, weight.dtype)
            if isinstance(lookup, FusedLookup):
                for state in lookup.states()[i].values():
                    state[local] = 0
        self._tell(rows)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        weight = self.sharded_weight()
        if keep_vars and self.sharding.is_replicated:
            weight = next(self.parameters())
        destination[prefix + "weight"] = weight

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        del local_metadata, unexpected_keys
        name = prefix + "weight"
        if name not in state_dict:
            if strict:
                missing_keys.append(name)
            return
        try:
            self.set_weight(state_dict[name], name)
        except ValueError as error:
            error_msgs.append(str(error))


class FusedTables:
    """The tables of one kernel configuration, as a fused optimizer sees them.

    Args:
        config: The optimizer in the backward pass.
        prefix: The prefix of the parameters' names, such as ``embedding_bags``.
        tables: The tables of all ranks.
    """

    def __init__(self, config: FusedConfig, prefix: str, tables: Sequence[TableShards]) -> None:
        self.config = config
        self._tables = {f"{prefix}.{table.config.name}.weight": table for table in tables}
        # Tables share kernels.
        self._lookups = list(dict.fromkeys(lookup for table in tables for lookup in table.fused_lookups()))
        self._steps = torch.zeros(1, dtype=torch.int64)

    def set_learning_rate(self, learning_rate: float, /) -> None:
        """Set the rate for later lookups."""
        for lookup in self._lookups:
            lookup.set_learning_rate(learning_rate)

    def fused_parameters(self) -> dict[str, Tensor]:
        """Return this rank's first shard of each table that it holds."""
        held = {name: list(table.parameters()) for name, table in self._tables.items()}
        return {name: parameters[0] for name, parameters in held.items() if parameters}

    def fused_states(self) -> dict[str, dict[str, ShardedTensor]]:
        """Return the states of every table, also of those without a shard on this rank."""
        return {name: table.sharded_states(self.config) for name, table in self._tables.items()}

    def step_count(self) -> Tensor:
        """Return the number of steps taken, int64 ``[1]``; 0 on a rank without any of the tables."""
        return self._lookups[0].step_count() if self._lookups else self._steps

    def set_optimizer_step(self, step: int, /) -> None:
        """Continue from this step."""
        self._steps.fill_(step)
        for lookup in self._lookups:
            lookup.set_step_count(step)
