"""SASRec: causal self-attention over a history, whose latest state is the user's vector.

Kang and McAuley, "Self-Attentive Sequential Recommendation" (arXiv 1808.09781). Places are counted from the
oldest of the last H items, so that a new item of a shorter history changes no state before it.

Shape letters: B batch, D embedding dimension, H longest history, N heads.
"""

# Annotations are not deferred: FX carries them into graphs, where TorchScript cannot read them as texts.

import torch
from torch import Tensor, nn
from torch.nn import functional


class SelfAttentionBlock(nn.Module):
    """Self-attention and two layers for each place, each behind a norm and beside its input.

    Args:
        dim: D.
        num_heads: N, a divisor of D.
        dropout: The share of numbers that training leaves out.
    """

    def __init__(self, dim: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self._heads = (num_heads, dim // num_heads)
        self.norm = nn.LayerNorm(dim)
        self.queries_keys_values = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.feed_norm = nn.LayerNorm(dim)
        self.feed_in = nn.Linear(dim, dim)
        self.feed_out = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, places: Tensor, mask: Tensor) -> Tensor:
        """Map ``[B, H, D]`` to the same shape.

        Args:
            places: The vector of each place.
            mask: bool ``[B, 1, H, H]``: which places (the last dimension) a place attends to; each one to some.
        """
        size, dim = places.shape[1], places.shape[2]
        parts = self.queries_keys_values(self.norm(places)).reshape(-1, size, 3, *self._heads)
        queries, keys, values = (parts.select(2, i).transpose(1, 2) for i in range(3))
        seen = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        places = places + self.dropout(self.out(seen.transpose(1, 2).reshape(-1, size, dim)))
        hidden = self.dropout(torch.relu(self.feed_in(self.feed_norm(places))))
        result: Tensor = places + self.dropout(self.feed_out(hidden))
        return result


class SASRecEncoder(nn.Module):
    """Blocks of causal self-attention: the state of a place depends on its item and on older ones.

    Args:
        dim: D.
        max_history: H.
        num_layers: Number of blocks.
        num_heads: N, a divisor of D.
        dropout: The share of numbers that training leaves out.
    """

    older: Tensor
    itself: Tensor

    def __init__(self, dim: int, max_history: int, num_layers: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self._scale = dim**0.5
        self._max_history = max_history
        self.positions = nn.Parameter(torch.empty(max_history, dim))
        self.blocks = nn.ModuleList(SelfAttentionBlock(dim, num_heads, dropout) for _ in range(num_layers))
        self.norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)
        # The device is named because the masks are in no checkpoint.
        square = (max_history, max_history)
        for name in ("older", "itself"):
            self.register_buffer(name, torch.empty(square, dtype=torch.bool, device="cpu"), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the vectors of the places, and set the masks."""
        nn.init.normal_(self.positions, std=0.02)
        older = torch.ones(self.older.shape, dtype=torch.bool, device="cpu").tril()
        self.older.copy_(older)
        self.itself.copy_(older.triu())

    def forward(self, history: Tensor, lengths: Tensor) -> Tensor:
        """Return the state of each place, ``[B, H, D]``; those behind a history's end have no meaning.

        Args:
            history: The items' vectors ``[B, H, D]``, the oldest first, padded with zeros.
            lengths: Number of items of each history, ``[B]``. The first state of a history without items is that of no
                item.
        """
        states = self.dropout(history * self._scale + self.positions)
        there = torch.arange(self._max_history, device=lengths.device).unsqueeze(0) < lengths.unsqueeze(1)
        # A place always attends to itself: shares of nothing are not defined.
        mask = (self.older & there.unsqueeze(1)) | self.itself
        mask = mask.unsqueeze(1)
        for block in self.blocks:
            states = block(states, mask)
        result: Tensor = self.norm(states)
        return result
