"""Reset of rows with a new owner: weights and optimizer state.

Shape letters: D embedding dimension, K buckets, R rows, N number of evicted rows.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from recsys.configs import BaseEmbeddingConfig
from recsys.embedding import EmbeddingBagCollection, EmbeddingCollection


@runtime_checkable
class ResetsRows(Protocol):
    """A collection that resets rows itself: a sharded one."""

    def reset_rows(self, table: str, rows: Tensor, values: Tensor) -> None:
        """Overwrite rows, and reset their optimizer state.

        Args:
            table: Its name.
            rows: ``[N]`` int64, rows of the whole table; every rank is given all of them, or at least its own.
            values: ``[N, D]`` float32 in host memory, the same on every rank that is given the rows.
        """


def fresh_values(config: BaseEmbeddingConfig, num_rows: int, step: int, bucket: int = 0) -> Tensor:
    """Return initial values for rows by the table's config, the same on every rank at the same step.

    Args:
        config: The table's config. Its ``init_fn``, if any, is called with ``[num_rows, D]``, not the whole
            table.
        num_rows: N.
        step: The training step.
        bucket: The bucket of the mapping that the rows belong to.

    Returns:
        ``[num_rows, D]`` float32 in host memory.
    """
    values = torch.empty(num_rows, config.embedding_dim, device="cpu")
    # Torch's CPU generator uses 32 bits of a seed.
    of_bucket = f", bucket {bucket}" if bucket else ""
    seed = zlib.crc32(f"{config.name}, step {step}{of_bucket}".encode())
    with torch.no_grad():
        if config.init_fn is None:
            generator = torch.Generator().manual_seed(seed)
            values.uniform_(config.get_weight_init_min(), config.get_weight_init_max(), generator=generator)
        else:
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(seed)
                config.init_fn(values)
    return values


def reset_rows(
    collection: nn.Module,
    config: BaseEmbeddingConfig,
    rows: Tensor,
    step: int,
    bucket_ends: Sequence[int] | None = None,
) -> None:
    """Initialize rows of a table. The values of a bucket's rows do not depend on other buckets.

    Args:
        collection: The collection with the table.
        config: The table's config.
        rows: ``[N]`` int64, ascending.
        step: The training step.
        bucket_ends: The row after the last of each bucket, K numbers; None for one bucket.

    Raises:
        TypeError: The collection has an unknown type and no ``reset_rows``.
    """
    ends = torch.tensor(bucket_ends or [config.num_embeddings])
    found, sizes = torch.unique(torch.searchsorted(ends, rows.cpu(), right=True), return_counts=True)
    values = torch.cat(
        [
            fresh_values(config, size, step, bucket)
            for bucket, size in zip(found.tolist(), sizes.tolist(), strict=True)
        ]
    )
    if isinstance(collection, ResetsRows):
        collection.reset_rows(config.name, rows, values)
        return
    if isinstance(collection, EmbeddingBagCollection):
        weight = cast(Tensor, collection.embedding_bags[config.name].weight)
    elif isinstance(collection, EmbeddingCollection):
        weight = cast(Tensor, collection.embeddings[config.name].weight)
    else:
        raise TypeError(
            f"embedding module: got {type(collection).__name__}, expected an EmbeddingBagCollection or "
            "EmbeddingCollection, or a module with reset_rows(table, rows, values)"
        )
    with torch.no_grad():
        weight[rows.to(weight.device)] = values.to(weight.device, weight.dtype)


def reset_optimizer_rows(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, rows: Tensor) -> None:
    """Reset an optimizer's state of rows of a table to its initial value.

    Every tensor of the parameter's state that has R entries in its first dimension is reset: to 0, and Adagrad's
    sum to the initial value that the optimizer was made with. Step counters stay.

    Args:
        optimizer: An optimizer of ``torch.optim``, or one with the same form of state.
        parameter: The table's weight, ``[R, D]``.
        rows: ``[N]`` int64.
    """
    state: dict[str, Any] = optimizer.state.get(parameter, {})
    group = next((g for g in optimizer.param_groups if any(p is parameter for p in g["params"])), {})
    for name, value in state.items():
        if isinstance(value, Tensor) and value.dim() and value.shape[0] == parameter.shape[0]:
            start = group.get("initial_accumulator_value", 0) if name == "sum" else 0
            value.index_fill_(0, rows.to(value.device), start)
