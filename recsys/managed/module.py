"""The managed collision module of one table: which raw ID owns which row, learned from the batches of training.

Shape letters: N number of IDs, Z ``zch_size``: rows of the table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, distributed, nn

from recsys.errors import CheckpointError
from recsys.managed.mapping import (
    FREE,
    MappingState,
    MCHEvictionPolicy,
    Uses,
    admit,
    check_state,
    merged,
    of_all_ranks,
    rows_of,
    uses_of,
)


class ManagedCollisionModule(nn.Module, ABC):
    """Maps raw IDs to rows ``0 <= row < output_size()``, and decides in training who owns them."""

    @abstractmethod
    def profile(self, ids: Tensor) -> None:
        """Learn from one batch's raw IDs, ``[N]`` int64."""

    @abstractmethod
    def remap(self, ids: Tensor) -> Tensor:
        """Map raw IDs ``[N]`` int64 to rows ``[N]`` int64. Changes nothing, and FX can follow it."""

    @abstractmethod
    def evict(self) -> Tensor | None:
        """Return the rows that changed hands since the last call, int64, each once; None if none did."""

    @abstractmethod
    def output_size(self) -> int:
        """Return how many rows there are."""

    @abstractmethod
    def open_slots(self) -> int:
        """Return how many rows have no owner yet. Reads a tensor."""

    @abstractmethod
    def current_step(self) -> int:
        """Return how many batches it has learned from."""

    @abstractmethod
    def set_process_group(self, group: distributed.ProcessGroup | None) -> None:
        """Decide together with all ranks of a group from now on; None decides alone."""

    def forward(self, ids: Tensor) -> Tensor:
        """Map raw IDs ``[N]`` to rows ``[N]``, both int64; in training mode it learns from them first."""
        if self.training:
            self.profile(ids)
        return self.remap(ids)


class MCHManagedCollisionModule(ManagedCollisionModule):
    """One row for each raw ID, as long as there are rows; beyond that, an eviction policy decides.

    Any int64 is a valid raw ID, negative ones included. IDs without a row of their own read the table's last row,
    ``zch_size - 1``, which no ID ever owns. Every ``eviction_interval`` training batches the IDs of these batches
    are counted and new ones get rows, before the last of these batches is mapped.

    The state (which IDs own which rows, their counts, the step) is in buffers of fixed shape. What was counted
    since the last admission is not part of it: a training that continues from a checkpoint counts it anew.

    Args:
        zch_size: Z, the table's ``num_embeddings``; 2 at least.
        eviction_policy: Who loses a row first.
        eviction_interval: Batches between two admissions; 1 at least.
        device: The device of the buffers.
        process_group: Where several ranks train on batches of their own: admissions then go by the batches of all
            ranks, and all ranks hold the same mapping. Every rank must call the module equally often. Its backend
            must be able to send from ``device``.

    Raises:
        ValueError: The size or the interval is too small.
    """

    raw_ids: Tensor
    rows: Tensor
    counts: Tensor
    last_steps: Tensor
    step: Tensor

    def __init__(
        self,
        zch_size: int,
        eviction_policy: MCHEvictionPolicy,
        eviction_interval: int,
        device: torch.device | str | None = None,
        process_group: distributed.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        if zch_size < 2:
            raise ValueError(f"zch_size: got {zch_size}, expected 2 or more: the last row has no owner")
        if eviction_interval < 1:
            raise ValueError(f"eviction_interval: got {eviction_interval}, expected 1 or more")
        self._zch_size = zch_size
        self._policy = eviction_policy
        self._interval = eviction_interval
        self._group = process_group
        # `step` as a number, so that a device is not asked for it; None: to be read from the buffer.
        self._step: int | None = None
        self._pending: list[Uses] = []
        self._evicted: list[Tensor] = []

        def buffer(name: str, fill: int, size: int = zch_size) -> None:
            self.register_buffer(name, torch.full((size,), fill, dtype=torch.int64, device=device))

        buffer("raw_ids", FREE)
        buffer("rows", zch_size - 1)
        buffer("counts", 0)
        buffer("last_steps", 0)
        buffer("step", 0, size=1)
        self.register_load_state_dict_post_hook(_after_loading)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def profile(self, ids: Tensor) -> None:
        """Count one batch's raw IDs, ``[N]`` int64; admit new ones where an interval ends.

        It looks for distinct IDs, whose number a device must tell: on one, it waits.
        """
        step = self.current_step() + 1
        self._step = step
        self.step.fill_(step)
        self._pending.append(uses_of(ids, step))
        if step % self._interval:
            return
        uses = merged(self._pending)
        self._pending = []
        if self._group is not None:
            uses = of_all_ranks(uses, self._group)
        evicted = admit(self.state(), uses, self._policy, step)
        if evicted.numel():
            self._evicted.append(evicted)

    def remap(self, ids: Tensor) -> Tensor:
        """Map raw IDs ``[N]`` int64 to rows ``[N]`` int64; ``zch_size - 1`` for IDs without a row of their own."""
        return rows_of(self.raw_ids, self.rows, ids)

    def evict(self) -> Tensor | None:
        """Return the rows that changed hands since the last call, int64 ascending, each once; None if none did."""
        if not self._evicted:
            return None
        evicted: Tensor = torch.unique(torch.cat(self._evicted))
        self._evicted = []
        return evicted

    def output_size(self) -> int:
        """Return Z."""
        return self._zch_size

    def open_slots(self) -> int:
        """Return how many rows have no owner yet; at most Z - 1, because the last row never has one. Reads a tensor."""
        return self._zch_size - 1 - self.owned_ids().numel()

    def owned_ids(self) -> Tensor:
        """Return the raw IDs that own rows, int64 ascending. Reads a tensor."""
        return self.raw_ids[self.rows != self._zch_size - 1]

    def set_process_group(self, group: distributed.ProcessGroup | None) -> None:
        """Decide together with all ranks of a group from now on; None decides alone."""
        self._group = group

    def current_step(self) -> int:
        """Return how many batches were profiled."""
        if self._step is None:
            # Read once, and again after a state was loaded.
            self._step = int(self.step)
        return self._step

    def state(self) -> MappingState:
        """Return the buffers."""
        return MappingState(
            raw_ids=self.raw_ids, rows=self.rows, counts=self.counts, last_steps=self.last_steps
        )

    def validate_state(self) -> None:
        """Check that the buffers are a mapping, after a state was loaded. Reads tensors.

        Raises:
            CheckpointError: A tensor is wrong; the message names it.
        """
        if self.raw_ids.is_meta:
            return
        try:
            check_state(self.state(), "managed_collision_module")
        except ValueError as error:
            raise CheckpointError(str(error)) from None
        if int(self.step) < 0:
            raise CheckpointError(f"managed_collision_module.step: got {int(self.step)}, expected 0 or more")


def _after_loading(module: Any, incompatible_keys: object) -> None:
    del incompatible_keys
    module._step = None
    module._pending = []
    module._evicted = []
    module.validate_state()
