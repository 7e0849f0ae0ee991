"""Towers: embeddings and the layers that read them, together on a rank."""

# Annotations are not deferred: FX carries them into graphs, where TorchScript cannot read them as texts.

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from recsys.embedding import EmbeddingBagCollection, EmbeddingCollection
from recsys.jagged.keyed_jagged import KeyedJaggedTensor


def tower_input_params(module: nn.Module) -> tuple[bool, bool]:
    """Return whether a tower's embedding module takes a batch, and whether it takes a weighted one."""
    if isinstance(module, EmbeddingCollection):
        return True, False
    if isinstance(module, EmbeddingBagCollection):
        return not module.is_weighted(), module.is_weighted()
    return True, True


class EmbeddingTower(nn.Module):
    """Layers on top of embeddings.

    Args:
        embedding_module: Its arguments are the tower's.
        interaction_module: Is given the embeddings.
        device: Has no effect, as in TorchRec: the modules have their devices.
    """

    def __init__(
        self,
        embedding_module: nn.Module,
        interaction_module: nn.Module,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        del device
        self.embedding = embedding_module
        self.interaction = interaction_module

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return what the layers make of the embeddings."""
        result: Tensor = self.interaction(self.embedding(*args, **kwargs))
        return result


class EmbeddingTowerCollection(nn.Module):
    """Several towers, whose results stand side by side.

    Args:
        towers: Each takes the batch, the weighted batch or both, as ``tower_input_params`` says.
        device: Has no effect, as in TorchRec: the towers have their devices.
    """

    def __init__(self, towers: Sequence[EmbeddingTower], device: torch.device | None = None) -> None:
        super().__init__()
        del device
        self.towers = nn.ModuleList(towers)
        self._input_params = [tower_input_params(tower.embedding) for tower in towers]

    def forward(
        self,
        features: KeyedJaggedTensor | None = None,
        weighted_features: KeyedJaggedTensor | None = None,
    ) -> Tensor:
        """Return the towers' results along dimension 1.

        Raises:
            ValueError: A batch that a tower takes is missing.
        """
        given = {"features": features, "weighted_features": weighted_features}
        results = []
        for tower, wanted in zip(self.towers, self._input_params, strict=True):
            names = [name for name, is_wanted in zip(given, wanted, strict=True) if is_wanted]
            missing = [name for name in names if given[name] is None]
            if missing:
                raise ValueError(f"{missing[0]}: got None, expected a batch: a tower takes it")
            results.append(tower(*[given[name] for name in names]))
        return torch.cat(results, dim=1)
