"""The managed collision module of one table: the mapping of raw IDs to rows, learned from training batches.

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
    LFU_EvictionPolicy,
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
    """Maps raw IDs to rows ``0 <= row < output_size()``, and assigns the rows during training."""

    @abstractmethod
    def profile(self, ids: Tensor) -> None:
        """Learn from one batch's raw IDs, ``[N]`` int64."""

    @abstractmethod
    def remap(self, ids: Tensor) -> Tensor:
        """Map raw IDs ``[N]`` int64 to rows ``[N]`` int64. Changes no state, and is traceable by FX."""

    @abstractmethod
    def evict(self) -> Tensor | None:
        """Return the rows with a new owner since the last call, int64, each once; None if there are none."""

    @abstractmethod
    def output_size(self) -> int:
        """Return the number of rows."""

    @abstractmethod
    def open_slots(self) -> int:
        """Return the number of rows without an owner. Reads a tensor."""

    @abstractmethod
    def current_step(self) -> int:
        """Return the number of batches that it has learned from."""

    @abstractmethod
    def set_process_group(self, group: distributed.ProcessGroup | None) -> None:
        """Decide together with all ranks of a group from now on; None decides alone."""

    def forward(self, ids: Tensor) -> Tensor:
        """Map raw IDs ``[N]`` to rows ``[N]``, both int64; in training mode it learns from them first."""
        if self.training:
            self.profile(ids)
        return self.remap(ids)


class MCHManagedCollisionModule(ManagedCollisionModule):
    """One row per raw ID while there are free rows; beyond that, an eviction policy decides.

    Any int64 is a valid raw ID, negative ones included. IDs without a row of their own read the table's last row,
    ``zch_size - 1``, which no ID ever owns. Every ``eviction_interval`` training batches the IDs of these batches
    are counted and new ones get rows, before the last of these batches is mapped.

    The state (which IDs own which rows, their counts, the step) is in buffers of fixed shape. Counts since
    the last admission are not part of it: a training that continues from a checkpoint starts them again.

    Args:
        zch_size: Z, the table's ``num_embeddings``; at least 2.
        eviction_policy: Decides which IDs lose their rows first.
        eviction_interval: Batches between two admissions; at least 1.
        device: The device of the buffers.
        process_group: The ranks, if several train on batches of their own: admissions then use the batches of
            all ranks, and all ranks have the same mapping. Every rank must call the module equally often. The
            backend must support ``device``.

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
        # `step` as a number, to avoid reading it from a device; None: read it from the buffer.
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
    def reset_parameters(self) -> None:
        """Forget all IDs, as when it was made."""
        self.raw_ids.fill_(FREE)
        self.rows.fill_(self._zch_size - 1)
        for buffer in (self.counts, self.last_steps, self.step):
            buffer.zero_()
        self._step, self._pending, self._evicted = None, [], []

    @torch.no_grad()
    def profile(self, ids: Tensor) -> None:
        """Count one batch's raw IDs, ``[N]`` int64; admit new ones at the end of an interval.

        It computes the distinct IDs, whose number has to be read from a device.
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
        """Return the rows without an owner, at most Z - 1: the last row never has one. Reads a tensor."""
        return self._zch_size - 1 - self.owned_ids().numel()

    def owned_ids(self) -> Tensor:
        """Return the raw IDs that own rows, int64 ascending. Reads a tensor."""
        return self.raw_ids[self.rows != self._zch_size - 1]

    def set_process_group(self, group: distributed.ProcessGroup | None) -> None:
        """Decide together with all ranks of a group from now on; None decides alone."""
        self._group = group

    def current_step(self) -> int:
        """Return the number of profiled batches."""
        if self._step is None:
            # Read once, and again after a state is loaded.
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


class VocabularyModule(MCHManagedCollisionModule):
    """A fixed list of raw IDs, each with a row of its own; all others read the last row.

    Args:
        zch_size: Z, the table's ``num_embeddings``; at least 2.
        device: The device of the buffers.
    """

    def __init__(self, zch_size: int, device: torch.device | str | None = None) -> None:
        super().__init__(zch_size, LFU_EvictionPolicy(), 1, device)

    def profile(self, ids: Tensor) -> None:
        """Do nothing: the list does not change."""

    @torch.no_grad()
    def set_ids(self, ids: Tensor) -> None:
        """Give each ID a row, in their order.

        Args:
            ids: int64, at most Z - 1, all different.

        Raises:
            ValueError: They are too many, or not different.
        """
        num_ids = ids.numel()
        if num_ids >= self.output_size() or torch.unique(ids).numel() != num_ids:
            raise ValueError(
                f"ids: got {num_ids}, expected up to {self.output_size() - 1} different ones: the last row is that of "
                "all others"
            )
        in_order, rows = ids.to(self.raw_ids.device).sort()
        self.reset_parameters()
        self.raw_ids[:num_ids], self.rows[:num_ids] = in_order, rows


def _after_loading(module: Any, incompatible_keys: object) -> None:
    del incompatible_keys
    module._step = None
    module._pending = []
    module._evicted = []
    module.validate_state()
