"""HashZchManagedCollisionModule: rows by hash and probing, and owners that lose them with time.

Shape letters: K number of buckets, N number of IDs, Z ``zch_size``: rows of the table.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NoReturn

import torch
from torch import Tensor, distributed

from recsys.base.collectives import gather_rows, largest
from recsys.errors import CheckpointError
from recsys.jagged.by_feature import by_feature, ids_of
from recsys.managed.expiry import (
    SECONDS_PER_HOUR,
    HashZchEvictionConfig,
    HashZchEvictionPolicyName,
    check_eviction,
    lifetime,
)
from recsys.managed.module import NOT_DIVIDED, ManagedCollisionModule
from recsys.managed.parts import MappingPart, cut
from recsys.managed.probing import (
    FREE_ROW,
    NewIds,
    Owners,
    Ways,
    bucket_of,
    find_rows,
    num_reserved_rows,
    place,
    segments_of,
    turns,
)

_METADATA = "_hash_zch_metadata"


class HashZchManagedCollisionModule(ManagedCollisionModule):
    """Gives each new ID the first free row on its way from the row that its hash selects.

    A new ID gets its row at once, in the batch in which it is first seen. An ID that finds none reads the row that its
    hash selects, or one of the reserved rows, with others. ``-1`` marks rows without an owner: as an ID it never gets
    a row, and reads the first free one on its way.

    The state has TorchRec's names, and its checkpoints can be loaded: ``_hash_zch_identities``, the owner of each row;
    ``_hash_zch_metadata``, with a policy, the hour from which on an owner may lose the row; ``_hash_zch_bucket``; and
    ``_hash_zch_runtime_meta`` with ``track_id_freq``.

    Args:
        zch_size: Z, the table's ``num_embeddings``.
        device: The device of the buffers; None is the default one.
        total_num_buckets: K, runs of rows between which an ID never moves. Ranks may hold some each.
        max_probe: How many rows on an ID's way are compared.
        input_hash_size: The limit of raw IDs, of which each bucket gets a run; 0: any ID, by its remainder.
        output_segments: The first row of each bucket, and Z; equal buckets by default.
        is_inference: Start as ``reset_inference_mode`` leaves it.
        name: Not used.
        tb_logging_frequency: Has no effect: nothing is written for TensorBoard.
        eviction_policy_name: Which owners lose their rows; None: none ever does.
        eviction_config: The settings of the policy.
        inference_dispatch_div_train_world_size: Only False is taken.
        start_bucket: TorchRec's first bucket of a rank; only 0 is taken: a plan makes shards.
        end_bucket: Its last; only None or K is taken.
        opt_in_prob: Percent of the batches' new IDs that may get a row, drawn at each use; -1: all, without reserved
            rows.
        percent_reserved_slots: Percent of the rows that are reserved for IDs without a row, with ``opt_in_prob``.
        disable_fallback: Only False is taken: every ID reads a row.
        track_id_freq: Count the uses of each row's owner in training.
        read_only_suffix: Nothing is learned from features whose names end with it.
        enable_per_feature_lookups: Has no effect: each feature is known here.
        no_bag: Has no effect without ``disable_fallback``.
        write_runtime_meta_dim: Only 0 is taken.
        persist_hash_zch_bucket: Whether ``_hash_zch_bucket`` is part of the state.
        process_group: As for ``MCHManagedCollisionModule``.
        clock: Returns seconds since 1970.

    Raises:
        ValueError: An argument is out of range, or asks for what is not offered.
    """

    _hash_zch_identities: Tensor
    _hash_zch_metadata: Tensor | None
    _hash_zch_bucket: Tensor
    _hash_zch_runtime_meta: Tensor | None
    bucket_rows: Tensor
    bucket_starts: Tensor

    def __init__(  # noqa: PLR0913  (TorchRec's arguments)
        self,
        zch_size: int,
        device: torch.device | str | None,
        total_num_buckets: int,
        max_probe: int = 128,
        input_hash_size: int = 0,
        output_segments: Sequence[int] | None = None,
        is_inference: bool = False,
        name: str | None = None,
        tb_logging_frequency: int = 0,
        eviction_policy_name: HashZchEvictionPolicyName | None = None,
        eviction_config: HashZchEvictionConfig | None = None,
        inference_dispatch_div_train_world_size: bool = False,
        start_bucket: int = 0,
        end_bucket: int | None = None,
        opt_in_prob: int = -1,
        percent_reserved_slots: float = 0,
        disable_fallback: bool = False,
        track_id_freq: bool = False,
        read_only_suffix: str = "_readonly",
        enable_per_feature_lookups: bool = False,
        no_bag: bool = False,
        write_runtime_meta_dim: int = 0,
        persist_hash_zch_bucket: bool = True,
        *,
        process_group: distributed.ProcessGroup | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        del name, tb_logging_frequency, enable_per_feature_lookups, no_bag
        if disable_fallback or inference_dispatch_div_train_world_size or write_runtime_meta_dim:
            _refuse(disable_fallback, inference_dispatch_div_train_world_size)
        if start_bucket != 0 or end_bucket not in (None, total_num_buckets):
            raise ValueError(
                f"start_bucket, end_bucket: got {start_bucket}, {end_bucket}, expected 0 and "
                f"{total_num_buckets}: {NOT_DIVIDED}"
            )
        if max_probe < 1:
            raise ValueError(f"max_probe: got {max_probe}, expected 1 or more")
        check_eviction(eviction_policy_name, eviction_config)
        segments = segments_of(zch_size, total_num_buckets, output_segments)
        num_reserved = num_reserved_rows(zch_size, total_num_buckets, opt_in_prob, percent_reserved_slots)
        sizes = [end - start for start, end in pairwise(segments)]
        if min(sizes) <= num_reserved:
            raise ValueError(
                f"output_segments: got a bucket of {min(sizes)} rows, expected more than the {num_reserved} that are "
                "reserved in each"
            )
        self._zch_size = zch_size
        self._buckets = total_num_buckets
        self._max_probe = max_probe
        self._most_probes = min(max_probe, max(sizes) - num_reserved)
        self._input_hash_size = input_hash_size
        self._policy = eviction_policy_name
        self._config = eviction_config
        self._opt_in_prob = opt_in_prob
        self._num_reserved = num_reserved
        self._read_only_suffix = read_only_suffix
        self._group = process_group
        self._clock = clock
        self._num_steps = 0
        # That of the latest batch.
        self._hour = 0

        def buffer(name: str, data: Tensor | None, *, persistent: bool = True) -> None:
            self.register_buffer(name, None if data is None else data.to(device), persistent=persistent)

        rows = torch.full((zch_size, 1), FREE_ROW, dtype=torch.int64)
        has_policy = eviction_policy_name is not None
        buffer("_hash_zch_identities", rows)
        buffer(_METADATA, rows.to(torch.int32) if has_policy else None)
        buffer("_hash_zch_bucket", torch.tensor([[total_num_buckets]]), persistent=persist_hash_zch_bucket)
        buffer("_hash_zch_runtime_meta", torch.zeros_like(rows) if track_id_freq else None)
        self._segments = segments
        buffer("bucket_rows", torch.tensor(sizes), persistent=False)
        buffer("bucket_starts", torch.tensor(segments[:-1]), persistent=False)
        self._register_load_state_dict_pre_hook(_before_loading, with_module=True)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_post_hook(_after_loading)  # type: ignore[no-untyped-call]
        if is_inference:
            self.reset_inference_mode()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Forget all IDs, as when it was made."""
        self._hash_zch_identities.fill_(FREE_ROW)
        self._hash_zch_bucket.fill_(self._buckets)
        if self._hash_zch_metadata is not None:
            self._hash_zch_metadata.fill_(FREE_ROW)
        if self._hash_zch_runtime_meta is not None:
            self._hash_zch_runtime_meta.zero_()
        starts = torch.tensor(self._segments)
        self.bucket_starts.copy_(starts[:-1])
        self.bucket_rows.copy_(starts.diff())
        self._evicted, self._num_steps = [], 0
        self._owners_changed()

    def profile(self, ids: Any) -> Any:
        """Give rows to one batch's new raw IDs, ``[N]`` int64, or to those of features, which are returned.

        Raises:
            ValueError: The policy has no time for a feature, or needs to know the IDs' feature.
        """
        if isinstance(ids, Mapping):
            self.profile_features(ids_of(ids))
            return ids
        self.profile_features({"": ids})
        return None

    @torch.no_grad()
    def profile_features(self, ids: Mapping[str, Tensor]) -> None:
        """Give rows to one batch's new raw IDs, ``[N]`` int64 by feature, and renew the time of known ones.

        Raises:
            ValueError: The policy has no time for a feature.
        """
        self.check_whole()
        packed, _ = self.uses(ids)
        if self._group is not None:
            packed = torch.cat(gather_rows(packed, self._group))
        self.learn(packed)

    def uses(self, ids: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the distinct IDs of a batch with what is learned of them; see ``Divisible``.

        The other columns are the hour from which on an ID may lose its row, whether it may get one, and its uses: 0 in
        features that teach nothing.

        Raises:
            ValueError: The policy has no time for a feature.
        """
        hour = self._hour = int(self._clock()) // SECONDS_PER_HOUR
        parts = []
        for feature, part in ids.items():
            teaches = not feature.lower().endswith(self._read_only_suffix)
            used = torch.full_like(part, int(teaches))
            expiry = torch.full_like(part, self._expiry(feature, hour) if teaches else FREE_ROW)
            parts.append(torch.stack([part, expiry, self._opts_in(part) * used, used], dim=1))
        packed = torch.cat(parts) if parts else self._hash_zch_identities.new_zeros(0, 4)
        return _merged(packed)

    @torch.no_grad()
    def learn(self, uses: Tensor) -> None:
        """Give rows to the new IDs of one batch of all ranks, and renew the time of known ones."""
        self._num_steps += 1
        hour = self._hour
        if self._group is not None and self._part is None and self._policy is not None:
            # Ranks that decide alike need one hour, also while it changes.
            hour = largest(hour, self._group)
        packed = uses[(uses[:, 0] != FREE_ROW) & (uses[:, 3] > 0)]
        if self._group is not None:
            packed, _ = _merged(packed)
        ids, expiries, opts_in, counts = packed.unbind(dim=1)
        self._learn(ids, counts, expiries.to(torch.int32), opts_in > 0, hour)

    def _learn(self, ids: Tensor, counts: Tensor, expiries: Tensor, opts_in: Tensor, hour: int) -> None:
        """Renew and place distinct IDs, all arguments ``[N]``."""
        buckets = self.buckets_of(ids)
        ways = self._ways(buckets)
        rows = find_rows(ids, self._hash_zch_identities, self._max_probe, ways, disable_fallback=True)
        metadata = None if self._policy is None else self._hash_zch_metadata
        is_known = rows >= 0
        if metadata is not None:
            known = rows[is_known]
            metadata[known, 0] = torch.maximum(metadata[known, 0], expiries[is_known])
        asks = (~is_known & opts_in).nonzero().flatten()
        new = NewIds(
            ids=ids[asks],
            sizes=ways.sizes[asks] - self._num_reserved,
            starts=ways.starts[asks],
            turns=turns(buckets[asks], self._buckets),
            expiries=None if metadata is None else expiries[asks],
        )
        owners = Owners(
            identities=self._hash_zch_identities,
            expiries=metadata,
            hour=hour,
            oldest_first=self._policy is HashZchEvictionPolicyName.LRU_EVICTION,
        )
        rows[asks], evicted, former = place(owners, new, self._most_probes)
        self._tell_owners(torch.cat([new.ids[rows[asks] >= 0], former]))
        if evicted.numel():
            self._evicted.append(evicted + self._first_row)
        if self._hash_zch_runtime_meta is not None:
            self._hash_zch_runtime_meta[evicted] = 0
            has_row = rows >= 0
            self._hash_zch_runtime_meta[rows[has_row], 0] += counts[has_row]

    def _tell_owners(self, changed: Tensor) -> None:
        if changed.numel():
            # What -1 reads may be a free row, or have been one.
            free = changed.new_full((1,), FREE_ROW)
            self._owners_changed(torch.cat([changed, free[self._is_here(free)]]))

    def _expiry(self, feature: str, hour: int) -> int:
        if self._policy is None or self._config is None:
            return FREE_ROW
        return hour + lifetime(self._policy, self._config, feature)

    def _opts_in(self, ids: Tensor) -> Tensor:
        """Return 1 for each use of an ID that lets it have a row, ``[N]`` int64."""
        if not 0 < self._opt_in_prob < 100:
            return torch.ones_like(ids)
        return torch.lt(torch.rand(ids.shape, device=ids.device) * 100, self._opt_in_prob).to(torch.int64)

    def remap(self, ids: Any) -> Any:
        """Map raw IDs ``[N]`` int64, or features of them, to rows; those without one of their own to a shared one."""
        if isinstance(ids, Mapping):
            return by_feature(ids, self.remap)
        self.check_whole()
        return self.rows_here(ids)

    def rows_here(self, ids: Tensor) -> Tensor:
        """Return the row in the whole table of each ID of this rank's buckets, ``[N]`` int64."""
        ways = self._ways(self.buckets_of(ids))
        rows = find_rows(ids, self._hash_zch_identities, self._max_probe, ways)
        return rows + self._first_row if self._first_row else rows

    def buckets_of(self, ids: Tensor) -> Tensor:
        """Return the bucket of each ID, ``[N]`` int64."""
        return bucket_of(ids, self._buckets, self._input_hash_size)

    def bucket_ends(self) -> Sequence[int]:
        """Return the row after the last of each bucket, K numbers."""
        return self._segments[1:]

    @property
    def _first_row(self) -> int:
        return 0 if self._part is None else self._part.rows[0]

    def _ways(self, buckets: Tensor) -> Ways:
        starts = self.bucket_starts.index_select(0, buckets)
        return Ways(
            sizes=self.bucket_rows.index_select(0, buckets),
            starts=starts - self._first_row if self._first_row else starts,
            num_reserved=self._num_reserved,
        )

    def hold(self, part: MappingPart | None) -> None:
        """Drop what belongs to other ranks; None: be whole again, on the meta device."""
        self._part = part
        cut(self, self.part_buffers(), self._zch_size, part)

    def part_buffers(self) -> Sequence[str]:
        """Return the names of the buffers that have an entry for each row."""
        names = ("_hash_zch_identities", _METADATA, "_hash_zch_runtime_meta")
        return [name for name in names if getattr(self, name) is not None]

    def shared_rows(self) -> tuple[Tensor, Tensor]:
        """Return how many rows the IDs of each bucket that own none share, and the first of them, ``[K]`` int64."""
        if not self._num_reserved:
            return self.bucket_rows, self.bucket_starts
        ends = self.bucket_starts + self.bucket_rows
        return torch.full_like(self.bucket_rows, self._num_reserved), ends - self._num_reserved

    def owners(self) -> tuple[Tensor, Tensor]:
        """Return the raw IDs that own rows here, int64, each once, and their rows. Reads tensors.

        -1 is one of them if it reads a free row.
        """
        ids = torch.unique(self._hash_zch_identities)
        if self._part is not None:
            ids = ids[self._is_here(ids)]
        rows = self.rows_owned(ids)
        return ids[rows >= 0], rows[rows >= 0]

    def rows_owned(self, ids: Tensor) -> Tensor:
        """Return the row that each ID of this rank's buckets owns, ``[N]`` int64; -1 for none."""
        rows = self.rows_here(ids)
        return torch.where(self._hash_zch_identities[rows - self._first_row, 0] == ids, rows, -1)

    def _is_here(self, ids: Tensor) -> Tensor:
        """Return which IDs belong to this rank's buckets, a mask ``[N]``."""
        first, end = (0, self._buckets) if self._part is None else self._part.buckets
        buckets = self.buckets_of(ids)
        return (buckets >= first) & (buckets < end)

    def output_size(self) -> int:
        """Return Z."""
        return self._zch_size

    def open_slots(self) -> Tensor:
        """Return the rows here that IDs may get and that have no owner, ``[1]`` int64."""
        free = torch.eq(self._hash_zch_identities, FREE_ROW).sum().view(1)
        first, end = (0, self._buckets) if self._part is None else self._part.buckets
        return free - self._num_reserved * (end - first)

    def current_step(self) -> int:
        """Return the number of batches since the module was made; it is not part of the state."""
        return self._num_steps

    @property
    def device(self) -> torch.device:
        """Where the buffers lie."""
        return self._hash_zch_identities.device

    @property
    def max_probe(self) -> int:
        """How many rows on an ID's way are compared."""
        return self._max_probe

    @property
    def read_only_suffix(self) -> str:
        """The end of the names of features from which nothing is learned."""
        return self._read_only_suffix

    def get_reserved_slots_per_bucket(self) -> int:
        """Return the reserved rows of each bucket; -1 if there are none."""
        return self._num_reserved or -1

    def reset_inference_mode(self) -> None:
        """Go to eval mode, and drop the owners' times: they are no longer part of the state."""
        self.eval()
        self._evicted = []
        self._hash_zch_metadata = None

    def reset_intrainer_bulk_eval_mode(self) -> None:
        """Go to eval mode."""
        self.eval()
        self._evicted = []

    def reset_training_mode(self) -> None:
        """Go to training mode."""
        self.train()

    def lookup_runtime_meta(self, features: Tensor, remapped_ids: Tensor) -> Tensor:
        """Return how often raw IDs ``[N]`` were used since they got their rows, ``[N]`` int64.

        Args:
            features: The raw IDs.
            remapped_ids: Their rows. An ID that does not own it has 0 uses.

        Returns:
            -1 for each without ``track_id_freq``.
        """
        if self._hash_zch_runtime_meta is None:
            return torch.full_like(remapped_ids, -1)
        self.check_whole()
        counts = self._hash_zch_runtime_meta[remapped_ids, 0]
        return torch.where(self._hash_zch_identities[remapped_ids, 0] == features, counts, 0)

    def validate_state(self) -> None:
        """Check that every owner finds its row, after a state was loaded. Reads tensors.

        Raises:
            CheckpointError: One does not.
        """
        if self._hash_zch_identities.is_meta:
            return
        ids = torch.unique(self._hash_zch_identities)
        ids = ids[ids != FREE_ROW]
        is_here = self._is_here(ids)
        ways = self._ways(self.buckets_of(ids[is_here]))
        found = find_rows(
            ids[is_here], self._hash_zch_identities, self._max_probe, ways, disable_fallback=True
        )
        lost = torch.cat([ids[~is_here], ids[is_here][found < 0]])
        if lost.numel():
            raise CheckpointError(
                f"_hash_zch_identities: got {lost.numel()} IDs, {int(lost[0])} first, in rows that are not on their "
                "way, expected a state of the same zch_size, total_num_buckets, max_probe, input_hash_size and "
                "reserved rows"
            )


def _merged(uses: Tensor) -> tuple[Tensor, Tensor]:
    """Return uses with each ID once, ascending, and the place of each use, ``[M]``: of an ID the latest hour counts."""
    ids, places = torch.unique(uses[:, 0], return_inverse=True)
    merged = uses.new_empty(ids.numel(), uses.size(1))
    merged.scatter_reduce_(0, places.unsqueeze(1).expand_as(uses), uses, reduce="amax", include_self=False)
    merged[:, 3] = torch.zeros_like(ids).index_add_(0, places, uses[:, 3])
    return merged, places


def _refuse(disable_fallback: bool, divides: bool) -> NoReturn:
    if disable_fallback:
        raise ValueError(
            "disable_fallback: got True, expected False: an ID without a row reads one that it shares; reserve rows "
            "for such IDs with opt_in_prob=100 and percent_reserved_slots"
        )
    if divides:
        raise ValueError(
            "inference_dispatch_div_train_world_size: got True, expected False: raw IDs are kept as they are"
        )
    raise ValueError(
        "write_runtime_meta_dim: got a number above 0, expected 0: use track_id_freq, or keep values by row yourself"
    )


def _before_loading(
    module: HashZchManagedCollisionModule, state: dict[str, Any], prefix: str, *_: object
) -> None:
    """Leave out the owners' times, where the module has none: it was frozen, or no owner ever loses its row."""
    if module._hash_zch_metadata is None:
        state.pop(prefix + _METADATA, None)


def _after_loading(module: HashZchManagedCollisionModule, incompatible_keys: object) -> None:
    del incompatible_keys
    module._evicted = []
    module._owners_changed()
    stored = module._hash_zch_bucket
    if not stored.is_meta and stored.tolist() != [[module._buckets]]:
        raise CheckpointError(
            f"_hash_zch_bucket: got {stored.tolist()}, expected [[{module._buckets}]], the module's total_num_buckets"
        )
    module.validate_state()
