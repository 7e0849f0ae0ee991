"""TorchRec's older processors: weights by position for a dict of features or a whole batch."""

# Annotations are not deferred: FX carries them into graphs, where TorchScript cannot read them as texts.

from abc import ABC, abstractmethod

import torch
from torch import nn

from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.jagged.tensor import JaggedTensor
from recsys.modules.feature_processors import check_lengths, weights_at, with_weights


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
        for name, weight in self.position_weights.items():
            jagged = features[name]
            weights = weights_at(weight, jagged)
            features[name] = JaggedTensor(jagged.values(), weights, jagged.lengths(), jagged.offsets())
        return features


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
        own = [i for i, name in enumerate(features.keys()) if name in self.position_weights]
        if not own:
            return features
        kept = features.permute(own)
        weights = {
            name: weights_at(self.position_weights[name], jagged) for name, jagged in kept.to_dict().items()
        }
        return with_weights(kept, weights)
