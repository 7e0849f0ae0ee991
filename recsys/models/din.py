"""DIN: a target item attends over the items of a history, and what it finds there is one more vector of the network.

Zhou et al., "Deep Interest Network for Click-Through Rate Prediction" (arXiv 1706.06978).

Shape letters: B batch, D embedding dimension, H longest history, L labels, N number of IDs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.jagged.tensor import JaggedTensor
from recsys.models.click import SequenceCollection
from recsys.models.dlrm import BagCollection, OverArch, SparseArch
from recsys.modules.crosses import given_features

# The score of a place after a history's end, before the softmax: finite, because all places of an empty history get
# it, and a number of bfloat16 too.
_LOWEST = -1e30


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """How a target attends over a history.

    Attributes:
        history: The feature of the history's IDs, the latest last.
        target: The feature of the target's ID, of the same table.
        max_history: H; of longer histories the last H IDs count.
        layer_sizes: Sizes of the layers before a score.
        softmax: Whether the scores of a history are normalized, which the paper does not do.
    """

    history: str
    target: str
    max_history: int
    layer_sizes: Sequence[int]
    softmax: bool = False


class TargetAttention(nn.Module):
    """The sum of a history's vectors, each times the score of its match with the target.

    The score of a vector ``h`` is a network's, of ``h``, the target ``t``, ``h - t`` and ``h * t``.

    Args:
        embedding_dim: D.
        config: Sizes and options.
    """

    def __init__(self, embedding_dim: int, config: AttentionConfig) -> None:
        super().__init__()
        self.score = OverArch(4 * embedding_dim, [*config.layer_sizes, 1])
        self._most = config.max_history
        self._softmax = config.softmax

    def forward(self, history: JaggedTensor, target: Tensor) -> Tensor:
        """Attend over a batch of histories.

        Args:
            history: B rows of vectors ``[N, D]``, the latest last.
            target: ``[B, D]``.

        Returns:
            ``[B, D]``; zeros for an empty history.
        """
        vectors, lengths = history.values(), history.lengths()
        # The scores are computed before the histories are padded. The size is given, so that no device waits for it.
        targets = torch.repeat_interleave(target, lengths, dim=0, output_size=vectors.size(0))
        scores = self.score(torch.cat((vectors, targets, vectors - targets, vectors * targets), dim=1))
        padded = latest(JaggedTensor(scores, lengths=lengths), self._most, _LOWEST if self._softmax else 0.0)
        if self._softmax:
            padded = torch.softmax(padded, dim=1)
        return torch.bmm(padded.transpose(1, 2), latest(history, self._most)).flatten(1)


def latest(history: JaggedTensor, most: int, padding: float = 0.0) -> Tensor:
    """Return the last rows of each history, the latest first, padded after its end.

    Args:
        history: B rows of vectors ``[N, D]``.
        most: H; of longer histories the last H rows are returned.
        padding: The number after the end of shorter ones.

    Returns:
        ``[B, H, D]``.
    """
    # Padding cuts the ends of rows, so it is done backwards.
    backwards = JaggedTensor(
        torch.flip(history.values(), [0]), lengths=torch.flip(history.lengths(), [0])
    ).to_padded_dense(most, padding)
    return torch.flip(backwards, [0])


class DeepInterestNetwork(nn.Module):
    """A network over the dense features, the other features' vectors, the target's vector and the interest.

    Args:
        items: The table of history and target.
        bags: The tables of the other features; None if there are none.
        dense_width: Number of dense features after the transforms.
        attention: How the target attends over the history.
        over_layer_sizes: Sizes of the network's layers; the last one is L.
    """

    def __init__(
        self,
        items: SequenceCollection,
        bags: BagCollection | None,
        dense_width: int,
        attention: AttentionConfig,
        over_layer_sizes: Sequence[int],
    ) -> None:
        super().__init__()
        (table,) = items.embedding_configs()
        self.embedding_collection = items
        self.sparse_arch = None if bags is None else SparseArch(bags)
        self.attention = TargetAttention(table.embedding_dim, attention)
        self._history, self._target = attention.history, attention.target
        width = dense_width + 2 * table.embedding_dim
        if self.sparse_arch is not None:
            width += self.sparse_arch.F * self.sparse_arch.D
        self.over_arch = OverArch(width, over_layer_sizes)

    def forward(self, dense_features: Tensor | None, sparse_features: KeyedJaggedTensor) -> Tensor:
        """Score a batch: logits ``[B, L]``.

        The target's first ID counts; one without an ID has a vector of zeros.
        """
        vectors = self.embedding_collection(given_features(sparse_features))
        parts = [] if dense_features is None else [dense_features]
        if self.sparse_arch is not None:
            parts.append(self.sparse_arch(sparse_features).flatten(1))
        target = vectors[self._target].to_padded_dense(1).flatten(1)
        interest = self.attention(vectors[self._history], target)
        logits: Tensor = self.over_arch(torch.cat((*parts, target, interest), dim=1))
        return logits
