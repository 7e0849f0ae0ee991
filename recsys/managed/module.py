"""The managed collision module of one table: the mapping of raw IDs to rows, learned from training batches.

Shape letters: K buckets, N number of IDs, Z ``zch_size``: rows of the table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn

from recsys.errors import CheckpointError
from recsys.jagged.by_feature import by_feature, ids_of
from recsys.managed.mapping import (
    FREE,
    LFU_EvictionPolicy,
    MappingState,
    MCHEvictionPolicy,
    Uses,
    admit,
    by_bucket,
    check_state,
    merged,
    of_all_ranks,
    rows_in_buckets,
    rows_of,
)
from recsys.managed.parts import MappingPart, cut
from recsys.managed.torchrec_state import from_torchrec
from recsys.ops import joined, mixed_ids

#: Why no part of a mapping can be made.
NOT_DIVIDED = "DistributedModelParallel divides a mapping where its plan divides the table"
#: Called with a module and the raw IDs that have got or lost a row, int64 ``[N]``; None if any may have.
OwnerHook = Callable[["ManagedCollisionModule", Tensor | None], None]


class ManagedCollisionModule(nn.Module, ABC):
    """Maps raw IDs to rows ``0 <= row < output_size()``, and assigns the rows during training."""

    _input_hash_size = FREE
    _buckets = 1

    def __init__(self) -> None:
        super().__init__()
        self._group: distributed.ProcessGroup | None = None
        self._part: MappingPart | None = None
        self.hook_ids = (-1, -1)
        self._evicted: list[Tensor] = []
        self._owner_hooks: list[OwnerHook] = []

    @property
    def part(self) -> MappingPart | None:
        """The part of the mapping that this rank holds; None for all of it."""
        return self._part

    def check_whole(self) -> None:
        """Check that this rank holds the whole mapping.

        Raises:
            ValueError: It does not.
        """
        if self._part is not None:
            first, end = self._part.buckets
            raise ValueError(
                f"{type(self).__name__}: got IDs for a mapping of which this rank holds the buckets {first} to "
                f"{end - 1} of {self._buckets}, expected a call of its ManagedCollisionCollection, which asks all ranks"
            )

    @abstractmethod
    def profile(self, ids: Any) -> Any:
        """Learn from one batch's raw IDs, ``[N]`` int64, or from features of them by name, which are returned."""

    def profile_features(self, ids: Mapping[str, Tensor]) -> None:
        """Learn from one batch's raw IDs by feature, each ``[N]`` int64: from all as one, unless overridden."""
        self.profile(joined(list(ids.values())))

    @abstractmethod
    def remap(self, ids: Any) -> Any:
        """Map raw IDs ``[N]`` int64 to rows ``[N]`` int64; features by name to the same features with rows as values.

        Changes no state, and is traceable by FX.
        """

    def evict(self) -> Tensor | None:
        """Return the rows with a new owner since the last call, int64 ascending, each once; None if there are none.

        Of a mapping of which ranks hold parts, each rank returns the rows of its own.
        """
        if not self._evicted:
            return None
        rows: Tensor = torch.unique(torch.cat(self._evicted))
        self._evicted.clear()
        return rows

    def register_owner_hook(self, hook: OwnerHook) -> Callable[[], None]:
        """Register a function to call whenever raw IDs get or lose rows; returns what removes it.

        Where ranks hold parts of a mapping, each is told the IDs of its own. Copies of the module have the hook too.
        """
        self._owner_hooks.append(hook)
        return lambda: self._owner_hooks.remove(hook)

    def _owners_changed(self, ids: Tensor | None = None) -> None:
        for hook in self._owner_hooks:
            hook(self, ids)

    @abstractmethod
    def output_size(self) -> int:
        """Return the number of rows."""

    @abstractmethod
    def open_slots(self) -> Tensor:
        """Return the number of rows without an owner, ``[1]`` int64, without reading it."""

    def preprocess(self, ids: Any) -> Any:
        """Return what ``profile`` and ``remap`` get for raw IDs, or features of them: the same, unless overridden."""
        return ids

    def input_size(self) -> int:
        """Return the limit of raw IDs."""
        return self._input_hash_size

    def buckets(self) -> int:
        """Return K, the number of parts that rows and IDs are divided into: ranks may hold some each."""
        return self._buckets

    def bucket_ends(self) -> Sequence[int]:
        """Return the row after the last of each bucket, K numbers."""
        return [self.output_size()]

    @abstractmethod
    def current_step(self) -> int:
        """Return the number of batches that it has learned from."""

    @property
    def process_group(self) -> distributed.ProcessGroup | None:
        """The ranks that decide together; None if this process decides alone."""
        return self._group

    def set_process_group(self, group: distributed.ProcessGroup | None) -> None:
        """Decide together with all ranks of a group from now on; None decides alone."""
        self._group = group

    def forward(self, features: Any, mutate_miss_lengths: bool = True) -> Any:
        """Map raw IDs to rows; in training mode it learns from them first, as from one batch.

        Args:
            features: Raw IDs ``[N]`` int64, or features of them by name.
            mutate_miss_lengths: Has no effect: IDs without a row of their own are mapped to the last row.

        Returns:
            Rows ``[N]`` int64, or the same features with rows as values.
        """
        del mutate_miss_lengths
        raw_ids = self.preprocess(features)
        if self.training:
            self.profile(raw_ids)
        return self.remap(raw_ids)


class MCHManagedCollisionModule(ManagedCollisionModule):
    """One row per raw ID while there are free rows; beyond that, an eviction policy decides.

    With several buckets the hash of an ID selects one, and its IDs compete for the bucket's rows alone.

    Any int64 is a valid raw ID, negative ones included. IDs without a row of their own read the table's last row,
    ``zch_size - 1``, which no ID ever owns. Every ``eviction_interval`` training batches the IDs of these batches
    are counted and new ones get rows, before the last of these batches is mapped.

    The state (which IDs own which rows, their counts, the step) is in buffers of fixed shape. Counts since
    the last admission are not part of it: a training that continues from a checkpoint starts them again. States of
    TorchRec's checkpoints can be loaded too; state dicts have the names here.

    Args:
        zch_size: Z, the table's ``num_embeddings``; at least 2.
        device: The device of the buffers; None is the default one.
        eviction_policy: Decides which IDs lose their rows first.
        eviction_interval: Batches between two admissions; at least 1.
        input_hash_size: The limit of raw IDs, the second argument of ``input_hash_func``; raw IDs are not checked.
        input_hash_func: Is given raw IDs ``[N]`` and returns those that get rows, ``[N]`` int64. For an export it must
            be traceable by FX.
        mch_size: Has no effect, as in TorchRec.
        mch_hash_func: As ``mch_size``.
        name: Not used.
        output_global_offset: TorchRec's first row of a shard; only 0 is taken: a plan makes shards.
        output_segments: TorchRec's shards; only None is taken.
        buckets: K, a divisor of Z. Ranks may hold some buckets each; their number is fixed for the life of the state.
        process_group: The ranks, if several train on batches of their own: admissions then use the batches of
            all ranks, and all ranks have the same mapping. Every rank must call the module equally often. The
            backend must support ``device``.

    Raises:
        ValueError: The size or the interval is too small, or the size is no multiple of the buckets.
    """

    raw_ids: Tensor
    rows: Tensor
    counts: Tensor
    last_steps: Tensor
    step: Tensor

    def __init__(  # noqa: PLR0913  (TorchRec's arguments)
        self,
        zch_size: int,
        device: torch.device | str | None,
        eviction_policy: MCHEvictionPolicy,
        eviction_interval: int,
        input_hash_size: int = FREE,
        input_hash_func: Callable[[Tensor, int], Tensor] | None = None,
        mch_size: int | None = None,
        mch_hash_func: Callable[[Tensor, int], Tensor] | None = None,
        name: str | None = None,
        output_global_offset: int = 0,
        output_segments: Sequence[int] | None = None,
        buckets: int = 1,
        *,
        process_group: distributed.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        del mch_size, mch_hash_func, name
        if output_global_offset != 0:
            raise ValueError(f"output_global_offset: got {output_global_offset}, expected 0: {NOT_DIVIDED}")
        if output_segments is not None:
            raise ValueError(f"output_segments: got {list(output_segments)}, expected None: {NOT_DIVIDED}")
        self._input_hash_size = input_hash_size
        self._input_hash_func = input_hash_func
        self._buckets = buckets
        if zch_size < 2:
            raise ValueError(f"zch_size: got {zch_size}, expected 2 or more: the last row has no owner")
        if buckets < 1 or zch_size % buckets:
            raise ValueError(
                f"buckets: got {buckets}, expected 1 or more, and a divisor of zch_size ({zch_size}): all buckets have "
                "as many rows"
            )
        if eviction_interval < 1:
            raise ValueError(f"eviction_interval: got {eviction_interval}, expected 1 or more")
        self._zch_size = zch_size
        self._policy = eviction_policy
        self._interval = eviction_interval
        self._group = process_group
        # `step` as a number, to avoid reading it from a device; None: read it from the buffer.
        self._step: int | None = None
        self._pending: list[Uses] = []

        def buffer(name: str, fill: int, size: int = zch_size) -> None:
            self.register_buffer(name, torch.full((size,), fill, dtype=torch.int64, device=device))

        buffer("raw_ids", FREE)
        buffer("rows", zch_size - 1)
        buffer("counts", 0)
        buffer("last_steps", 0)
        buffer("step", 0, size=1)
        self._register_load_state_dict_pre_hook(from_torchrec, with_module=True)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_post_hook(_after_loading)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Forget all IDs, as when it was made."""
        self.raw_ids.fill_(FREE)
        self.rows.fill_(self._zch_size - 1)
        for buffer in (self.counts, self.last_steps, self.step):
            buffer.zero_()
        self._step, self._pending, self._evicted = None, [], []
        self._owners_changed()

    @torch.no_grad()
    def profile(self, ids: Any) -> Any:
        """Count one batch's raw IDs, ``[N]`` int64, or features of them; admit new ones at the end of an interval.

        It computes the distinct IDs, whose number has to be read from a device. Features are returned.
        """
        if isinstance(ids, Mapping):
            self.profile_features(ids_of(ids))
            return ids
        self.check_whole()
        self._count(*torch.unique(ids, return_counts=True))
        return None

    def _count(self, ids: Tensor, counts: Tensor) -> None:
        """Count one batch's distinct IDs, ascending."""
        step = self.current_step() + 1
        self._step = step
        self.step.fill_(step)
        self._pending.append(Uses(ids=ids, counts=counts, last_steps=torch.full_like(ids, step)))
        if step % self._interval:
            return
        uses = merged(self._pending)
        self._pending = []
        if self._group is not None and self._part is None:
            uses = of_all_ranks(uses, self._group)
        states = self.states()
        buckets = self.buckets_of(uses.ids) - self._first_bucket
        for state, of_bucket in zip(states, by_bucket(uses, buckets, len(states)), strict=True):
            if not of_bucket.ids.numel():
                continue
            evicted, changed = admit(state, self._policy.filtered(of_bucket), self._policy, step)
            if evicted.numel():
                self._evicted.append(evicted)
            if changed.numel():
                self._owners_changed(changed)

    def remap(self, ids: Any) -> Any:
        """Map raw IDs ``[N]`` int64, or features of them, to rows; ``zch_size - 1`` for IDs without their own."""
        if isinstance(ids, Mapping):
            return by_feature(ids, self.remap)
        self.check_whole()
        return self.rows_here(ids)

    def rows_here(self, ids: Tensor) -> Tensor:
        """Return the row in the whole table of each ID of this rank's buckets, ``[N]`` int64."""
        size, last = self._zch_size // self._buckets, self._zch_size - 1
        if self.raw_ids.size(0) == size:
            return rows_of(self.raw_ids, self.rows, ids, last)
        starts = (self.buckets_of(ids) - self._first_bucket) * size
        return rows_in_buckets(self.raw_ids, self.rows, ids, starts, size, last)

    def buckets_of(self, ids: Tensor) -> Tensor:
        """Return the bucket of each ID, ``[N]`` int64."""
        return torch.remainder(mixed_ids(ids), self._buckets)

    def bucket_ends(self) -> Sequence[int]:
        """Return the row after the last of each bucket, K numbers."""
        size = self._zch_size // self._buckets
        return range(size, self._zch_size + 1, size)

    @property
    def _first_bucket(self) -> int:
        return 0 if self._part is None else self._part.buckets[0]

    def hold(self, part: MappingPart | None) -> None:
        """Drop what belongs to other ranks; None: be whole again, on the meta device. Drops recent counts, too."""
        self._part, self._pending = part, []
        cut(self, self.part_buffers(), self._zch_size, part)

    def part_buffers(self) -> Sequence[str]:
        """Return the names of the buffers that have an entry for each row."""
        return ("raw_ids", "rows", "counts", "last_steps")

    def uses(self, ids: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the distinct IDs of a batch with their counts, and the place of each ID; see ``Divisible``."""
        every = joined(list(ids.values())) if ids else self.raw_ids.new_empty(0)
        distinct, places, counts = torch.unique(every, return_inverse=True, return_counts=True)
        return torch.stack([distinct, counts], dim=1), places

    @torch.no_grad()
    def learn(self, uses: Tensor) -> None:
        """Count one batch of all ranks, of this rank's buckets; admit new IDs at the end of an interval."""
        ids, places = torch.unique(uses[:, 0], return_inverse=True)
        self._count(ids, torch.zeros_like(ids).index_add_(0, places, uses[:, 1]))

    def output_size(self) -> int:
        """Return Z."""
        return self._zch_size

    def open_slots(self) -> Tensor:
        """Return the rows here without an owner, ``[1]`` int64, at most Z - 1: the last row never has one."""
        has_last = self._part is None or self._part.rows[1] == self._zch_size
        return torch.eq(self.rows, self._zch_size - 1).sum().view(1) - int(has_last)

    def preprocess(self, ids: Any) -> Any:
        """Apply ``input_hash_func`` to raw IDs ``[N]`` int64, or to features of them."""
        if isinstance(ids, Mapping):
            return by_feature(ids, self.preprocess)
        return ids if self._input_hash_func is None else self._input_hash_func(ids, self._input_hash_size)

    @property
    def hashes_raw_ids(self) -> bool:
        """Whether there is an ``input_hash_func``."""
        return self._input_hash_func is not None

    def owners(self) -> tuple[Tensor, Tensor]:
        """Return the raw IDs that own rows here, int64 ascending, and their rows. Reads a tensor."""
        is_owned = self.rows != self._zch_size - 1
        ids, rows = self.raw_ids[is_owned], self.rows[is_owned]
        if self._buckets == 1:
            return ids, rows
        ids, order = ids.sort()
        return ids, rows[order]

    def rows_owned(self, ids: Tensor) -> Tensor:
        """Return the row that each ID of this rank's buckets owns, ``[N]`` int64; -1 for none."""
        rows = self.rows_here(ids)
        return torch.where(torch.eq(rows, self._zch_size - 1), -1, rows)

    def shared_rows(self) -> tuple[Tensor, Tensor]:
        """Return how many rows the IDs without one share, and the first, both ``[1]`` int64: the last row alone."""
        one = torch.ones(1, dtype=torch.int64, device=self.device)
        return one, one * (self._zch_size - 1)

    def current_step(self) -> int:
        """Return the number of profiled batches."""
        if self._step is None:
            # Read once, and again after a state is loaded.
            self._step = int(self.step)
        return self._step

    @property
    def device(self) -> torch.device:
        """Where the buffers lie."""
        return self.raw_ids.device

    def states(self) -> list[MappingState]:
        """Return the buffers, bucket by bucket."""
        size = self._zch_size // self._buckets
        buffers = (self.raw_ids, self.rows, self.counts, self.last_steps)
        return [
            MappingState(
                raw_ids=raw_ids,
                rows=rows,
                counts=counts,
                last_steps=last_steps,
                first_row=bucket * size,
                fallback=self._zch_size - 1,
            )
            for bucket, (raw_ids, rows, counts, last_steps) in enumerate(
                zip(*(buffer.split(size) for buffer in buffers), strict=True), self._first_bucket
            )
        ]

    def validate_state(self) -> None:
        """Check that the buffers are a mapping, after a state was loaded. Reads tensors.

        Raises:
            CheckpointError: A tensor is wrong; the message names it.
        """
        if self.raw_ids.is_meta:
            return
        at = "managed_collision_module"
        try:
            for bucket, state in enumerate(self.states(), self._first_bucket):
                check_state(state, at)
                ids = state.raw_ids[state.rows != state.fallback]
                if self._buckets > 1 and bool((self.buckets_of(ids) != bucket).any()):
                    raise ValueError(
                        f"{at}.raw_ids: got IDs in bucket {bucket} that belong to others, expected none"
                    )
        except ValueError as error:
            raise CheckpointError(f"{error}, in a state of {self._buckets} bucket(s)") from None
        if int(self.step) < 0:
            raise CheckpointError(f"{at}.step: got {int(self.step)}, expected 0 or more")


class VocabularyModule(MCHManagedCollisionModule):
    """A fixed list of raw IDs, each with a row of its own; all others read the last row.

    Args:
        zch_size: Z, the table's ``num_embeddings``; at least 2.
        device: The device of the buffers.
    """

    def __init__(self, zch_size: int, device: torch.device | str | None = None) -> None:
        super().__init__(zch_size, device, LFU_EvictionPolicy(), 1)

    def profile(self, ids: Any) -> Any:
        """Do nothing: the list does not change. Features are returned."""
        return ids if isinstance(ids, Mapping) else None

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
        self._owners_changed()


def _after_loading(module: Any, incompatible_keys: object) -> None:
    del incompatible_keys
    module._step = None
    module._pending = []
    module._evicted = []
    module._owners_changed()
    module.validate_state()
