"""Criteo's data in NumPy's files, by TorchRec's names: three files for each day, of numbers, categories and labels.

``recsys-train --data criteo`` reads the published text instead (``recsys.data.sources.criteo``).

Shape letters: B batch, N number of rows, W world size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import IterableDataset

from recsys import KeyedJaggedTensor
from recsys.as_torchrec.datasets.batch import Batch

INT_FEATURE_COUNT = 13
CAT_FEATURE_COUNT = 26
#: Files of the terabyte data, and rows of all but the last.
DAYS = 24
TOTAL_TRAINING_SAMPLES = 4_195_197_692
DEFAULT_LABEL_NAME = "label"
DEFAULT_INT_NAMES = [f"int_{i}" for i in range(INT_FEATURE_COUNT)]
DEFAULT_CAT_NAMES = [f"cat_{i}" for i in range(CAT_FEATURE_COUNT)]
DEFAULT_COLUMN_NAMES = [DEFAULT_LABEL_NAME, *DEFAULT_INT_NAMES, *DEFAULT_CAT_NAMES]
#: TorchRec chooses a file system with such a key; ours is the machine's.
PATH_MANAGER_KEY = "torchrec"

_Array = NDArray[np.generic]


def _check_key(path_manager_key: str) -> None:
    if path_manager_key != PATH_MANAGER_KEY:
        raise ValueError(
            f"path_manager_key: got {path_manager_key!r}, expected {PATH_MANAGER_KEY!r}: files are the machine's own; "
            "mount other file systems"
        )


def _loaded(paths: Sequence[str], width: int, *, mmap: bool) -> list[_Array]:
    arrays = [np.load(path, mmap_mode="r" if mmap else None) for path in paths]
    for path, array in zip(paths, arrays, strict=True):
        if array.ndim != 2 or array.shape[1] != width:
            raise ValueError(f"{path}: got an array of shape {array.shape}, expected [N, {width}]")
    return arrays


class BinaryCriteoUtils:
    """Parts of NumPy's files, and who reads what."""

    @staticmethod
    def get_shape_from_npy(path: str, path_manager_key: str = PATH_MANAGER_KEY) -> tuple[int, ...]:
        """Return the shape of a file's array, of which only the header is read."""
        _check_key(path_manager_key)
        shape: tuple[int, ...] = np.load(path, mmap_mode="r").shape
        return shape

    @staticmethod
    def get_file_row_ranges_and_remainder(
        lengths: list[int], rank: int, world_size: int, start_row: int = 0, last_row: int | None = None
    ) -> tuple[dict[int, tuple[int, int]], int]:
        """Return the rows of each file that a rank reads, and the number of rows left over.

        Args:
            lengths: Number of rows of each file.
            rank: The rank.
            world_size: W.
            start_row: The first row of all.
            last_row: The last row of all, itself one of them; None for the last of the last file.

        Returns:
            By the file's position the first and the last row, and the number of ranks that have a row more than others.
        """
        end = sum(lengths) if last_row is None else last_row + 1
        per_rank, remainder = divmod(end - start_row, world_size)
        first = start_row + rank * per_rank + min(rank, remainder)
        last = first + per_rank + (rank < remainder) - 1
        ranges = {}
        for i, (start, stop) in enumerate(pairwise(accumulate(lengths, initial=0))):
            if max(first, start) <= min(last, stop - 1):
                ranges[i] = (max(first, start) - start, min(last, stop - 1) - start)
        return ranges, remainder

    @staticmethod
    def load_npy_range(
        fname: str,
        start_row: int,
        num_rows: int,
        path_manager_key: str = PATH_MANAGER_KEY,
        mmap_mode: bool = False,
    ) -> _Array:
        """Return some rows of a file.

        Args:
            fname: The file.
            start_row: The first row.
            num_rows: Number of rows.
            path_manager_key: ``"torchrec"``.
            mmap_mode: Whether to map them instead of reading them.

        Raises:
            ValueError: The array has not two dimensions, or not so many rows.
        """
        _check_key(path_manager_key)
        array = np.load(fname, mmap_mode="r")
        if array.ndim != 2:
            raise ValueError(f"{fname}: got an array of shape {array.shape}, expected two dimensions")
        if not 0 <= start_row < len(array) or not 0 <= num_rows <= len(array) - start_row:
            raise ValueError(
                f"start_row, num_rows: got {start_row} and {num_rows}, expected rows of the {len(array)} of {fname}"
            )
        part: _Array = array[start_row : start_row + num_rows]
        return part if mmap_mode else np.array(part)


class InMemoryBinaryCriteoIterDataPipe(IterableDataset[Batch]):
    """Batches of Criteo's data; of all ranks' batches, which go through the files in order, a rank has every W-th.

    Rows that fill no batch on every rank make a smaller last one.

    Args:
        stage: ``"train"``; or ``"val"`` or ``"test"``: the first or the second half of the first file.
        dense_paths: Files ``[N, 13]``.
        sparse_paths: Files ``[N, 26]``.
        labels_paths: Files ``[N, 1]``.
        batch_size: B.
        rank: This rank.
        world_size: W.
        drop_last: Whether smaller batches are left out.
        shuffle_batches: Whether the rows of each batch are shuffled.
        shuffle_training_set: Whether all rows of ``"train"`` are shuffled first; a rank then has its part of them, and
            all batches of it.
        shuffle_training_set_random_seed: The seed of both.
        mmap_mode: Whether files are mapped instead of being read.
        hashes: For each category the number of IDs, to which they are taken modulo.
        path_manager_key: ``"torchrec"``.

    Raises:
        ValueError: The files do not fit each other, or hold less than a row for each rank.
    """

    def __init__(  # noqa: PLR0913 (TorchRec's signature)
        self,
        stage: str,
        dense_paths: list[str],
        sparse_paths: list[str],
        labels_paths: list[str],
        batch_size: int,
        rank: int,
        world_size: int,
        drop_last: bool | None = False,
        shuffle_batches: bool = False,
        shuffle_training_set: bool = False,
        shuffle_training_set_random_seed: int = 0,
        mmap_mode: bool = False,
        hashes: list[int] | None = None,
        path_manager_key: str = PATH_MANAGER_KEY,
    ) -> None:
        super().__init__()
        _check_key(path_manager_key)
        if stage not in ("train", "val", "test"):
            raise ValueError(f"stage: got {stage!r}, expected 'train', 'val' or 'test'")
        if hashes is not None and len(hashes) != CAT_FEATURE_COUNT:
            raise ValueError(f"hashes: got {len(hashes)} numbers, expected {CAT_FEATURE_COUNT}")
        self._hashes = None if hashes is None else np.array(hashes).reshape(1, -1)
        self._random = np.random.RandomState(shuffle_training_set_random_seed)
        self._shuffle_batches = shuffle_batches
        shuffles = shuffle_training_set and stage == "train"
        paths = {INT_FEATURE_COUNT: dense_paths, CAT_FEATURE_COUNT: sparse_paths, 1: labels_paths}
        columns = [_loaded(files, width, mmap=mmap_mode or shuffles) for width, files in paths.items()]
        lengths = [[len(array) for array in arrays] for arrays in columns]
        if lengths[0] != lengths[1] or lengths[0] != lengths[2] or not lengths[0]:
            raise ValueError(
                f"dense_paths, sparse_paths, labels_paths: got files of {lengths[0]}, {lengths[1]} and {lengths[2]} "
                "rows, expected the same, and one file at least"
            )
        if stage != "train":
            half = -(-lengths[0][0] // 2)
            kept = slice(half) if stage == "val" else slice(half, None)
            columns = [[arrays[0][kept], *arrays[1:]] for arrays in columns]
        if shuffles:
            columns = self._shuffled(columns, rank, world_size)
            rank, world_size = 0, 1
        self._rank, self._world_size = rank, world_size
        self._columns = columns
        self._starts = list(accumulate(map(len, columns[0]), initial=0))
        self._sizes = self._batch_sizes(batch_size, drop_last=bool(drop_last))

    def _shuffled(self, columns: list[list[_Array]], rank: int, world_size: int) -> list[list[_Array]]:
        """Return this rank's part of all rows in random order."""
        starts = list(accumulate(map(len, columns[0]), initial=0))
        # TorchRec draws each row's place; its inverse is the order of the rows.
        order = np.argsort(self._random.permutation(starts[-1]))
        per_rank, remainder = divmod(starts[-1], world_size)
        first = rank * per_rank + min(rank, remainder)
        rows = order[first : first + per_rank + (rank < remainder)]
        found = []
        for arrays in columns:
            picked = np.empty((len(rows), arrays[0].shape[1]), arrays[0].dtype)
            for array, (start, stop) in zip(arrays, pairwise(starts), strict=True):
                here = (start <= rows) & (rows < stop)
                picked[here] = array[rows[here] - start]
            found.append([picked])
        return found

    def _batch_sizes(self, batch_size: int, *, drop_last: bool) -> list[int]:
        """Return the sizes of all ranks' batches, in order."""
        num_rows, world_size = self._starts[-1], self._world_size
        if num_rows < world_size:
            raise ValueError(
                f"dense_paths: got {num_rows} rows for {world_size} ranks, expected one for each at least"
            )
        num_rounds, remainder = divmod(num_rows, batch_size * world_size)
        if drop_last or not remainder:
            return [batch_size] * (num_rounds * world_size)
        if remainder < world_size:  # too few for a batch on each rank: the last round takes them
            num_rounds -= 1
            remainder += batch_size * world_size
        size, more = divmod(remainder, world_size)
        last = [size + (i < more) for i in range(world_size)]
        return [*[batch_size] * (num_rounds * world_size), *last]

    def __iter__(self) -> Iterator[Batch]:
        bounds = list(pairwise(accumulate(self._sizes, initial=0)))
        for first, end in bounds[self._rank :: self._world_size]:
            yield self._batch(*(self._rows(arrays, first, end) for arrays in self._columns))

    def _rows(self, arrays: list[_Array], first: int, end: int) -> _Array:
        parts = [
            array[max(first - start, 0) : end - start]
            for array, (start, stop) in zip(arrays, pairwise(self._starts), strict=True)
            if start < end and first < stop
        ]
        return np.concatenate(parts)

    def _batch(self, dense: _Array, sparse: _Array, labels: _Array) -> Batch:
        if self._shuffle_batches:
            order = self._random.permutation(len(dense))
            dense, sparse, labels = dense[order], sparse[order], labels[order]
        if self._hashes is not None:
            sparse = (sparse % self._hashes).astype(sparse.dtype)
        size = len(dense)
        features = KeyedJaggedTensor(
            DEFAULT_CAT_NAMES,
            torch.from_numpy(np.ascontiguousarray(sparse.T).reshape(-1)),
            lengths=torch.ones(CAT_FEATURE_COUNT * size, dtype=torch.int32),
            offsets=torch.arange(CAT_FEATURE_COUNT * size + 1, dtype=torch.int32),
            stride=size,
            length_per_key=[size] * CAT_FEATURE_COUNT,
        )
        return Batch(torch.from_numpy(dense), features, torch.from_numpy(labels.reshape(-1)))

    def __len__(self) -> int:
        return len(self._sizes) // self._world_size
