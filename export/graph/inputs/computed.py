"""KeyedJaggedTensors that know whether their IDs came with the request, or the model computes them.

Shape letters: B batch, F features, N number of IDs.

The server checks the IDs of requests before they meet those of others. IDs that ``forward`` computes (hashed, crossed,
shifted) it does not know: the graph checks them, in words by which the server finds the request that is to blame.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from recsys.inputs.signature import IdPolicy
from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.jagged.tensor import JaggedTensor
from recsys.sharding.sharded import DistributedKeyedJaggedTensor, ShardedCollection

_KEYS = "keys_of_request"


class RequestFeatures(KeyedJaggedTensor):
    """A sparse argument of ``forward``, or some of its features: the server has checked its IDs.

    Args:
        keys: As of ``KeyedJaggedTensor``.
        values: The same.
        argument: The name of the argument; empty where nothing asks for it.
        **others: As of ``KeyedJaggedTensor``.
    """

    def __init__(self, keys: list[str], values: Tensor, *, argument: str = "", **others: Any) -> None:
        super().__init__(keys, values, **others)
        self.argument = argument
        _note(values, keys)

    def to_dict(self, compute_offsets: bool = True) -> dict[str, JaggedTensor]:
        """Return one jagged tensor per key."""
        found = super().to_dict(compute_offsets)
        for key, jagged in found.items():
            _note(jagged.values(), [key])
        return found

    def _select(self, indices: list[int]) -> KeyedJaggedTensor:
        found = super()._select(indices)
        return RequestFeatures(
            found.keys(),
            found.values(),
            weights=found.weights_or_none(),
            lengths=found.lengths(),
            stride=found.stride(),
            length_per_key=found.length_per_key_or_none(),
            argument=self.argument,
        )


def _note(values: object, keys: list[str]) -> None:
    """Note in the graph that a tensor holds the IDs of these features as they came with the request."""
    if isinstance(values, fx.Proxy):
        values.node.meta[_KEYS] = keys


def _noted(node: fx.Node) -> list[str] | None:
    """Return the features whose IDs a tensor holds, one after the other; None where they may be computed."""
    if _KEYS in node.meta:
        keys: list[str] = node.meta[_KEYS]
        return keys
    if node.target is not torch.cat or not isinstance(node.args[0], (list, tuple)):
        return None
    parts = [_noted(part) if isinstance(part, fx.Node) else None for part in node.args[0]]
    return None if None in parts else [key for part in parts for key in part or ()]


def check_computed(
    collection: ShardedCollection, paths: Mapping[str, str], policies: Mapping[str, IdPolicy]
) -> None:
    """Let a collection check the IDs that the model computes for it, before every lookup.

    Args:
        collection: The collection in a graph that is about to be traced.
        paths: Its tables' paths, by name.
        policies: Of tables, by path; IDs are checked where they are rejected.
    """
    limits: dict[str, list[tuple[str, int]]] = {}
    for pair in collection.layout.pairs:
        table = collection.layout.tables[pair.table]
        name = paths[table.name]
        if policies.get(name, IdPolicy.REJECT) is IdPolicy.REJECT:
            limits.setdefault(pair.feature, []).append((name, table.num_embeddings))
    smallest = {feature: min(found, key=lambda use: use[1]) for feature, found in limits.items()}

    def check(
        _: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        [features] = [*positional, *named.values()]
        if isinstance(features, (RequestFeatures, DistributedKeyedJaggedTensor)):
            return None
        values: Any = features.values()
        if not isinstance(values, fx.Proxy) or _noted(values.node) == features.keys():
            return None
        uses = [smallest.get(key, ("", -1)) for key in features.keys()]  # noqa: SIM118 (not a dict)
        names, bounds = [name for name, _ in uses], [limit for _, limit in uses]
        checked = checked_ids(cast(Tensor, values), features.lengths(), names, bounds)
        return (_with_values(features, checked),), {}

    if smallest:
        collection.register_forward_pre_hook(check, with_kwargs=True)


def _with_values(features: KeyedJaggedTensor, values: Tensor) -> KeyedJaggedTensor:
    return KeyedJaggedTensor(
        features.keys(),
        values,
        weights=features.weights_or_none(),
        lengths=features.lengths(),
        stride=features.stride(),
        length_per_key=features.length_per_key_or_none(),
    )


def checked_ids(values: Tensor, lengths: Tensor, names: list[str], limits: list[int]) -> Tensor:
    """Return IDs after a check that those of each feature are rows of its table.

    Args:
        values: ``[N]``.
        lengths: ``[F * B]``.
        names: The table of each feature.
        limits: Its rows; -1 where any ID is taken.

    Raises:
        ValueError: An ID is none. In a graph it is torch's error, with these words.
    """
    if values.numel() == 0:
        return values
    smallest = -1
    for limit in limits:
        if limit >= 0 and (smallest < 0 or limit < smallest):
            smallest = limit
    if int(values.min()) >= 0 and int(values.max()) < smallest:
        return values
    ends = lengths.view(len(limits), -1).sum(dim=1).cumsum(dim=0)
    start = 0
    for i in range(len(limits)):
        end = int(ends[i])
        of_feature = values[start:end]
        start = end
        if limits[i] >= 0:
            bad = torch.nonzero((of_feature < 0) | (of_feature >= limits[i]))
            if bad.numel() > 0:
                found = int(of_feature[int(bad[0, 0])])
                raise ValueError(
                    f"computed ID: table '{names[i]}' got {found}, expected 0 <= ID < {limits[i]}"
                )
    return values


fx.wrap("checked_ids")
