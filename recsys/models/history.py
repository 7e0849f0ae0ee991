"""Histories of items as padded tensors, in the order in which they were seen.

Shape letters: B batch, D embedding dimension, H longest history, N number of IDs.
"""

# Annotations are not deferred: FX carries them into graphs, where TorchScript cannot read them as texts.

import torch
from torch import Tensor, fx

from recsys.jagged.tensor import JaggedTensor


def recent(history: JaggedTensor, most: int) -> Tensor:
    """Return the last rows of each history, the oldest first, with zeros behind them.

    As long as a history has fewer than H rows, one more row changes none of those before it. So a server can go on
    from what it computed of the shorter history.

    Args:
        history: B rows of vectors ``[N, D]``.
        most: H; of longer histories the last H rows are returned.

    Returns:
        ``[B, H, D]``.
    """
    return recent_rows(history.values(), history.offsets(), most)


def recent_rows(values: Tensor, offsets: Tensor, most: int) -> Tensor:
    """Return what ``recent`` does. It is one call in a graph, so that an exporter can tell what it does.

    Args:
        values: ``[N, D]``.
        offsets: int64 ``[B + 1]``: where rows begin, and the end.
        most: H.
    """
    # The operator checks no offsets; none may point beyond the values.
    offsets = offsets.clamp(min=0, max=values.size(0))
    begins, ends = offsets[:-1], offsets[1:]
    # Two parts of each history: what is too old, and what counts.
    middles = torch.maximum(ends - most, begins)
    bounds = torch.cat((torch.stack((begins, middles), dim=1).flatten(), offsets[-1:]))
    padded: Tensor = torch.ops.fbgemm.jagged_to_padded_dense(values, [bounds], [most], 0.0)
    return padded.view(-1, 2, most, values.size(1)).select(1, 1)


fx.wrap("recent_rows")
