"""Limits: the arithmetic with given times, and real ones that are numbers above 0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from recsys.artifact.load import LoadedArtifact
from recsys.kernels import operators
from serve.profiler import limits as module
from serve.profiler.batches import RowReads
from serve.profiler.limits import DTYPES, gather_rate, measure_limits, product_rate, random_reads
from serve.profiler.rounds import RoundsConfig, Timing
from tests.support.kernels import needs_kernels

SHORT = RoundsConfig(num_rounds=1, turn_s=0.0005, clock="cpu")


def reads_of(*rows: tuple[int, int]) -> RowReads:
    return RowReads(offsets=np.array([r[0] for r in rows]), sizes=np.array([r[1] for r in rows]))


@pytest.fixture(params=["native", "torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With and without the native probe."""
    if request.param == "torch":
        monkeypatch.setattr(module, "is_native", lambda: False)
    elif operators.why_missing():
        pytest.skip(operators.why_missing())
    return str(request.param)


def test_a_gather_rate_is_that_of_the_best_way(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(([3e-6, 2e-6], [5e-6, 4e-6]))

    def rounds(ways: Mapping[str, Any], _: RoundsConfig) -> dict[str, Timing]:
        return {name: Timing(seconds=tuple(next(times, [9e-6]))) for name in ways}

    monkeypatch.setattr(module, "run_rounds", rounds)
    blob = torch.zeros(1000, dtype=torch.uint8)
    # Two groups of 30 rows on average.
    groups = [reads_of(*[(0, 68)] * 20), reads_of(*[(0, 68)] * 40)]
    found = gather_rate(blob, groups, SHORT)
    assert found is not None
    assert found.rows_per_s == pytest.approx(30 / 2e-6)
    assert found.bytes_per_s == pytest.approx(30 * 68 / 2e-6)
    assert gather_rate(blob, [reads_of()], SHORT) is None


def test_a_product_rate_counts_additions_and_multiplications(monkeypatch: pytest.MonkeyPatch) -> None:
    def rounds(ways: Mapping[str, Any], _: RoundsConfig) -> dict[str, Timing]:
        return {name: Timing(seconds=(1e-3,)) for name in ways}

    monkeypatch.setattr(module, "run_rounds", rounds)
    assert product_rate("float32", SHORT) == pytest.approx(2 * 8 * 32 * 16 / 1e-3)


def test_all_limits_are_measured(model: LoadedArtifact, way: str) -> None:
    layout = model.manifest.layout
    reads = random_reads(layout, np.random.default_rng(0))[:1]
    ends = {block.offset_bytes + block.num_bytes for block in layout.blocks}
    assert int((reads[0].offsets + reads[0].sizes).max()) <= max(ends)
    found = measure_limits(model.rows.ranks[0].rows, reads, 1 << 16, SHORT)
    assert found.is_native is (way == "native")
    assert found.gather is not None
    assert found.gather_huge_pages is not None
    assert min(found.gather.rows_per_s, found.gather_huge_pages.rows_per_s) > 0
    assert min(found.read_bytes_per_s, found.cached_bytes_per_s, *found.flops.values()) > 0
    assert tuple(found.flops) == DTYPES
    assert found.to_json()["gather"]["rows_per_s"] == found.gather.rows_per_s


def test_without_tables_nothing_is_gathered() -> None:
    found = measure_limits(None, [], 0, SHORT)
    assert found.gather is None
    assert found.gather_huge_pages is None
    assert found.cached_bytes == 1 << 16


@needs_kernels
class TestReadRows:
    DATA = np.random.default_rng(0).integers(0, 256, 10_000).astype(np.uint8)

    @pytest.mark.parametrize("ahead", [0, 1, 16, 5000])
    def test_every_row_is_read(self, ahead: int) -> None:
        offsets = np.random.default_rng(1).integers(0, 10_000, 3000)
        found = operators.read_rows(self.DATA, offsets, np.ones_like(offsets), ahead)
        assert found == int(np.bitwise_xor.reduce(self.DATA[offsets]))

    def test_every_line_of_a_row_is_read(self) -> None:
        start = -self.DATA.ctypes.data % 64
        found = operators.read_rows(self.DATA, np.array([start + 60]), np.array([70]), 0)
        assert found == self.DATA[start + 60] ^ self.DATA[start + 64] ^ self.DATA[start + 128]

    @pytest.mark.parametrize(
        ("offset", "size"), [(-1, 4), (9_999, 2), (10_001, 0), (0, -1), (0, 10_001), (2**62, 2**62)]
    )
    def test_a_row_outside_is_refused(self, offset: int, size: int) -> None:
        with pytest.raises(ValueError, match="expected rows within 10000 bytes"):
            operators.read_rows(self.DATA, np.array([offset]), np.array([size]), 0)

    @pytest.mark.parametrize(
        ("offsets", "sizes", "ahead"),
        [
            (np.zeros(2, np.int64), np.ones(1, np.int64), 0),
            (np.zeros(1, np.int32), np.ones(1, np.int32), 0),
            (np.zeros(1, np.int64), np.ones(1, np.int64), -1),
            (np.zeros(4, np.int64)[::2], np.ones(2, np.int64), 0),
        ],
    )
    def test_wrong_arguments_are_refused(self, offsets: Any, sizes: Any, ahead: int) -> None:
        with pytest.raises(ValueError, match="expected"):
            operators.read_rows(self.DATA, offsets, sizes, ahead)
