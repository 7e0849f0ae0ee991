"""The path from a batch to each shard's IDs, for both transports: features are picked, checked and routed.

Shape letters: B batch, F features, E (feature, table) pairs, S slots, N number of IDs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from recsys.inputs.signature import IdPolicy
from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.kernels.bounds import INT64_MAX, BoundsCheckMode, IdCheck, IdRange, StructureCheck
from recsys.ops import fbgemm, is_traced, joined, present
from recsys.sharding.plan.layout import Entry, Layout


@dataclass(kw_only=True)
class GroupInput:
    """The input of one call of the lookup kernel.

    Attributes:
        values: ``[N]`` int64, rows of the shards.
        offsets: ``[S * B + 1]`` int64.
        weights: ``[N]`` float32, or None.
        slot_ends: ``[S - 1]`` int64 in host memory, the end of each slot's values except the last; sequences
            only.
        ids_per_slot: The number of values of each slot, if the transport knows it.
        batch_sizes: For each slot the batch sizes of all ranks, if they differ between slots.
    """

    values: Tensor
    offsets: Tensor
    weights: Tensor | None
    slot_ends: Tensor | None = None
    ids_per_slot: list[int] | None = None
    batch_sizes: list[list[int]] | None = None

    def sizes(self) -> dict[str, Any]:
        """Return the sizes that a process group's transport knows without reading a tensor."""
        if self.ids_per_slot is None:
            return {}
        return {"ids_per_slot": self.ids_per_slot, "batch_sizes": self.batch_sizes}


@dataclass(kw_only=True)
class DistInput:
    """A batch, split for the lookups.

    Attributes:
        groups: The groups that are looked up here, in the layout's order.
        lengths: ``[E * B]`` int64, on the device where the outputs are assembled.
        restore: For each entry of a sequence layout, ``[N of the pair]`` int64: where each ID's row went.
        strides: The batch size of each pair, if they may differ.
        inverse: ``[E, rows of the full batch]`` int64, which row of its pair's batch each stands for.
    """

    groups: list[GroupInput]
    lengths: Tensor
    restore: list[Tensor] = field(default_factory=list)
    strides: list[int] | None = None
    inverse: Tensor | None = None

    @property
    def is_flat(self) -> bool:
        """Whether pooled outputs are flat, pair by pair, because batch sizes differ on some rank."""
        return False


@dataclass(frozen=True, kw_only=True)
class CheckedIds:
    """IDs that lookups may trust: ``lengths`` ``[E * B]``, ``offsets``, ``values`` ``[N]``, ``weights``.

    Attributes:
        strides: The batch size of each pair, if they differ; lengths then have empty bags up to the largest.
        inverse: ``[E, rows of the full batch]`` int64, which row of its pair's batch each stands for.
    """

    lengths: Tensor
    offsets: Tensor
    values: Tensor
    weights: Tensor | None
    strides: list[int] | None = None
    inverse: Tensor | None = None


class PairIds(nn.Module):
    """Picks the features that a collection looks up, once for each table, and checks their IDs.

    Args:
        layout: The layout of the collection.
        is_weighted: Whether the lookups take weights.
        id_policies: For each table, how IDs out of range are treated; REJECT by default.
        mode: The treatment of rejected IDs.
    """

    def __init__(
        self,
        layout: Layout,
        is_weighted: bool,
        id_policies: dict[str, IdPolicy],
        mode: BoundsCheckMode,
    ) -> None:
        super().__init__()
        self._features = layout.features
        self.is_weighted = is_weighted
        self.structure = StructureCheck()
        tables = [layout.tables[pair.table] for pair in layout.pairs]
        self.ids = IdCheck(
            [
                IdRange(
                    name=pair.name,
                    num_embeddings=table.num_embeddings,
                    policy=id_policies.get(table.name, IdPolicy.REJECT),
                )
                for pair, table in zip(layout.pairs, tables, strict=True)
            ],
            mode,
        )

    def forward(self, features: KeyedJaggedTensor) -> CheckedIds:
        """Pick the features and check their IDs.

        Raises:
            ValueError: A feature is missing, weights are missing, lengths and values disagree, an ID is out of
                range, or the batch is not in host memory.
        """
        missing = sorted(set(self._features) - set(features.keys()))
        if missing:
            raise ValueError(f"features: missing {missing}, got {features.keys()}")
        # FBGEMM's lookup requires contiguous weights.
        weights = features.weights().to(torch.float32).contiguous() if self.is_weighted else None
        lengths, values, stride = features.lengths(), features.values(), features.stride()
        strides, inverse = None, None
        if not is_traced(lengths, values):
            lengths, values = _as_int64(lengths, values)
            _check_one_dimension(values=values, weights=weights)
            if features.variable_stride_per_key():
                strides = [features.stride_per_key()[features.index_per_key()[f]] for f in self._features]
                inverse = self._inverse(features)
                lengths = pad_sequence(
                    list(torch.split(lengths, features.stride_per_key())), batch_first=True
                )
                stride, lengths = lengths.size(1), lengths.view(-1)
        in_order = self._features == features.keys()
        if weights is not None:
            # Raises if a graph gets more or fewer weights than IDs; FBGEMM would read out of bounds.
            weights = weights.view(values.size(0))
        if not in_order:
            self.structure(lengths, values)
            positions = features.index_per_key()
            order = self._order([positions[name] for name in self._features], traced=is_traced(values))
            picked, values, picked_weights = fbgemm.permute_2D_sparse_data(
                order, lengths.view(len(positions), stride), values, weights
            )
            lengths = picked.view(-1)
            weights = None if weights is None else present(picked_weights)
        safe, offsets = self.ids(lengths, values)
        return CheckedIds(
            lengths=lengths, offsets=offsets, values=safe, weights=weights, strides=strides, inverse=inverse
        )

    def _inverse(self, features: KeyedJaggedTensor) -> Tensor | None:
        given = features.inverse_indices_or_none()
        if given is None:
            return None
        keys, indices = given
        return indices.index_select(0, torch.tensor([keys.index(name) for name in self._features]))

    def _order(self, positions: Sequence[int], *, traced: bool) -> Tensor:
        order = torch.tensor(positions, dtype=torch.int32)
        if traced:
            # The buffer's name in a graph identifies its pairs.
            self.register_buffer("order_" + "_".join(map(str, positions)), order, persistent=False)
        return order


def _as_int64(lengths: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    if values.device.type != "cpu" or lengths.device.type != "cpu":
        raise ValueError(
            f"features: got a batch on {values.device}, expected host memory: the batch is split where its "
            "lengths can be read, and goes to the devices from there"
        )
    if values.is_floating_point() and values.numel():
        raise ValueError(f"values: got dtype {values.dtype}, expected int32 or int64")
    return lengths.to(torch.int64).contiguous(), values.to(torch.int64).contiguous()


def _check_one_dimension(**tensors: Tensor | None) -> None:
    for name, tensor in tensors.items():
        if tensor is not None and tensor.dim() != 1:
            raise ValueError(f"{name}: got shape {list(tensor.shape)}, expected one dimension")


@dataclass(frozen=True, kw_only=True)
class Routed:
    """A batch in the order of the slots.

    Attributes:
        lengths: ``[S * B]`` int64, slot-major.
        values: ``[N]`` int64, rows of the slots' shards.
        weights: ``[N]`` float32, or None.
        restore: For each entry of a sequence layout, ``[N of the pair]`` int64: where each ID's row went, counted
            through the parts of the entry.
        offsets: ``[S * B + 1]``, those of the lengths, if they are known.
    """

    lengths: Tensor
    values: Tensor
    weights: Tensor | None
    restore: list[Tensor]
    offsets: Tensor | None = None


class Router(nn.Module):
    """Routes checked IDs to the slots of a layout.

    Args:
        layout: The layout of the collection.
        sequence: Whether to keep the data for restoring the order of single IDs' rows.
    """

    order: Tensor

    def __init__(self, layout: Layout, *, sequence: bool) -> None:
        super().__init__()
        self._num_pairs = len(layout.pairs)
        self._sequence = sequence
        # Sequences are cut pair by pair, because FBGEMM's inverse covers everything that one call cuts.
        entries = layout.entries
        positions = range(len(entries))
        steps = [[i] for i in positions] if sequence else ([list(positions)] if entries else [])
        cuts = [_RowCut([entries[i] for i in step], self._num_pairs) for step in steps]
        self.cuts = nn.ModuleList(cuts)
        self._num_rows = self._num_pairs + sum(cut.num_rows for cut in cuts)
        first_row = {}
        at = self._num_pairs
        for step in steps:
            num_parts = max(len(entries[i].bounds) - 1 for i in step)
            for k, i in enumerate(step):
                first_row[i] = (at + k, len(step))
            at += num_parts * len(step)
        order = []
        for _, slot in layout.slots:
            if slot.entry is None:
                order.append(slot.pair)
            else:
                start, stride = first_row[slot.entry]
                order.append(start + slot.part * stride)
        self.in_order = order == list(range(self._num_pairs))
        self.register_buffer("order", torch.tensor(order, dtype=torch.int32), persistent=False)

    def forward(self, lengths: Tensor, values: Tensor, weights: Tensor | None) -> Routed:
        """Route a batch.

        Args:
            lengths: ``[E * B]`` int64, pair-major.
            values: ``[N]`` int64, checked.
            weights: ``[N]`` float32, or None.
        """
        num_bags = lengths.size(0) // self._num_pairs
        all_lengths, all_values, all_weights = [lengths], [values], [weights]
        restore = []
        for cut in self.cuts:
            cut_lengths, cut_values, cut_weights, back = cut(lengths, values, weights, num_bags)
            all_lengths.append(cut_lengths)
            all_values.append(cut_values)
            all_weights.append(cut_weights)
            restore.append(back)
        slot_lengths, slot_values, slot_weights = fbgemm.permute_2D_sparse_data(
            self.order,
            joined(all_lengths).view(self._num_rows, num_bags),
            joined(all_values),
            None if weights is None else joined([w for w in all_weights if w is not None]),
        )
        return Routed(
            lengths=slot_lengths.view(-1),
            values=slot_values,
            weights=None if weights is None else present(slot_weights),
            restore=restore,
        )


class _RowCut(nn.Module):
    """Distributes the IDs of some pairs to the row shards of their tables, with FBGEMM's bucketize."""

    pairs: Tensor
    block_sizes: Tensor

    def __init__(self, entries: Sequence[Entry], num_pairs: int) -> None:
        super().__init__()
        pairs = [entry.pair for entry in entries]
        self._num_parts = max(len(entry.bounds) for entry in entries) - 1
        self.num_rows = self._num_parts * len(entries)
        self._all_pairs = pairs == list(range(num_pairs))
        self._num_pairs = num_pairs
        self.register_buffer("pairs", torch.tensor(pairs, dtype=torch.int32), persistent=False)
        # FBGEMM also requires block sizes of equal parts; the bounds below override them.
        self.register_buffer("block_sizes", torch.full((len(entries),), INT64_MAX), persistent=False)
        self._bounds_names = []
        for i, entry in enumerate(entries):
            # Entries with fewer parts get empty ones at the end.
            bounds = [*entry.bounds, *[entry.bounds[-1]] * (self._num_parts + 1 - len(entry.bounds))]
            self.register_buffer(f"bounds_{i}", torch.tensor(bounds), persistent=False)
            self._bounds_names.append(f"bounds_{i}")

    def forward(
        self, lengths: Tensor, values: Tensor, weights: Tensor | None, num_bags: int
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """Return part-major lengths, values (rows of the shards) and weights, and each ID's place among the values."""
        weighted = weights is not None
        if not self._all_pairs:
            picked, values, picked_weights = fbgemm.permute_2D_sparse_data(
                self.pairs, lengths.view(self._num_pairs, num_bags), values, weights
            )
            lengths = picked.view(-1)
            weights = present(picked_weights) if weighted else None
        cut_lengths, cut_values, cut_weights, _, back = fbgemm.block_bucketize_sparse_features(
            lengths,
            values,
            False,
            True,
            self.block_sizes,
            self._num_parts,
            weights,
            None,
            -1,
            [getattr(self, name) for name in self._bounds_names],
        )
        return cut_lengths, cut_values, present(cut_weights) if weighted else None, present(back)
