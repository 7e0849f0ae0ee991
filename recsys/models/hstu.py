"""HSTU: layers of pointwise attention over a history, to which a candidate attends as one more, latest item.

Zhai et al., "Actions Speak Louder than Words: Trillion-Parameter Sequential Transducers for Generative Recommendations"
(arXiv 2402.17152). Shares are not normalized: ``silu(q k + bias) / H``, with a bias for each distance of two places.
What a place has seen is normalized and multiplied by a gate of the place's own.

Shape letters: B batch, D embedding dimension, H longest history, N heads, S places of queries.
"""

# Annotations are not deferred: FX carries them into graphs, where TorchScript cannot read them as texts.

import torch
from torch import Tensor, nn
from torch.nn import functional

Parts = tuple[Tensor, Tensor, Tensor, Tensor]


class HSTULayer(nn.Module):
    """One layer: gates, values, queries and keys from one linear layer, and attention without a softmax.

    Args:
        dim: D.
        max_history: H.
        num_heads: N, a divisor of D.
        dropout: The share of numbers that training leaves out.
    """

    distances: Tensor
    older: Tensor

    def __init__(self, dim: int, max_history: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self._heads = (num_heads, dim // num_heads)
        self._max_history = max_history
        self.norm = nn.LayerNorm(dim)
        self.gates_values_queries_keys = nn.Linear(dim, 4 * dim)
        # By distance: 0 of a place to itself, to H of a candidate to the oldest place.
        self.bias = nn.Parameter(torch.empty(max_history + 1, num_heads))
        self.seen_norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)
        # The device is named because the distances are in no checkpoint.
        square = (max_history, max_history)
        distances = torch.empty(square, dtype=torch.int64, device="cpu")
        self.register_buffer("distances", distances, persistent=False)
        self.register_buffer("older", torch.empty(square, device="cpu"), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the biases, and set the distances.

        Biases are about one, so that each place sees all others from the start. About zero, with queries and keys
        still small, nothing passes a layer: the gradients of most weights are near zero too, and some models never
        learn.
        """
        nn.init.normal_(self.bias, mean=1.0, std=0.02)
        places = torch.arange(self._max_history, device="cpu")
        distances = places.unsqueeze(1) - places.unsqueeze(0)
        self.distances.copy_(distances.clamp(min=0))
        self.older.copy_(distances >= 0)

    def parts(self, places: Tensor, size: int) -> Parts:
        """Return the gates ``[B, S, D]`` of some places, and queries, keys and values ``[B, N, S, D / N]``.

        Args:
            places: ``[B, S, D]``.
            size: S.
        """
        dim = places.shape[2]
        joined = functional.silu(self.gates_values_queries_keys(self.norm(places)))
        gates, values, queries, keys = (joined.narrow(2, i * dim, dim) for i in range(4))
        shape = (-1, size, *self._heads)
        queries, keys, values = (one.reshape(shape).transpose(1, 2) for one in (queries, keys, values))
        return gates, queries, keys, values

    def history_parts(self, history: Tensor, there: Tensor) -> Parts:
        """Return the parts of a history's places; nothing is seen at padding, whose values are zero.

        Args:
            history: ``[B, H, D]``, the oldest first.
            there: float32 ``[B, 1, H, 1]``: 1 for places with an item, 0 for padding.
        """
        gates, queries, keys, values = self.parts(history, self._max_history)
        return gates, queries, keys, values * there

    def forward(self, history: Tensor, parts: Parts) -> Tensor:
        """Return the next vectors of a history's places ``[B, H, D]``; each has seen itself and older ones."""
        gates, queries, keys, values = parts
        size = self._max_history
        bias = self.bias[self.distances].permute(2, 0, 1)
        weights = functional.silu(queries @ keys.transpose(2, 3) + bias) * self.older
        return self._next(history, gates, weights @ values / size, size)

    def attend(self, candidate: Tensor, parts: Parts, distances: Tensor) -> Tensor:
        """Return the next vectors of candidates, which have seen themselves and a history, ``[B, 1, D]``.

        Args:
            candidate: ``[B, 1, D]``.
            parts: What ``history_parts`` returned.
            distances: int64 ``[B, H]``: from the candidate back to each place.
        """
        _, _, keys, values = parts
        gates, queries, own_keys, own_values = self.parts(candidate, 1)
        size = self._max_history
        older = functional.embedding(distances, self.bias).transpose(1, 2).unsqueeze(2)
        own = self.bias.narrow(0, 0, 1).transpose(0, 1).unsqueeze(1)
        weights = functional.silu(queries @ keys.transpose(2, 3) + older)
        of_itself = functional.silu((queries * own_keys).sum(3, keepdim=True) + own)
        return self._next(candidate, gates, (weights @ values + of_itself * own_values) / size, 1)

    def _next(self, places: Tensor, gates: Tensor, seen: Tensor, size: int) -> Tensor:
        seen = self.seen_norm(seen.transpose(1, 2).reshape(-1, size, places.shape[2]))
        result: Tensor = places + self.dropout(self.out(gates * seen))
        return result


class HSTUEncoder(nn.Module):
    """Layers of HSTU over a history, alone or with a candidate.

    Args:
        dim: D.
        max_history: H.
        num_layers: Number of layers.
        num_heads: N, a divisor of D.
        dropout: The share of numbers that training leaves out.
    """

    def __init__(self, dim: int, max_history: int, num_layers: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self._scale = dim**0.5
        self._max_history = max_history
        self.layers = nn.ModuleList(
            HSTULayer(dim, max_history, num_heads, dropout) for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, history: Tensor, lengths: Tensor) -> Tensor:
        """Return the state of each place, as ``recsys.models.sasrec.SASRecEncoder`` does."""
        there = self._there(lengths)
        states = self.dropout(history * self._scale)
        for layer in self.layers:
            assert isinstance(layer, HSTULayer)
            states = layer(states, layer.history_parts(states, there))
        result: Tensor = self.norm(states)
        return result

    def attend(self, candidate: Tensor, history: Tensor, lengths: Tensor) -> Tensor:
        """Return the candidates' last vectors ``[B, D]``. The history's do not depend on the candidates.

        Args:
            candidate: The candidates' vectors ``[B, D]``.
            history: The items' vectors ``[B, H, D]``, the oldest first, padded with zeros.
            lengths: Number of items of each history, ``[B]``.
        """
        there = self._there(lengths)
        places = torch.arange(self._max_history, device=lengths.device)
        distances = (lengths.unsqueeze(1) - places).clamp(min=0)
        states = self.dropout(history * self._scale)
        target = self.dropout(candidate.unsqueeze(1) * self._scale)
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, HSTULayer)
            parts = layer.history_parts(states, there)
            target = layer.attend(target, parts, distances)
            if i + 1 < len(self.layers):
                states = layer(states, parts)
        result: Tensor = self.norm(target.flatten(1))
        return result

    def _there(self, lengths: Tensor) -> Tensor:
        places = torch.arange(self._max_history, device=lengths.device).unsqueeze(0)
        return (places < lengths.unsqueeze(1)).float().reshape(-1, 1, self._max_history, 1)
