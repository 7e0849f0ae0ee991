"""Crossed features, as a part of the model's graph: serving computes them of the IDs that requests send.

Shape letters: B batch, N number of combinations.
"""

# Annotations are not deferred: FX carries them into graphs, where TorchScript cannot read them as texts.

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from recsys import EmbeddingBagCollection, EmbeddingBagConfig, JaggedTensor, KeyedJaggedTensor, KeyedTensor
from recsys.inputs.crosses import CrossSpec, crossed_features
from recsys.managed import ManagedCollisionEmbeddingBagCollection
from recsys.ops import lengths_to_offsets, mixed_ids

#: What a combination is where a feature has several values: no row of its table, which refuses it.
SEVERAL = -1


@dataclass(frozen=True)
class CrossedBatch:
    """A batch of a request, and the crossed features that the graph made of it.

    Attributes:
        given: The batch.
        made: The crossed features, of the same B.
    """

    given: KeyedJaggedTensor
    made: KeyedJaggedTensor


def given_features(batch: KeyedJaggedTensor | CrossedBatch) -> KeyedJaggedTensor:
    """Return the features of a batch that are not made by the graph; those of training data are all there."""
    return batch.given if isinstance(batch, CrossedBatch) else batch


class CrossedBags(nn.Module):
    """Bags of given features, and behind them those of crossed ones, as one collection.

    They are two collections, so that IDs of requests are looked up as they come.

    Args:
        given: The tables of given features.
        crossed: The tables of crossed features.
    """

    def __init__(
        self,
        given: EmbeddingBagCollection | ManagedCollisionEmbeddingBagCollection,
        crossed: EmbeddingBagCollection,
    ) -> None:
        super().__init__()
        self.given = given
        self.crossed = crossed
        self._configs = [*given.embedding_bag_configs(), *crossed.embedding_bag_configs()]

    def embedding_bag_configs(self) -> list[EmbeddingBagConfig]:
        """Return the tables."""
        return self._configs

    def forward(self, features: KeyedJaggedTensor | CrossedBatch) -> KeyedTensor:
        """Look up and pool all features; training data has the crossed ones among the others."""
        made = features.made if isinstance(features, CrossedBatch) else features
        parts = [self.given(given_features(features)), self.crossed(made)]
        keys = [key for part in parts for key in [*part.keys()]]
        dims = [dim for part in parts for dim in part.length_per_key()]
        return KeyedTensor(keys, dims, torch.cat([part.values() for part in parts], dim=1))


class Crossing(nn.Module):
    """Adds the rows of combinations to a batch, as ``recsys.inputs.crosses`` defines them.

    A combination is missing where one of its features is, and ``SEVERAL`` where one has several values.

    Args:
        crosses: The combinations; at least one.
    """

    def __init__(self, crosses: Sequence[CrossSpec]) -> None:
        super().__init__()
        self.crosses = tuple(crosses)

    def forward(self, features: KeyedJaggedTensor) -> CrossedBatch:
        """Return a batch of raw IDs, and its combinations."""
        return CrossedBatch(features, _crossed(features, self.crosses))


def _crossed(features: KeyedJaggedTensor, crosses: Sequence[CrossSpec]) -> KeyedJaggedTensor:
    names = crossed_features(crosses)
    ids, lengths = _first_ids([features[name] for name in names])
    at = {name: i for i, name in enumerate(names)}
    rows: dict[str, Tensor] = {}
    is_there: dict[str, Tensor] = {}
    # One chain of operators for all that cross as many features.
    for number in sorted({len(cross.feature_names) for cross in crosses}):
        alike = [cross for cross in crosses if len(cross.feature_names) == number]
        parts = [[at[cross.feature_names[i]] for cross in alike] for i in range(number)]
        mixed, least, most = _combined(
            [torch.stack([ids[place] for place in part]) for part in parts],
            [torch.stack([lengths[place] for place in part]) for part in parts],
        )
        found, is_one = torch.gt(least, 0), torch.eq(most, 1)
        for i, cross in enumerate(alike):
            row = torch.remainder(mixed[i], cross.num_embeddings)
            rows[cross.name] = torch.where(is_one[i], row, SEVERAL)
            is_there[cross.name] = found[i]
    keys = [cross.name for cross in crosses]
    there = torch.cat([is_there[key] for key in keys])
    values = torch.cat([rows[key] for key in keys]).masked_select(there)
    return KeyedJaggedTensor(keys, values, lengths=there.to(torch.int64))


def _first_ids(features: Sequence[JaggedTensor]) -> tuple[Tensor, list[Tensor]]:
    """Return the first ID of each bag of F features ``[F, B]``, any number for empty ones; and their lengths."""
    lengths = [feature.lengths() for feature in features]
    values = [feature.values() for feature in features]
    # The start of an empty last bag is the number of all IDs.
    padded = torch.cat([*values, values[0].new_zeros(1)])
    starts = lengths_to_offsets(torch.cat(lengths))[:-1]
    return padded.index_select(0, starts).view(len(features), lengths[0].size(0)), lengths


def _combined(ids: Sequence[Tensor], lengths: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return mixed combinations, and the least and the most lengths of their features.

    Args:
        ids: Of the first features of X combinations ``[X, B]``, of the second ones, and so on.
        lengths: Theirs.
    """
    mixed, least, most = mixed_ids(ids[0]), lengths[0], lengths[0]
    for others, of_others in zip(ids[1:], lengths[1:], strict=True):
        mixed = mixed_ids(torch.bitwise_xor(mixed, others))
        least, most = torch.minimum(least, of_others), torch.maximum(most, of_others)
    return mixed, least, most
