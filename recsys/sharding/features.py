"""From a KeyedJaggedTensor to checked IDs, pair by pair.

Shape letters: B batch, F features, E (feature, table) pairs, N number of IDs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from recsys.bounds import BoundsCheckMode, IdCheck, IdRange, StructureCheck
from recsys.keyed_jagged import KeyedJaggedTensor
from recsys.ops import fbgemm, is_traced, present
from recsys.sharding.layout import Layout
from recsys.signature import IdPolicy


@dataclass(frozen=True, kw_only=True)
class CheckedIds:
    """IDs that lookups may trust: ``lengths`` ``[E * B]``, ``offsets``, ``values`` ``[N]``, ``weights``.

    Attributes:
        strides: for each pair its batch size, where they differ: lengths have empty bags up to the largest then.
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
        layout: of the collection.
        is_weighted: whether the lookups take weights.
        id_policies: for each table, what becomes of IDs out of range; REJECT where it is not named.
        mode: what the bounds check does about rejected IDs.
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
        self._is_weighted = is_weighted
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
        """Pick and check.

        Raises:
            ValueError: a feature is missing, weights are missing, lengths and values disagree, an ID is out of
                range, or the batch does not lie in host memory.
        """
        missing = sorted(set(self._features) - set(features.keys()))
        if missing:
            raise ValueError(f"features: missing {missing}, got {features.keys()}")
        # FBGEMM's lookup misreads weights that are not contiguous.
        weights = features.weights().to(torch.float32).contiguous() if self._is_weighted else None
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
            # An error where a graph is given more or fewer weights than IDs; FBGEMM would read past them.
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
            # A graph keeps it under a name that says whose it is.
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
