"""TorchRec's older processors: weights by position for a dict of features or a whole batch."""

# Annotations are not deferred: FX carries them into graphs, where TorchScript cannot read them as texts.

from abc import ABC, abstractmethod
from typing import cast

import torch
from torch import nn

from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.jagged.recorded import call_later
from recsys.jagged.tensor import JaggedTensor
from recsys.modules.feature_processors import check_lengths, known_keys, weights_at, with_weights
from recsys.ops import is_traced


class BaseFeatureProcessor(nn.Module, ABC):
    """Changes jagged features by name."""

    @abstractmethod
    def forward(self, features: dict[str, JaggedTensor]) -> dict[str, JaggedTensor]:
        """Return the features."""


class BaseGroupedFeatureProcessor(nn.Module, ABC):
    """Changes a batch."""

    @abstractmethod
    def forward(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        """Return the batch."""


def _position_weights(max_feature_lengths: dict[str, int], device: torch.device | None) -> nn.ParameterDict:
    check_lengths(max_feature_lengths)
    return nn.ParameterDict(
        {name: torch.ones(length, device=device) for name, length in max_feature_lengths.items()}
    )


class PositionWeightedModule(BaseFeatureProcessor):
    """Weights IDs by their position in the row, with learned weights that start at 1.

    Args:
        max_feature_lengths: The number of weights of each feature; IDs after those have the last weight.
        device: The device of the weights.
    """

    def __init__(self, max_feature_lengths: dict[str, int], device: torch.device | None = None) -> None:
        super().__init__()
        self.max_feature_lengths = max_feature_lengths
        self.position_weights = _position_weights(max_feature_lengths, device)

    def reset_parameters(self) -> None:
        """Set all weights to 1."""
        for weight in self.position_weights.values():
            nn.init.ones_(weight)

    def forward(self, features: dict[str, JaggedTensor]) -> dict[str, JaggedTensor]:
        """Put the weighted features into the dict, and return it; other features are left alone."""
        weighted = {}
        for name, weight in self.position_weights.items():
            jagged = features[name]
            weights = weights_at(weight, jagged)
            weighted[name] = JaggedTensor(jagged.values(), weights, jagged.lengths(), jagged.offsets())
        return _updated(features, weighted)


class PositionWeightedProcessor(BaseGroupedFeatureProcessor):
    """Weights the IDs of some features by their position in the row, with learned weights that start at 1.

    Args:
        max_feature_lengths: The number of weights of each feature; IDs after those have the last weight.
        device: The device of the weights.
    """

    def __init__(self, max_feature_lengths: dict[str, int], device: torch.device | None = None) -> None:
        super().__init__()
        self.max_feature_lengths = max_feature_lengths
        self.position_weights = _position_weights(max_feature_lengths, device)

    def forward(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        """Return the features with weights alone, in the batch's order; the batch itself if it has none of them."""
        own = known_keys(features, self.position_weights)
        if not own:
            return features
        kept = _features_of(features, own)
        jagged = kept.to_dict()
        weights = {name: weights_at(self.position_weights[name], jagged[name]) for name in own}
        return with_weights(kept, weights)


def _updated(features: dict[str, JaggedTensor], weighted: dict[str, JaggedTensor]) -> dict[str, JaggedTensor]:
    if is_traced(features):
        return cast(dict[str, JaggedTensor], call_later(_updated, features, weighted))
    features.update(weighted)
    return features


def _features_of(features: KeyedJaggedTensor, names: list[str]) -> KeyedJaggedTensor:
    """Return some of a batch's features, in the batch's order."""
    if is_traced(features):
        return cast(KeyedJaggedTensor, call_later(_features_of, features, names))
    return features.permute([i for i, name in enumerate(features.keys()) if name in names])
