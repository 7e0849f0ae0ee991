"""PLE: experts of each label beside shared ones, level by level, mixed by gates.

Tang et al., "Progressive Layered Extraction (PLE): A Novel Multi-Task Learning Model for Personalized Recommendations"
(RecSys 2020).

Shape letters: B batch, E experts of a group, H width of an expert's result, L labels, N width of the input.
"""

# Annotations are not deferred: FX carries them into graphs, where TorchScript cannot read them as texts.

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from recsys.models.dlrm import OverArch
from recsys.modules.mlp import MLP


class Extraction(nn.Module):
    """One level: a group of experts for each label and a shared one, and a gate for each group.

    A label's gate mixes its own experts and the shared ones; the shared gate mixes all.

    Args:
        in_features: N.
        num_labels: L.
        num_experts: E.
        expert_sizes: Sizes of each expert's layers; the last one is H.
        has_shared: Whether the shared gate is there; no later level reads that of the last one.
    """

    def __init__(
        self, in_features: int, num_labels: int, num_experts: int, expert_sizes: Sequence[int], *, has_shared: bool
    ) -> None:  # fmt: skip
        super().__init__()
        self.groups = nn.ModuleList(
            nn.ModuleList(MLP(in_features, expert_sizes) for _ in range(num_experts)) for _ in range(num_labels + 1)
        )  # fmt: skip
        sizes = [2 * num_experts] * num_labels + ([(num_labels + 1) * num_experts] if has_shared else [])
        self.gates = nn.ModuleList(nn.Linear(in_features, size) for size in sizes)
        self.num_labels = num_labels

    def forward(self, states: list[Tensor]) -> list[Tensor]:
        """Map the inputs of the groups, ``[B, N]`` each and the shared one last, to those of the next level."""
        found = [
            [expert(state) for expert in group]  # type: ignore[attr-defined]
            for group, state in zip(self.groups, states, strict=True)
        ]
        mixed = []
        for i, gate in enumerate(self.gates):
            seen = (
                [*found[i], *found[-1]] if i < self.num_labels else [one for group in found for one in group]
            )
            shares = torch.softmax(gate(states[i]), dim=1)
            mixed.append((shares.unsqueeze(2) * torch.stack(seen, dim=1)).sum(dim=1))
        return mixed


class ProgressiveExtraction(nn.Module):
    """Levels of extraction and a tower per label: ``[B, N]`` to logits ``[B, L]``.

    Args:
        in_features: N.
        num_labels: L.
        num_levels: Levels, at least one.
        num_experts: E.
        expert_sizes: Sizes of each expert's layers.
        tower_sizes: Sizes of each tower's layers before the logit.
    """

    def __init__(
        self,
        in_features: int,
        num_labels: int,
        num_levels: int,
        num_experts: int,
        expert_sizes: Sequence[int],
        tower_sizes: Sequence[int],
    ) -> None:
        super().__init__()
        widths = [in_features, *[expert_sizes[-1]] * (num_levels - 1)]
        self.levels = nn.ModuleList(
            Extraction(width, num_labels, num_experts, expert_sizes, has_shared=i < num_levels - 1)
            for i, width in enumerate(widths)
        )
        self.towers = nn.ModuleList(OverArch(expert_sizes[-1], [*tower_sizes, 1]) for _ in range(num_labels))

    def forward(self, features: Tensor) -> Tensor:
        """Map ``[B, N]`` to ``[B, L]``."""
        states = [features] * (len(self.towers) + 1)
        for level in self.levels:
            states = level(states)
        return torch.cat([tower(state) for tower, state in zip(self.towers, states, strict=True)], dim=1)
