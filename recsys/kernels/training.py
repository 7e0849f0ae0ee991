"""The lookup kernels of training: one FBGEMM call with the optimizer in its backward pass, or plain gradients.

Shape letters: B batch, D embedding dim, R rows, S slots, N number of IDs, W world size.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import (
    BoundsCheckMode,
    EmbeddingLocation,
    PoolingMode,
)
from torch import Tensor, nn
from torch.nn import functional

from recsys.configs import DataType, PoolingType
from recsys.embedding import FLOAT_DTYPES, pool
from recsys.jagged.tensor import JaggedTensor
from recsys.kernels.rowwise import RowWiseLookup, RowWiseStep, shares_of_bags
from recsys.optim.fused_config import EmbOptimType, FusedConfig

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # FBGEMM's, of optimizers that its CPU build lacks
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice as ComputeDevice,  # re-exported
    )
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        SplitTableBatchedEmbeddingBagsCodegen as SplitTableBatchedEmbeddingBagsCodegen,  # re-exported
    )

_POOLING_MODES = {
    PoolingType.SUM: PoolingMode.SUM,
    PoolingType.MEAN: PoolingMode.MEAN,
    PoolingType.NONE: PoolingMode.NONE,
}
_PRECISIONS = {
    DataType.FP32: SparseType.FP32,
    DataType.FP16: SparseType.FP16,
    DataType.BF16: SparseType.BF16,
}
_LOCATIONS = {
    "fused": EmbeddingLocation.DEVICE,
    "fused_uvm": EmbeddingLocation.MANAGED,
    "fused_uvm_caching": EmbeddingLocation.MANAGED_CACHING,
}
# FBGEMM 1.8's training kernels read and write four numbers at a time.
DIM_MULTIPLE = 4


@dataclass(frozen=True, kw_only=True)
class KernelConfig:
    """The kernel that trains a table.

    Attributes:
        name: One of ``recsys.sharding.plan.plan.COMPUTE_KERNELS``.
        fused: The optimizer in the backward pass; None for the dense kernel.
        cache_load_factor: For ``fused_uvm_caching``, the share of rows in the device's cache.
        trained: False for a frozen table, whose weights do not change.
        cache_options: For ``fused_uvm_caching``, further arguments of FBGEMM's module.
    """

    name: str
    fused: FusedConfig | None
    cache_load_factor: float = 0.2
    trained: bool = True
    cache_options: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True)
class ShardConfig:
    """A shard as a kernel sees it: a table of its own.

    Attributes:
        table: For messages.
        num_rows: R of the shard.
        num_columns: D of the shard.
        data_type: The data type of its weights.
    """

    table: str
    num_rows: int
    num_columns: int
    data_type: DataType


def check_shard(shard: ShardConfig, kernel: KernelConfig, device: torch.device) -> None:
    """Check that a kernel supports a shard and its device.

    Raises:
        ValueError: The message names the table, what was found and what is supported.
    """
    at = f"table {shard.table!r}"
    if kernel.fused is None:
        return
    kernel.fused.check_device(device)
    if shard.num_columns % DIM_MULTIPLE:
        raise ValueError(
            f"{at}: got {shard.num_columns} columns, expected a multiple of {DIM_MULTIPLE} for the {kernel.name} "
            "kernel; use compute_kernel 'dense' or another embedding_dim"
        )
    if device.type == "cpu" and kernel.name != "fused":
        raise ValueError(
            f"{at}: got compute_kernel {kernel.name!r} on {device}, expected a CUDA device: in host memory use 'fused'"
        )
    if device.type == "cpu" and shard.data_type is DataType.BF16:
        raise ValueError(
            f"{at}: got BF16 for the fused kernel on {device}, expected FP32 or FP16 (FBGEMM has no other there); use "
            "compute_kernel 'dense'"
        )


def pools_by_slot(shards: Sequence[ShardConfig], kernel: KernelConfig, device: torch.device) -> bool:
    """Return whether a lookup of shards pools each slot by itself: ``recsys.kernels.rowwise`` looks them up.

    It has one optimizer, and shards of one width in float32.
    """
    config = kernel.fused
    return (
        config is not None
        and device.type == "cpu"
        and config.optimizer == EmbOptimType.EXACT_ROWWISE_ADAGRAD
        and not (config.weight_decay or config.max_norm or config.gradient_clipping)
        and len({shard.num_columns for shard in shards}) == 1
        and all(shard.data_type is DataType.FP32 for shard in shards)
    )


def _first_rows(shards: Sequence[ShardConfig], slots: Sequence[int]) -> Tensor:
    """Return the first row of each slot's shard among the rows of all."""
    starts = [0, *accumulate(shard.num_rows for shard in shards)]
    return torch.tensor([starts[shard] for shard in slots], dtype=torch.int64)


class FusedLookup(nn.Module):
    """S slots in one call; the backward pass updates the rows. IDs must have been checked.

    FBGEMM holds the rows and the optimizer's state, and looks up where ``recsys.kernels.rowwise`` cannot.

    Frozen tables' outputs need no gradient, so there is no backward pass for them.

    Args:
        shards: The shards, all of one data type.
        slots: For each slot the position of its shard.
        poolings: Of each slot. SUM or MEAN: returns ``[B, sum of D]``; NONE for all: ``[N, D]``, with one D for all
            shards.
        kernel: The place of the rows, and the optimizer.
        device: Where the lookup runs.
        weighted: Whether every ID comes with a weight.
    """

    def __init__(
        self,
        shards: Sequence[ShardConfig],
        slots: Sequence[int],
        poolings: Sequence[PoolingType],
        kernel: KernelConfig,
        device: torch.device,
        weighted: bool = False,
    ) -> None:
        super().__init__()
        assert kernel.fused is not None
        for shard in shards:
            check_shard(shard, kernel, device)
        on_host = device.type == "cpu"
        location = EmbeddingLocation.HOST if on_host else _LOCATIONS[kernel.name]
        compute = ComputeDevice.CPU if on_host else ComputeDevice.CUDA
        self.config = kernel.fused
        self.trained = kernel.trained
        self._counts_steps = kernel.fused.has_step_count()
        means = [pooling is PoolingType.MEAN for pooling in poolings]
        self._means, self._are_all_means = torch.tensor(means, device=device), all(means)
        # FBGEMM 1.8 pools all slots alike, and does not divide the gradient of a weighted mean on CPU.
        self._mean_by_weights = any(means) and (weighted or not all(means))
        pooling = PoolingType.SUM if self._mean_by_weights else poolings[0]
        tbe = SplitTableBatchedEmbeddingBagsCodegen(
            [(s.num_rows, s.num_columns, location, compute) for s in shards],
            feature_table_map=list(slots),
            pooling_mode=_POOLING_MODES[pooling],
            weights_precision=_PRECISIONS[shards[0].data_type],
            output_dtype=SparseType.FP32,
            cache_load_factor=kernel.cache_load_factor,
            device=device,
            bounds_check_mode=BoundsCheckMode.NONE,
            **(dict(kernel.cache_options) if location is EmbeddingLocation.MANAGED_CACHING else {}),
            **kernel.fused.tbe_arguments(),
        )
        # Not a submodule: the model's parameters are those of the shards, not the flat ones.
        self._tbe = (tbe,)
        self.weights: list[Tensor] = list(tbe.split_embedding_weights())
        self._is_pooled = pooling is not PoolingType.NONE
        self._first_rows = _first_rows(shards, slots) if pools_by_slot(shards, kernel, device) else None

    @property
    def slots(self) -> list[int]:
        """For each slot the position of its shard."""
        return list(self.tbe.feature_table_map)

    @property
    def tbe(self) -> SplitTableBatchedEmbeddingBagsCodegen:
        """FBGEMM's module."""
        return self._tbe[0]

    def forward(
        self,
        values: Tensor,
        offsets: Tensor,
        weights: Tensor | None,
        ids_per_slot: list[int] | None = None,
        batch_sizes: list[list[int]] | None = None,
    ) -> Tensor:
        """Look up.

        Args:
            values: ``[N]`` int64, slot-major.
            offsets: ``[S * B + 1]`` int64.
            weights: ``[N]`` float32, or None.
            ids_per_slot: Not needed here.
            batch_sizes: For each slot its batch size on each of W ranks; offsets are slot-major then.

        Returns:
            ``[B, sum of D]`` float32; with ``batch_sizes`` flat: rank by rank, slot by slot, ``[batch size, D]``.
        """
        del ids_per_slot
        trains = self.trained and torch.is_grad_enabled()
        needs_gradient = weights is not None and weights.requires_grad
        if self._first_rows is not None and batch_sizes is None and not needs_gradient:
            step = self._row_wise_step(values, offsets, weights)
            if not trains:
                return step.look_up()
            own: Tensor = RowWiseLookup.apply(self.tbe.placeholder_autograd_tensor, step)  # type: ignore[no-untyped-call]
            return own
        if self._mean_by_weights:
            weights = self._mean_weights(values, offsets, weights, batch_sizes)
        steps = None
        if self._counts_steps and not trains:
            # FBGEMM counts lookups; only those that train are steps.
            steps = int(self.tbe.iter_cpu)
        # FBGEMM 1.8's training operators do not know inference mode.
        with torch.inference_mode(False), torch.set_grad_enabled(trains):
            found: Tensor = self.tbe(values, offsets, weights, batch_size_per_feature_per_rank=batch_sizes)
        if steps is not None:
            self.set_step_count(steps)
        return found

    def _mean_weights(
        self, values: Tensor, offsets: Tensor, weights: Tensor | None, batch_sizes: list[list[int]] | None
    ) -> Tensor:
        """Return the weights of IDs, ``[N]``, by which a sum becomes the mean in slots that are averaged."""
        sizes, are_means = offsets.diff(), self._means[:1]
        if not self._are_all_means:
            per_slot = sizes.size(0) // len(self._means)
            bags = torch.tensor(
                [per_slot] * len(self._means) if batch_sizes is None else [sum(b) for b in batch_sizes]
            )
            are_means = self._means.repeat_interleave(bags)
        of_ids = shares_of_bags(offsets, are_means).repeat_interleave(sizes, output_size=values.size(0))
        return of_ids if weights is None else weights * of_ids

    def _row_wise_step(self, values: Tensor, offsets: Tensor, weights: Tensor | None) -> RowWiseStep:
        assert self._first_rows is not None
        return RowWiseStep(
            weight=self.tbe.weights_host.detach().view(-1, self.weights[0].size(1)),
            state=self.tbe.momentum1_host,
            learning_rate=self.tbe.get_learning_rate(),
            eps=self.config.eps,
            values=values,
            offsets=offsets,
            first_rows=self._first_rows,
            weights=weights,
            means=self._means,
            is_pooled=self._is_pooled,
        )

    def states(self) -> list[dict[str, Tensor]]:
        """Return for each shard its optimizer states by FBGEMM's names: views."""
        names = self.config.state_names()
        if not names:
            return [{} for _ in self.weights]
        return [dict(zip(names, found, strict=True)) for found in self.tbe.split_optimizer_states()]

    def set_learning_rate(self, learning_rate: float) -> None:
        """Set the learning rate for the next lookups and their backward passes."""
        self.tbe.set_learning_rate(learning_rate)

    def step_count(self) -> Tensor:
        """Return how many times the optimizer has run: int64 ``[1]``, a view."""
        count: Tensor = self.tbe.iter
        return count

    def set_step_count(self, steps: int) -> None:
        """Continue from this step. FBGEMM keeps the number twice: to count by, and for checkpoints."""
        self.tbe.iter_cpu.fill_(steps)
        self.tbe.set_optimizer_step(steps)

    def flush(self) -> None:
        """Write what a cache on the device holds back to the rows."""
        self.tbe.flush()


class DenseLookup(nn.Module):
    """S slots, one by one, with gradients of the tables' size, for any optimizer.

    Args:
        shards: The shards.
        slots: For each slot the position of its shard.
        pooling: As ``FusedLookup``.
        device: Where the lookup runs.
        trained: False for frozen tables: their weights need no gradient.
    """

    def __init__(
        self,
        shards: Sequence[ShardConfig],
        slots: Sequence[int],
        pooling: PoolingType,
        device: torch.device,
        trained: bool = True,
    ) -> None:
        super().__init__()
        self.trained = trained
        self.slots = list(slots)
        self._pooling = pooling
        # Not a ParameterList: in the model they have their tables' names.
        self.weights: list[Tensor] = [
            nn.Parameter(
                torch.zeros(s.num_rows, s.num_columns, dtype=FLOAT_DTYPES[s.data_type], device=device),
                requires_grad=trained,
            )
            for s in shards
        ]

    def forward(
        self,
        values: Tensor,
        offsets: Tensor,
        weights: Tensor | None,
        ids_per_slot: list[int] | None = None,
        batch_sizes: list[list[int]] | None = None,
    ) -> Tensor:
        """Look up; arguments and result as ``FusedLookup.forward``, but ``ids_per_slot`` is needed."""
        assert ids_per_slot is not None
        num_bags = (offsets.size(0) - 1) // len(self.slots)
        sizes = [num_bags] * len(self.slots) if batch_sizes is None else [sum(b) for b in batch_sizes]
        ids = torch.split(values, ids_per_slot)
        id_weights = None if weights is None else torch.split(weights, ids_per_slot)
        found = []
        start = 0
        for i, shard in enumerate(self.slots):
            weight = self.weights[shard]
            if self._pooling is PoolingType.NONE:
                found.append(functional.embedding(ids[i], weight).float())
                continue
            bounds = offsets[start : start + sizes[i] + 1]
            start += sizes[i]
            jagged = JaggedTensor(ids[i], offsets=bounds - bounds[:1])
            per_id = None if id_weights is None else id_weights[i]
            found.append(pool(weight, jagged, self._pooling, per_id).float())
        if self._pooling is PoolingType.NONE:
            return torch.cat(found)
        if batch_sizes is None:
            return torch.cat(found, dim=1)
        parts = [torch.split(pooled, b) for pooled, b in zip(found, batch_sizes, strict=True)]
        return torch.cat([part.reshape(-1) for by_rank in zip(*parts, strict=True) for part in by_rank])


TrainingLookup = FusedLookup | DenseLookup


def training_lookup(
    shards: Sequence[ShardConfig],
    slots: Sequence[int],
    poolings: Sequence[PoolingType],
    kernel: KernelConfig,
    device: torch.device,
    weighted: bool = False,
) -> TrainingLookup:
    """Return the kernel that a configuration names; arguments as ``FusedLookup``."""
    if kernel.fused is None:
        return DenseLookup(shards, slots, poolings[0], device, kernel.trained)
    return FusedLookup(shards, slots, poolings, kernel, device, weighted)
