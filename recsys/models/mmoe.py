"""MMoE: experts that several labels share, mixed by a gate of each label.

Ma et al., "Modeling Task Relationships in Multi-task Learning with Multi-gate Mixture-of-Experts" (KDD 2018).

Shape letters: B batch, E experts, H width of an expert's result, L labels, N width of the input.
"""

# Annotations are not deferred: FX carries them into graphs, where TorchScript cannot read them as texts.

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from recsys.models.dlrm import OverArch
from recsys.modules.mlp import MLP


class MultiGateExperts(nn.Module):
    """Experts, a gate and a tower per label: ``[B, N]`` to logits ``[B, L]``.

    Args:
        in_features: N.
        num_labels: L.
        num_experts: E.
        expert_sizes: Sizes of each expert's layers; the last one is H.
        tower_sizes: Sizes of each tower's layers before the logit.
    """

    def __init__(
        self,
        in_features: int,
        num_labels: int,
        num_experts: int,
        expert_sizes: Sequence[int],
        tower_sizes: Sequence[int],
    ) -> None:
        super().__init__()
        self.experts = nn.ModuleList(MLP(in_features, expert_sizes) for _ in range(num_experts))
        self.gates = nn.ModuleList(nn.Linear(in_features, num_experts) for _ in range(num_labels))
        self.towers = nn.ModuleList(OverArch(expert_sizes[-1], [*tower_sizes, 1]) for _ in range(num_labels))

    def forward(self, features: Tensor) -> Tensor:
        """Map ``[B, N]`` to ``[B, L]``."""
        experts = torch.stack([expert(features) for expert in self.experts], dim=1)
        logits = []
        for gate, tower in zip(self.gates, self.towers, strict=True):
            shares = torch.softmax(gate(features), dim=1)
            logits.append(tower((shares.unsqueeze(2) * experts).sum(dim=1)))
        return torch.cat(logits, dim=1)
