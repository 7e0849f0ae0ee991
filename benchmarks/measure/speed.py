"""Samples per second of the peer and of our artifacts, in turns, on the same batches.

Shape letters: B batch.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import torch
from torch import nn

from benchmarks.measure.bars import Bar
from benchmarks.models import zoo
from benchmarks.models.dlrm import Request, requests
from benchmarks.models.peer import OUTPUT_NAME, TensorDict, as_peer_inputs
from recsys.artifact.load import LoadedArtifact
from serve.profiler.rounds import Contestant, RoundsConfig, run_rounds

BATCH_SIZES = (1, 8, 32, 128, 512)
ZOO_BATCH_SIZES = (1, 32, 128)
PEER = "TorchRec"
OWN = "own"
#: How many times the peer's speed an artifact should have, by name and batch size; those of the native kernels on a
#: processor with AVX-512, VNNI and BF16.
_AVX512_TARGETS: dict[str, dict[int, float]] = {
    "float32": {1: 1.5, 8: 1.3, 32: 1.1, 128: 1.1, 512: 1.1},
    "bfloat16": {128: 1.5},
    "own float32": {1: 4.0, 8: 3.0, 32: 2.2, 128: 1.6, 512: 1.5},
    "own bfloat16": {1: 7.0, 8: 4.5, 32: 3.5, 128: 2.8, 512: 2.6},
    "own int8": {1: 9.0, 8: 5.5, 32: 4.5, 128: 3.8, 512: 3.5},
}
_AVX512_TARGETS |= {
    f"{name}: {OWN} {dtype}": {128: 2.0} for name in ("DCNv2", "DIN-like") for dtype in ("bfloat16", "int8")
}
#: Models over histories of 1 to so many items, on every processor.
_HISTORY_TARGETS = {
    f"{name}: {OWN} float32": {1: 3.0, 32: 2.0, 128: 2.0} for name in zoo.MODELS if name != "DCNv2"
}
_AVX512_TARGETS |= _HISTORY_TARGETS
#: The same with AVX2 alone. Nothing there multiplies bfloat16.
_AVX2_TARGETS: dict[str, dict[int, float]] = {
    "float32": _AVX512_TARGETS["float32"],
    "own float32": {1: 8.0, 8: 4.0, 32: 2.2, 128: 1.4, 512: 1.3},
    "own int8": {1: 9.0, 8: 4.5, 32: 3.0, 128: 2.3, 512: 1.8},
    **_HISTORY_TARGETS,
}
#: How far medians of the same work may be apart in one run.
NOISE = 0.02
#: The largest relative difference to the peer's probabilities: the INT8 rows are the same, and float32 arithmetic
#: in another order ends a few roundings apart.
AGREEMENT = 1e-5

Peer = Callable[[TensorDict], TensorDict]


class DisagreementError(RuntimeError):
    """The contestants do not predict the same."""


@dataclass(frozen=True, kw_only=True)
class SpeedResult:
    """One contestant at one batch size.

    Attributes:
        batch_size: B.
        contestant: the peer, or an artifact's name in ``benchmarks.models.dlrm.export_and_load``.
        samples_per_s: median of the rounds.
        ratio: to the peer: the median of the rounds' ratios.
        ratio_low: a quarter of the rounds gave a lower ratio.
        ratio_high: a quarter of the rounds gave a higher one.
    """

    batch_size: int
    contestant: str
    samples_per_s: float
    ratio: float
    ratio_low: float
    ratio_high: float


def speed_bars(results: Sequence[SpeedResult], instructions: str, bfloat16_in: str) -> list[Bar]:
    """Return the bars of those results that have one.

    Args:
        results: What was measured.
        instructions: The instruction set of the native kernels.
        bfloat16_in: The type in which linear layers in bfloat16 multiply.
    """
    targets = _AVX2_TARGETS if instructions == "avx2" else _AVX512_TARGETS
    if bfloat16_in == "float32":
        targets = {
            name: of_sizes for name, of_sizes in targets.items() if not name.endswith(f"{OWN} bfloat16")
        }
    bars = [
        Bar(f"batch {result.batch_size}, {result.contestant}: ÷ {PEER}", target, result.ratio)
        for result in results
        if (target := targets.get(result.contestant, {}).get(result.batch_size)) is not None
    ]
    speeds = {(result.contestant, result.batch_size): result.samples_per_s for result in results}
    return bars + [
        Bar(f"batch {size}, {name}: ÷ {OWN} float32", 1 - NOISE, speed / speeds[_in_float32(name), size])
        for (name, size), speed in speeds.items()
        if name.endswith(f"{OWN} bfloat16") and (_in_float32(name), size) in speeds
    ]


def _in_float32(contestant: str) -> str:
    return contestant.replace("bfloat16", "float32")


def check_agreement(
    peer: Peer, artifacts: Mapping[str, LoadedArtifact], batches: list[Request]
) -> dict[str, float]:
    """The largest relative difference of each artifact's probabilities to the peer's.

    Raises:
        DisagreementError: that of an artifact in float32 is above ``AGREEMENT``.
    """
    differences = dict.fromkeys(artifacts, 0.0)
    for request, peer_inputs in zip(batches, as_peer_inputs(batches), strict=True):
        with torch.inference_mode():
            expected = peer(*peer_inputs)[OUTPUT_NAME]
        for name, artifact in artifacts.items():
            found = artifact.forward(request.dense, request.lengths, request.values)["score"]
            difference = float(((found - expected).abs() / expected.abs()).max())
            differences[name] = max(differences[name], difference)
    for name, difference in differences.items():
        if name.endswith("float32") and not difference <= AGREEMENT:
            raise DisagreementError(
                f"outputs: the artifact {name} and the peer differ by {difference:.2g} relative, expected at most "
                f"{AGREEMENT}"
            )
    return differences


def measure_speed(
    peer: Peer,
    artifacts: Mapping[str, LoadedArtifact],
    batch_size: int,
    num_rows: int,
    config: RoundsConfig,
) -> Iterator[SpeedResult]:
    """All contestants at one batch size."""
    batches = requests(batch_size, num_rows)
    contestants = {PEER: Contestant(peer, as_peer_inputs(batches))}
    for name, artifact in artifacts.items():
        contestants[name] = Contestant(artifact.forward, [(r.dense, r.lengths, r.values) for r in batches])
    yield from compared(contestants, batch_size, config)


def measure_zoo(
    name: str, model: nn.Module, folder: Path, num_rows: int, config: RoundsConfig
) -> list[SpeedResult]:
    """All contestants of one of ``benchmarks.models.zoo.MODELS``; their names begin with its name.

    Raises:
        DisagreementError: the artifact in float32 and the peer differ.
    """
    peer, artifacts = zoo.peer(name, num_rows, model), zoo.export_and_load(name, model, folder)
    differences = zoo.check_agreement(peer, artifacts, zoo.requests(name, 64, num_rows, num_batches=1)[0])
    if not differences.get(f"{OWN} float32", 0.0) <= AGREEMENT:
        raise DisagreementError(
            f"outputs: {name} and the peer differ by {differences}, expected at most {AGREEMENT}"
        )
    of_model = zoo.MODELS[name]
    histories = (False, True) if of_model.fewest_ids != of_model.ids_per_feature else (True,)
    results: list[SpeedResult] = []
    for is_full, batch_size in product(histories, ZOO_BATCH_SIZES):
        batches = zoo.requests(name, batch_size, num_rows, is_full=is_full)
        contestants = {PEER: Contestant(peer, zoo.peer_inputs(batches))}
        for kind, artifact in artifacts.items():
            contestants[kind] = Contestant(
                artifact.forward, [(r.dense, r.lengths, r.values) for r in batches]
            )
        label = f"{name}, full" if is_full and len(histories) > 1 else name
        found = compared(contestants, batch_size, config)
        results += [replace(result, contestant=f"{label}: {result.contestant}") for result in found]
    return results


def compared(
    contestants: Mapping[str, Contestant], batch_size: int, config: RoundsConfig
) -> Iterator[SpeedResult]:
    """Run the contestants in turns; the peer is among them."""
    with torch.inference_mode():
        timings = run_rounds(contestants, config)
    for name, timing in timings.items():
        speedups = timing.speedups_over(timings[PEER])
        quarter = len(speedups) // 4
        yield SpeedResult(
            batch_size=batch_size,
            contestant=name,
            samples_per_s=batch_size / timing.median_s,
            ratio=statistics.median(speedups),
            ratio_low=speedups[quarter],
            ratio_high=speedups[-1 - quarter],
        )
