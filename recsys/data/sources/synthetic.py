"""A synthetic click stream with a planted model, so that the best possible AUC is known.

Users, items and hours have hidden vectors and biases; a click is drawn with the probability that a hidden
logistic model gives the example. The AUC of that probability itself is the ceiling: no model can expect more.

Shape letters: N number of examples, D dimension of the hidden vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from recsys.data.examples import Bags, Dataset, Examples, Ints, Reference, held_out_rows
from recsys.inputs.schema import DenseColumn, LabelColumn, Schema, TableSpec
from recsys.metrics.exact import auc

NUM_USERS = 2_000
NUM_ITEMS = 1_000
NUM_CATEGORIES = 50
NUM_HOURS = 24
DENSE_NAMES = ("price", "position", "freshness")
MAX_RECENT_ITEMS = 10
_DIM = 4
_ZIPF_EXPONENT = (
    1.05  # popularity of the n-th most frequent ID falls as n ** -1.05, as is common in click logs
)
_BLOCK_ROWS = 65_536
# The first letters of the texts that stand for IDs in tables.
_PREFIXES = {"user": "u", "item": "i", "recent_items": "i", "category": "c"}
# Weights of the hidden model's parts in the log-odds, chosen so that a quarter to a third of the examples are
# clicks and the ceiling separates trained models from untrained ones.
_BIAS = -1.5
_USER, _ITEM, _CATEGORY, _HOUR, _MATCH, _RECENT, _DENSE = 0.7, 1.0, 0.7, 0.5, 0.6, 1.0, 0.6


@dataclass(frozen=True, kw_only=True)
class _Hidden:
    user_bias: NDArray[np.float64]
    item_bias: NDArray[np.float64]
    category_bias: NDArray[np.float64]
    hour_bias: NDArray[np.float64]
    user_vectors: NDArray[np.float64]  # [users, D]
    item_vectors: NDArray[np.float64]  # [items, D]
    dense_weights: NDArray[np.float64]
    item_categories: Ints  # category of each item


def synthetic(num_rows: int = 200_000, seed: int = 0) -> Dataset:
    """Return the click stream.

    Features: ``user`` and ``item`` (Zipf), ``category`` (of the item), ``hour``, and ``recent_items``: none to
    ten items, looked up in the table of ``item``. The same seed gives the same stream; it is made block by
    block as it is read, and a longer stream starts with the same rows.

    Args:
        num_rows: Length of the stream; the last 10 % are held out.
        seed: The seed of the hidden model and of the stream.

    Raises:
        ValueError: Fewer than two rows.
    """
    num_train = num_rows - held_out_rows(num_rows)
    hidden = _hidden(np.random.default_rng([seed, 0]))
    held_out = partial(_stream, hidden, seed, num_train, num_rows)
    return Dataset(
        name="synthetic",
        schema=Schema(
            labels=(LabelColumn(name="click"),),
            dense=tuple(DenseColumn(name=name) for name in DENSE_NAMES),
            tables=(
                TableSpec(name="user", num_embeddings=NUM_USERS, feature_names=("user",)),
                TableSpec(
                    name="item",
                    num_embeddings=NUM_ITEMS,
                    feature_names=("item", "recent_items"),
                    pooling="MEAN",
                ),
                TableSpec(name="category", num_embeddings=NUM_CATEGORIES, feature_names=("category",)),
                TableSpec(name="hour", num_embeddings=NUM_HOURS, feature_names=("hour",)),
            ),
        ),
        num_train_rows=num_train,
        num_held_out_rows=num_rows - num_train,
        train=lambda: (block for block, _ in _stream(hidden, seed, 0, num_train)),
        held_out=lambda: (block for block, _ in held_out()),
        reference=lambda: _ceiling(held_out()),
        fingerprint=lambda: f"synthetic, {num_rows} rows, seed {seed}",
    )


def synthetic_table(num_rows: int = 30_000, seed: int = 0) -> pa.Table:
    """Return the click stream as a table, as a shop may have it: IDs are texts, and recent items lists of them.

    Args:
        num_rows: Length of the stream.
        seed: As for ``synthetic``.

    Raises:
        ValueError: Fewer than one row.
    """
    if num_rows < 1:
        raise ValueError(f"num_rows: got {num_rows}, expected at least 1")
    parts = [part for part, _ in _stream(_hidden(np.random.default_rng([seed, 0])), seed, 0, num_rows)]
    rows = Examples.concatenate(parts)
    columns: dict[str, pa.Array] = {}
    for name, bags in rows.bags.items():
        prefix = _PREFIXES.get(name)
        ids = pa.array(bags.values if prefix is None else [f"{prefix}{i}" for i in bags.values.tolist()])
        is_list = name == "recent_items"
        columns[name] = pa.ListArray.from_arrays(bags.offsets.astype(np.int32), ids) if is_list else ids
    dense = {name: pa.array(rows.dense[:, i]) for i, name in enumerate(DENSE_NAMES)}
    return pa.table({**columns, **dense, "click": rows.labels[:, 0].astype(np.int8)})


def _ceiling(stream: Iterator[tuple[Examples, NDArray[np.float64]]]) -> Reference:
    blocks = list(stream)
    log_odds = np.concatenate([z for _, z in blocks])
    labels = np.concatenate([block.labels[:, 0] for block, _ in blocks])
    return Reference(
        name="planted",
        text="planted model (the ceiling: the labels are drawn from it)",
        auc=auc(log_odds, labels),
    )


def _hidden(generator: np.random.Generator) -> _Hidden:
    normal = generator.standard_normal
    return _Hidden(
        user_bias=_USER * normal(NUM_USERS),
        item_bias=_ITEM * normal(NUM_ITEMS),
        category_bias=_CATEGORY * normal(NUM_CATEGORIES),
        hour_bias=_HOUR * normal(NUM_HOURS),
        user_vectors=normal((NUM_USERS, _DIM)) / _DIM**0.25,
        item_vectors=normal((NUM_ITEMS, _DIM)) / _DIM**0.25,
        dense_weights=_DENSE * normal(len(DENSE_NAMES)),
        item_categories=generator.integers(NUM_CATEGORIES, size=NUM_ITEMS),
    )


def _stream(
    hidden: _Hidden, seed: int, first: int, end: int
) -> Iterator[tuple[Examples, NDArray[np.float64]]]:
    """Yield the rows ``first <= row < end`` and their planted log-odds ``[N]``, block by block."""
    for number in range(first // _BLOCK_ROWS, -(-end // _BLOCK_ROWS)):
        block, log_odds = _block(hidden, np.random.default_rng([seed, 1, number]))
        start = number * _BLOCK_ROWS
        rows = np.arange(max(first - start, 0), min(end - start, _BLOCK_ROWS))
        yield block.take(rows), log_odds[rows]


def _block(hidden: _Hidden, generator: np.random.Generator) -> tuple[Examples, NDArray[np.float64]]:
    users = _zipf(generator, NUM_USERS, _BLOCK_ROWS)
    items = _zipf(generator, NUM_ITEMS, _BLOCK_ROWS)
    hours = generator.integers(NUM_HOURS, size=_BLOCK_ROWS)
    lengths = generator.integers(MAX_RECENT_ITEMS + 1, size=_BLOCK_ROWS)
    recent = Bags(_zipf(generator, NUM_ITEMS, int(lengths.sum())), np.concatenate(([0], np.cumsum(lengths))))
    dense = generator.standard_normal((_BLOCK_ROWS, len(DENSE_NAMES))).astype(np.float32)
    categories = hidden.item_categories[items]
    user_vectors, item_vectors = hidden.user_vectors[users], hidden.item_vectors[items]
    log_odds = (
        _BIAS
        + hidden.user_bias[users]
        + hidden.item_bias[items]
        + hidden.category_bias[categories]
        + hidden.hour_bias[hours]
        + _MATCH * (user_vectors * item_vectors).sum(axis=1)
        + _RECENT * (_mean_vectors(hidden.item_vectors, recent) * item_vectors).sum(axis=1)
        + dense @ hidden.dense_weights
    )
    clicks = generator.random(_BLOCK_ROWS) < 1 / (1 + np.exp(-log_odds))
    bags = {
        "user": Bags.single(users),
        "item": Bags.single(items),
        "recent_items": recent,
        "category": Bags.single(categories),
        "hour": Bags.single(hours),
    }
    return Examples(dense=dense, bags=bags, labels=clicks.astype(np.float32)[:, None]), log_odds


def _zipf(generator: np.random.Generator, num_ids: int, size: int) -> Ints:
    """Return IDs; smaller ones are more frequent."""
    weights = np.arange(1, num_ids + 1, dtype=np.float64) ** -_ZIPF_EXPONENT
    edges = np.cumsum(weights / weights.sum())
    return np.minimum(np.searchsorted(edges, generator.random(size)), num_ids - 1).astype(np.int64)


def _mean_vectors(vectors: NDArray[np.float64], bags: Bags) -> NDArray[np.float64]:
    """Return ``[N, D]``, with zeros for empty bags."""
    lengths = np.diff(bags.offsets)
    totals = np.concatenate((np.zeros((1, _DIM)), np.cumsum(vectors[bags.values], axis=0)))
    sums = totals[bags.offsets[1:]] - totals[bags.offsets[:-1]]
    means: NDArray[np.float64] = sums / np.maximum(lengths, 1)[:, None]
    return means
