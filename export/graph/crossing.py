"""Crossed features in a program: a native operator makes them.

Shape letters: B rows, F features.
"""

# Annotations are not deferred: FX carries them into graphs, where TorchScript cannot read them as texts.

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from export.graph.ranking import RankingFeatures
from recsys.inputs.crosses import CrossSpec, crossed_features
from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.kernels import operators
from recsys.modules.crosses import CrossedBatch, Crossing


def crossings_in_program(model: nn.Module) -> dict[str, nn.Module]:
    """Return the replacements of what crosses features in a program, by path.

    There are none where the native kernels are not built; programs run only where they are.
    """
    if operators.why_missing():
        return {}
    return {
        path: NativeCrossing(module.crosses)
        for path, module in model.named_modules()
        if isinstance(module, Crossing)
    }


class NativeCrossing(Crossing):
    """A crossing that calls one operator (``cpp_client/ops/torch/crossed.h``)."""

    def forward(self, features: KeyedJaggedTensor) -> CrossedBatch:
        """Return a batch of raw IDs, and its combinations."""
        names, lengths, values = _bags_of(features, self.crosses)
        made = torch.ops.recsys_ops.crossed_rows(
            lengths,
            values,
            len(names),
            [len(cross.feature_names) for cross in self.crosses],
            [names.index(name) for cross in self.crosses for name in cross.feature_names],
            [cross.num_embeddings for cross in self.crosses],
        )
        keys = [cross.name for cross in self.crosses]
        return CrossedBatch(features, KeyedJaggedTensor(keys, made[0], lengths=made[1]))


def _bags_of(features: KeyedJaggedTensor, crosses: Sequence[CrossSpec]) -> tuple[list[str], Tensor, Tensor]:
    """Return the names of features with all that are crossed, their lengths ``[F * B]``, and their IDs."""
    if not isinstance(features, RankingFeatures):
        return features.keys(), features.lengths(), features.values()
    # Those of contexts are repeated for the rows that share them.
    names = crossed_features(crosses)
    bags = [features[name] for name in names]
    return names, torch.cat([bag.lengths() for bag in bags]), torch.cat([bag.values() for bag in bags])
