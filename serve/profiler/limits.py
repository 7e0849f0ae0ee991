"""The limits of the machine for one thread: rows gathered, bytes read and products, measured where they are used.

Each limit is the best of several ways to reach it, so that no way of this package is compared with itself alone. With
the module of native kernels, rows and bytes are read by its probe, which touches each cache line once; without it by
torch, which writes what it reads: then the limits are lower than the machine's.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recsys.kernels import operators
from recsys.rows.layout import BlobLayout
from serve.profiler.batches import RowReads, joined
from serve.profiler.rounds import Contestant, RoundsConfig, run_rounds

DTYPES = ("float32", "bfloat16", "int8")
# Rows between a prefetch and its use. The processor's own reordering is often as good (0).
_AHEAD = (0, 16)
# [M, K] times [K, N]: weights that second-level caches hold, and rows enough to use them often.
_PRODUCT_SHAPES = ((256, 512, 512), (128, 512, 256), (1024, 256, 256))
_READ_BYTES = 96 << 20
_PIECE_BYTES = 4096
# Random rows for the limits of the whole tables: more than the caches hold.
_NUM_RANDOM_ROWS = 1 << 19
# A call of the probe takes at least this many rows, so that its own time does not count.
ROWS_OF_CALL = 1 << 14
_MAX_COPY_BYTES = 2 << 30
# The best turn counts: of what other processes hardly disturb, few are enough.
_MOST_ROUNDS = 3

_Ways = dict[str, Contestant]


@dataclass(frozen=True, kw_only=True)
class GatherRate:
    """How fast rows can be read in random order.

    Attributes:
        rows_per_s: Rows a second.
        bytes_per_s: Their bytes a second, without the rest of their cache lines.
    """

    rows_per_s: float
    bytes_per_s: float


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one thread of the machine can do.

    Attributes:
        is_native: Whether the native probe read rows and bytes.
        gather: Random rows from the tables as they were loaded; None without tables.
        gather_huge_pages: The same rows from memory on huge pages; None without tables, or where they are too large
            to be copied.
        read_bytes_per_s: Memory read from end to end.
        cached_bytes_per_s: A buffer as large as the dense weights, read over and over.
        cached_bytes: The size of that buffer.
        flops: Additions and multiplications a second, by the type of the factors; of torch or the native kernels.
    """

    is_native: bool
    gather: GatherRate | None
    gather_huge_pages: GatherRate | None
    read_bytes_per_s: float
    cached_bytes_per_s: float
    cached_bytes: int
    flops: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def is_native() -> bool:
    """Return whether the native probe can be used."""
    return not operators.why_missing()


def measure_limits(
    blob: Tensor | None, reads: Sequence[RowReads], weight_bytes: int, rounds: RoundsConfig
) -> Limits:
    """Measure all limits.

    Args:
        blob: The tables' rows as they were loaded, uint8; None without tables.
        reads: Random rows of them.
        weight_bytes: Bytes of the dense weights.
        rounds: How long to measure.
    """
    cached_bytes = min(max(weight_bytes, 1 << 16), _READ_BYTES)
    few = replace(rounds, num_rounds=min(rounds.num_rounds, _MOST_ROUNDS))
    return Limits(
        is_native=is_native(),
        gather=None if blob is None else gather_rate(blob, reads, rounds),
        gather_huge_pages=None if blob is None else _gather_huge_pages(blob, reads, rounds),
        read_bytes_per_s=_read_rate(_READ_BYTES, few),
        cached_bytes_per_s=_read_rate(cached_bytes, few),
        cached_bytes=cached_bytes,
        flops={dtype: product_rate(dtype, few) for dtype in DTYPES},
    )


def gather_rate(blob: Tensor, reads: Sequence[RowReads], rounds: RoundsConfig) -> GatherRate | None:
    """Return how fast these rows can be read, in this order; None if there are none."""
    num_rows = sum(each.num_rows for each in reads)
    if not num_rows:
        return None
    ways = gather_ways(blob, reads)
    # A call takes the mean of the groups.
    call_s = best(run_rounds(ways, rounds).values())
    return GatherRate(
        rows_per_s=num_rows / len(reads) / call_s,
        bytes_per_s=sum(each.num_bytes for each in reads) / len(reads) / call_s,
    )


def gather_ways(blob: Tensor, reads: Sequence[RowReads]) -> _Ways:
    """Return the ways to read rows, for ``run_rounds``."""
    if not is_native():
        return {"torch": Contestant(_select_rows, [(blob, *_by_size(each)) for each in reads])}
    data = blob.numpy()
    return {
        f"{ahead} rows ahead": Contestant(
            operators.read_rows, [(data, each.offsets, each.sizes, ahead) for each in reads]
        )
        for ahead in _AHEAD
    }


def best(timings: Iterable[Any]) -> float:
    """Return the least time of a call in any turn of any way: a limit is what was reached once."""
    return float(min(min(timing.seconds) for timing in timings))


def random_reads(layout: BlobLayout, generator: np.random.Generator) -> list[RowReads]:
    """Return random rows of all blocks, as many of each, in groups for ``gather_rate``."""
    num_groups = _NUM_RANDOM_ROWS // ROWS_OF_CALL
    count = ROWS_OF_CALL // max(len(layout.blocks), 1) + 1
    return [
        joined(
            [
                RowReads(
                    offsets=block.offset_bytes
                    + generator.integers(0, block.num_rows, count) * block.row_bytes,
                    sizes=np.full(count, block.row_bytes),
                )
                for block in layout.blocks
                if block.num_rows
            ]
        )
        for _ in range(num_groups)
    ]


def product_rate(dtype: str, rounds: RoundsConfig) -> float:
    """Return additions and multiplications a second of matrix products."""
    rates = []
    for m, k, n in _PRODUCT_SHAPES:
        call_s = best(run_rounds(_product_ways(dtype, m, k, n), rounds).values())
        rates.append(2.0 * m * k * n / call_s)
    return max(rates)


def _product_ways(dtype: str, m: int, k: int, n: int) -> _Ways:
    generator = torch.Generator().manual_seed(0)
    rows, weight = (torch.randn(shape, generator=generator) for shape in ((m, k), (n, k)))
    if dtype == "int8":
        factors = [(x * 30).clamp(-127, 127).to(torch.int8) for x in (rows, weight.t())]
        ways: _Ways = {"torch": Contestant(torch._int_mm, [tuple(factors)])}
    else:
        of_type = getattr(torch, dtype)
        ways = {"torch": Contestant(torch.mm, [(rows.to(of_type), weight.t().to(of_type))])}
    if is_native():
        own: Any = torch.ops.recsys_ops
        packed = own.pack_linear(weight, None, dtype)
        ways["own"] = Contestant(own.linear, [(rows, packed, n, "none")])
    return ways


def _read_rate(num_bytes: int, rounds: RoundsConfig) -> float:
    """Return bytes a second of reading a buffer from end to end, over and over."""
    buffer = torch.zeros(num_bytes, dtype=torch.uint8)
    offsets = np.arange(0, num_bytes - _PIECE_BYTES + 1, _PIECE_BYTES)
    pieces = RowReads(offsets=offsets, sizes=np.full_like(offsets, _PIECE_BYTES))
    ways = gather_ways(buffer, [pieces]) if is_native() else {}
    ways["torch"] = Contestant(torch.sum, [(buffer[: pieces.num_bytes].view(torch.float32),)])
    return pieces.num_bytes / best(run_rounds(ways, rounds).values())


def _gather_huge_pages(blob: Tensor, reads: Sequence[RowReads], rounds: RoundsConfig) -> GatherRate | None:
    if blob.numel() > _MAX_COPY_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    memory = mmap.mmap(-1, blob.numel(), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    copied = torch.frombuffer(memory, dtype=torch.uint8).copy_(blob)
    return gather_rate(copied, reads, rounds)


def _by_size(reads: RowReads) -> tuple[list[tuple[int, Tensor]]]:
    return (
        [
            (int(size), torch.from_numpy(reads.offsets[reads.sizes == size]))
            for size in np.unique(reads.sizes)
        ],
    )


def _select_rows(blob: Tensor, parts: Sequence[tuple[int, Tensor]]) -> None:
    for size, offsets in parts:
        # A view with a row at each byte.
        torch.index_select(blob.as_strided((blob.numel() - size + 1, size), (1, 1)), 0, offsets)
