"""Lookups that train in their backward pass: FBGEMM's, and Adam in plain torch, which FBGEMM lacks on a CPU.

Shape letters: B batch, D embedding dimension, R rows, N number of IDs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from torch import Tensor, nn

from recsys.kernels.training import ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen
from recsys.optim import FusedConfig

NUM_ROWS, NUM_COLUMNS, BATCH_SIZE = 12, 8, 5


def make_tbe(
    num_rows: int, num_columns: int, device: torch.device | None = None, **arguments: Any
) -> SplitTableBatchedEmbeddingBagsCodegen:
    """FBGEMM's training lookup of one table."""
    on_cpu = device is None or device.type == "cpu"
    place = (
        (EmbeddingLocation.HOST, ComputeDevice.CPU)
        if on_cpu
        else (EmbeddingLocation.DEVICE, ComputeDevice.CUDA)
    )
    return SplitTableBatchedEmbeddingBagsCodegen(
        [(num_rows, num_columns, *place)], device=device, **arguments
    )


def table(num_rows: int = NUM_ROWS, num_columns: int = NUM_COLUMNS, seed: int = 0) -> Tensor:
    """``[R, D]`` weights to begin with."""
    return torch.randn(num_rows, num_columns, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Batch:
    """Bags of IDs, some empty, some with an ID twice, and the gradient of what is looked up.

    Attributes:
        ids: ``[N]`` int64.
        offsets: ``[B + 1]`` int64.
        gradient: ``[B, D]`` float32.
    """

    ids: Tensor
    offsets: Tensor
    gradient: Tensor

    def dense_gradient(self, num_rows: int) -> Tensor:
        """``[R, D]``: what a table's ordinary gradient would be."""
        bags = torch.repeat_interleave(torch.arange(len(self.offsets) - 1), self.offsets.diff())
        return torch.zeros(num_rows, self.gradient.shape[1]).index_add_(0, self.ids, self.gradient[bags])


def batches(num: int, num_columns: int = NUM_COLUMNS, max_id: int = NUM_ROWS - 3) -> list[Batch]:
    """The last rows are never looked up."""
    generator = torch.Generator().manual_seed(7)
    made = []
    for _ in range(num):
        lengths = torch.tensor([2, 0, 3, 1, 2])
        ids = torch.randint(max_id, (int(lengths.sum()),), generator=generator)
        ids[3] = ids[2]
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        made.append(Batch(ids, offsets, torch.randn(BATCH_SIZE, num_columns, generator=generator)))
    return made


class TbeLookup:
    """A ``FusedKernel`` around FBGEMM's lookup of one table."""

    def __init__(
        self, config: FusedConfig, name: str = "t1", weight: Tensor | None = None, device: str = "cpu"
    ) -> None:
        weight = table() if weight is None else weight
        self.config = config
        self.name = name
        self.tbe = make_tbe(weight.shape[0], weight.shape[1], torch.device(device), **config.tbe_arguments())
        self.weight: Tensor = self.tbe.split_embedding_weights()[0]
        self.weight.data.copy_(weight)
        self.rates_set: list[float] = []

    def train(self, batch: Batch) -> Tensor:
        """Look up and update; ``[B, D]``, what was found."""
        device = self.weight.device
        found: Tensor = self.tbe(batch.ids.to(device), batch.offsets.to(device))
        found.backward(batch.gradient.to(device))
        return found.detach()

    def set_learning_rate(self, learning_rate: float) -> None:
        self.rates_set.append(learning_rate)
        self.tbe.set_learning_rate(learning_rate)

    def fused_parameters(self) -> Mapping[str, Tensor]:
        return {f"embedding_bags.{self.name}.weight": self.weight}

    def fused_states(self) -> Mapping[str, Mapping[str, Tensor]]:
        names = self.config.state_names()
        states: Sequence[Tensor] = self.tbe.split_optimizer_states()[0] if names else []
        named = {f"{self.name}.{name}": state for name, state in zip(names, states, strict=True)}
        return {f"embedding_bags.{self.name}.weight": named}

    def step_count(self) -> Tensor:
        count: Tensor = self.tbe.iter
        return count

    def set_optimizer_step(self, step: int) -> None:
        self.tbe.set_optimizer_step(step)
        self.tbe.iter_cpu.fill_(step)  # which it goes by, once it has taken a step


class AdamLookup:
    """A ``FusedKernel`` whose backward pass runs torch's Adam on the whole table."""

    def __init__(self, config: FusedConfig, name: str = "t1") -> None:
        self.config = config
        self.name = name
        self.weight = nn.Parameter(table())
        self._adam = torch.optim.Adam([self.weight], lr=config.learning_rate, eps=config.eps)
        self._moments = [torch.zeros_like(self.weight) for _ in range(2)]
        self._step = torch.zeros(1, dtype=torch.int64)
        self._next_step = 0

    def train(self, batch: Batch) -> None:
        self.weight.grad = batch.dense_gradient(len(self.weight))
        self._adam.state[self.weight] = {
            "step": torch.tensor(float(self._next_step)),
            "exp_avg": self._moments[0],
            "exp_avg_sq": self._moments[1],
        }
        self._adam.step()
        self._next_step += 1
        self._step.fill_(self._next_step)

    def set_learning_rate(self, learning_rate: float) -> None:
        self._adam.param_groups[0]["lr"] = learning_rate

    def fused_parameters(self) -> Mapping[str, Tensor]:
        return {f"embedding_bags.{self.name}.weight": self.weight}

    def fused_states(self) -> Mapping[str, Mapping[str, Tensor]]:
        moments = {f"{self.name}.momentum{i + 1}": moment for i, moment in enumerate(self._moments)}
        return {f"embedding_bags.{self.name}.weight": moments}

    def step_count(self) -> Tensor:
        return self._step

    def set_optimizer_step(self, step: int) -> None:
        self._next_step = step
        self._step.fill_(step)
