"""RandomRecDataset: random batches, by TorchRec's name; equal seeds give TorchRec's numbers.

Shape letters: B batch, F features.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, islice

import torch
from torch.utils.data import IterableDataset

from recsys import KeyedJaggedTensor
from recsys.as_torchrec.datasets.batch import Batch


class RandomRecDataset(IterableDataset[Batch]):
    """Batches of random IDs, dense features and labels of 0 and 1.

    Args:
        keys: The F features.
        batch_size: B.
        hash_size: IDs are below this number; 100 without it.
        hash_sizes: The same for each feature, in place of ``hash_size``.
        ids_per_feature: Most IDs of a row of a feature; 2 without it.
        ids_per_features: The same for each feature, in place of ``ids_per_feature``.
        num_dense: Number of dense features.
        manual_seed: Makes the numbers the same each time.
        num_batches: Number of batches of an iteration; None for no end.
        num_generated_batches: Number of different batches, made once and then repeated; below 0 each batch is made
            when it is asked for.
        min_ids_per_feature: Least IDs of a row of a feature; ``ids_per_feature`` without it, 0 without both.
        min_ids_per_features: The same for each feature, in place of ``min_ids_per_feature``.

    Raises:
        ValueError: A list has not one number for each feature, or the numbers do not fit.
    """

    def __init__(  # noqa: PLR0913 (TorchRec's signature)
        self,
        keys: Sequence[str],
        batch_size: int,
        hash_size: int | None = None,
        hash_sizes: Sequence[int] | None = None,
        ids_per_feature: int | None = None,
        ids_per_features: Sequence[int] | None = None,
        num_dense: int = 50,
        manual_seed: int | None = None,
        num_batches: int | None = None,
        num_generated_batches: int = 10,
        min_ids_per_feature: int | None = None,
        min_ids_per_features: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        least = ids_per_feature if min_ids_per_feature is None else min_ids_per_feature
        self._keys = list(keys)
        self._batch_size, self._num_dense = batch_size, num_dense
        self._hash_sizes = self._of_each("hash_sizes", hash_sizes, hash_size or 100)
        self._most = self._of_each("ids_per_features", ids_per_features, ids_per_feature or 2)
        self._least = self._of_each("min_ids_per_features", min_ids_per_features, least or 0)
        for key, low, high in zip(self._keys, self._least, self._most, strict=True):
            if not 0 <= low <= high:
                raise ValueError(
                    f"ids_per_feature: got {low} to {high} for {key!r}, expected 0 <= least <= most"
                )
        if num_generated_batches == 0:
            raise ValueError(
                "num_generated_batches: got 0, expected the number of batches to repeat, or -1 for new ones"
            )
        self.num_batches = num_batches
        self._generator = None if manual_seed is None else torch.Generator().manual_seed(manual_seed)
        self._batches = [self._batch() for _ in range(num_generated_batches)]

    def _of_each(self, name: str, of_each: Sequence[int] | None, of_all: int) -> list[int]:
        if of_each is None:
            return [of_all] * len(self._keys)
        if len(of_each) != len(self._keys):
            raise ValueError(
                f"{name}: got {len(of_each)} numbers, expected {len(self._keys)}, one for each key"
            )
        return list(of_each)

    def _batch(self) -> Batch:
        lengths, values = [], []
        for hash_size, low, high in zip(self._hash_sizes, self._least, self._most, strict=True):
            size = (self._batch_size,)
            lengths.append(torch.randint(low, high + 1, size, dtype=torch.int32, generator=self._generator))
            num_ids = int(lengths[-1].sum())
            values.append(torch.randint(0, hash_size, (num_ids,), generator=self._generator))
        sparse = KeyedJaggedTensor.from_lengths_sync(self._keys, torch.cat(values), torch.cat(lengths))
        dense = torch.randn(self._batch_size, self._num_dense, generator=self._generator)
        labels = torch.randint(0, 2, (self._batch_size,), generator=self._generator)
        return Batch(dense, sparse, labels)

    def __iter__(self) -> Iterator[Batch]:
        made = self._batches
        numbers = islice(count(), self.num_batches)
        return (made[i % len(made)] if made else self._batch() for i in numbers)

    def __len__(self) -> int:
        if self.num_batches is None:
            raise TypeError("num_batches: got None, and without it the dataset has no end and no length")
        return self.num_batches
