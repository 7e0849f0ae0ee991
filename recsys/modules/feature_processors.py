"""Feature processors: modules that give the IDs of a batch weights, by TorchRec's names.

The state dict's names are TorchRec's too. Shape letters: B batch, N number of IDs, L longest row with a weight per
position.
"""

# Annotations are not deferred: FX carries them into graphs, where TorchScript cannot read them as texts.

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import cast

import torch
from torch import Tensor, nn

from recsys.embedding import EmbeddingBagCollection
from recsys.jagged.keyed import KeyedTensor
from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.jagged.recorded import call_later
from recsys.jagged.tensor import JaggedTensor
from recsys.modules.copying import CopyMixIn
from recsys.ops import fbgemm, is_traced, joined


def positions(features: JaggedTensor | KeyedJaggedTensor) -> Tensor:
    """Return the position of each ID in its row, ``[N]`` int64."""
    found: Tensor = fbgemm.offsets_range(features.offsets().to(torch.int64), features.values().size(0))
    return found


def weights_at(position_weight: Tensor, features: JaggedTensor) -> Tensor:
    """Return the weight of each ID's position, ``[N]``; positions after the last of the L weights have the last one."""
    at = positions(features).clamp(max=position_weight.size(0) - 1)
    return position_weight.index_select(0, at)


def check_lengths(max_feature_lengths: Mapping[str, int]) -> None:
    """Check that each feature has at least one position.

    Raises:
        ValueError: Names the features that have none.
    """
    wrong = {name: length for name, length in max_feature_lengths.items() if length < 1}
    if wrong:
        raise ValueError(f"max_feature_lengths: got {wrong}, expected at least 1")


class FeatureProcessor(nn.Module, ABC):
    """Gives the IDs of one feature weights."""

    @abstractmethod
    def forward(self, features: JaggedTensor) -> JaggedTensor:
        """Return the same rows with weights."""


class PositionWeightedModule(FeatureProcessor):
    """Weights IDs by their position in the row, with learned weights that start at 1.

    Args:
        max_feature_length: L. IDs after the first L have the weight of the last (TorchRec fails there).
        device: The device of the weights.
    """

    def __init__(self, max_feature_length: int, device: torch.device | None = None) -> None:
        super().__init__()
        check_lengths({"max_feature_length": max_feature_length})
        self.position_weight = nn.Parameter(torch.empty(max_feature_length, device=device))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set all weights to 1."""
        nn.init.ones_(self.position_weight)

    def forward(self, features: JaggedTensor) -> JaggedTensor:
        """Return the same rows with their positions' weights."""
        weights = weights_at(self.position_weight, features)
        return JaggedTensor(features.values(), weights, features.lengths(), features.offsets())


class FeatureProcessorsCollection(nn.Module, ABC):
    """Gives the IDs of several features weights."""

    @abstractmethod
    def forward(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        """Return the same batch with weights."""


class PositionWeightedModuleCollection(FeatureProcessorsCollection, CopyMixIn):
    """Weights IDs by their position in the row, feature by feature, with learned weights that start at 1.

    Args:
        max_feature_lengths: L of each feature. The IDs of other features have the weight 1.
        device: The device of the weights.
    """

    def __init__(self, max_feature_lengths: dict[str, int], device: torch.device | None = None) -> None:
        super().__init__()
        check_lengths(max_feature_lengths)
        self.max_feature_lengths = max_feature_lengths
        self.position_weights = nn.ParameterDict(
            {name: torch.empty(length, device=device) for name, length in max_feature_lengths.items()}
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set all weights to 1."""
        for weight in self.position_weights.values():
            nn.init.ones_(weight)

    def forward(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        """Return the same batch with its positions' weights."""
        jagged = features.to_dict()
        found = {
            name: weights_at(self.position_weights[name], jagged[name])
            for name in known_keys(features, self.position_weights)
        }
        return with_weights(features, found)

    def copy(self, device: torch.device) -> nn.Module:
        """Move the weights to a device, and return this module."""
        return self.to(device)


def known_keys(features: KeyedJaggedTensor, names: Iterable[str]) -> list[str]:
    """Return those of some names that are in a batch, in the batch's order.

    The batch of a graph's input has keys only when the graph runs; there all of the names must be in it.
    """
    if is_traced(features):
        return list(names)
    own = set(names)
    return [name for name in features.keys() if name in own]  # noqa: SIM118  (not a dict)


def with_weights(features: KeyedJaggedTensor, weights: Mapping[str, Tensor]) -> KeyedJaggedTensor:
    """Return a batch with these weights, ``[N of the feature]`` each; those of other features are 1."""
    if is_traced(features):
        return cast(KeyedJaggedTensor, call_later(with_weights, features, weights))
    parts = [
        weights[name] if name in weights else torch.ones_like(jagged.values(), dtype=torch.float32)
        for name, jagged in features.to_dict().items()
    ]
    return KeyedJaggedTensor(
        features.keys(),
        features.values(),
        joined(parts) if parts else features.weights_or_none(),
        features.lengths(),
        features.offsets(),
        features.stride(),
        features.stride_per_key_per_rank() or None,
        length_per_key=features.length_per_key_or_none(),
        inverse_indices=features.inverse_indices_or_none(),
    )


class FeatureProcessorDictWrapper(FeatureProcessorsCollection):
    """Applies a processor to each feature of its name; the IDs of other features have the weight 1."""

    def __init__(self, feature_processors: nn.ModuleDict) -> None:
        super().__init__()
        self._feature_processors = feature_processors

    def forward(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        """Return the same batch with the processors' weights."""
        return apply_feature_processors_to_kjt(
            features, cast(dict[str, nn.Module], dict(self._feature_processors.items()))
        )


def apply_feature_processors_to_kjt(
    features: KeyedJaggedTensor, feature_processors: dict[str, nn.Module]
) -> KeyedJaggedTensor:
    """Return a batch with the weights that each feature's processor gives; those of other features are 1."""
    jagged = features.to_dict()
    weights = {
        name: feature_processors[name](jagged[name]).weights()
        for name in known_keys(features, feature_processors)
    }
    return with_weights(features, weights)


class FeatureProcessedEmbeddingBagCollection(nn.Module):
    """Pooled embeddings of IDs that feature processors gave weights.

    Args:
        embedding_bag_collection: Weighted tables.
        feature_processors: A processor for each of their features, or a collection of processors.

    Raises:
        ValueError: The tables are not weighted, or the processors are not those of their features.
    """

    def __init__(
        self,
        embedding_bag_collection: EmbeddingBagCollection,
        feature_processors: dict[str, FeatureProcessor] | FeatureProcessorsCollection,
    ) -> None:
        super().__init__()
        configs = embedding_bag_collection.embedding_bag_configs()
        names = list(dict.fromkeys(name for config in configs for name in config.feature_names))
        if not embedding_bag_collection.is_weighted():
            raise ValueError(
                "embedding_bag_collection: got unweighted tables, expected is_weighted=True: processors give weights"
            )
        if not isinstance(feature_processors, FeatureProcessorsCollection) and set(feature_processors) != set(
            names
        ):
            raise ValueError(
                f"feature_processors: got {sorted(feature_processors)}, expected one for each of {sorted(names)}"
            )
        self._embedding_bag_collection = embedding_bag_collection
        self._feature_names = names
        self._feature_processors: nn.Module = (
            feature_processors
            if isinstance(feature_processors, FeatureProcessorsCollection)
            else nn.ModuleDict(feature_processors)
        )

    def split(self) -> tuple[FeatureProcessorsCollection, EmbeddingBagCollection]:
        """Return the processors and the tables."""
        if isinstance(self._feature_processors, FeatureProcessorsCollection):
            return self._feature_processors, self._embedding_bag_collection
        processors = FeatureProcessorDictWrapper(cast(nn.ModuleDict, self._feature_processors))
        return processors, self._embedding_bag_collection

    def is_weighted(self) -> bool:
        """Return True."""
        return True

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        """Give the IDs weights, look up and pool.

        Args:
            features: Must hold every feature of the tables; weights that it has are replaced.

        Raises:
            ValueError: A feature is missing.
        """
        if isinstance(self._feature_processors, FeatureProcessorsCollection):
            weighted = self._feature_processors(features)
        else:
            processors = cast(nn.ModuleDict, self._feature_processors)
            weighted = apply_feature_processors_to_kjt(features, dict(processors.items()))
        pooled: KeyedTensor = self._embedding_bag_collection(weighted)
        return pooled
