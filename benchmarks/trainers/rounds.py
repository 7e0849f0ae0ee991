"""What each rank does in the training comparison: check that both sides agree, and take timed turns.

Sides agree where both live in the same ranks. They are timed in ranks of their own, so that neither has the other's
allocator settings; one side's ranks sleep while the other's work.

Shape letters: B batch of one rank.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributed as dist
from torch.profiler import ProfilerActivity, profile

from benchmarks.measure.profiling import OperatorShare, shares
from benchmarks.trainers.case import Side, TrainingBatch, TrainingCase, batches, initialize
from benchmarks.trainers.ours import our_side
from benchmarks.trainers.peer import peer_side
from recsys.base.allocator import tune_malloc

PEER = "TorchRec"
OURS = "recsys"
SIDES: dict[str, Callable[[TrainingCase], Side]] = {PEER: peer_side, OURS: our_side}
#: ``cpu``: what all threads of the process spent on cores, waiting for other ranks left out; gloo has threads too.
TRAINING_CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
#: Both sides add the same float32 numbers, in another order where sums are cut; outputs relative to the largest.
OUTPUT_TOLERANCE = 1e-5
WEIGHT_TOLERANCE = 1e-5
#: An update moves a number of a row by about the learning rate; weights that moved less were not trained.
_LEAST_MOVE = 1e-3
_NUM_CHECKED_STEPS = 3
_NUM_WARM_UP_STEPS = 3
_NUM_PROFILED_STEPS = 20


class TrainingDisagreementError(RuntimeError):
    """The two sides do not train the same."""


@dataclass(frozen=True, kw_only=True)
class TurnsConfig:
    """How long to measure.

    Attributes:
        num_rounds: each side has one turn in each; who is first alternates.
        turn_s: length of a turn, roughly.
        clock: one of ``TRAINING_CLOCKS``.
        with_profile: whether some steps are profiled afterwards.
        tune_allocator: whether both sides' ranks keep freed memory (``recsys.base.allocator``). By default each side
            has what it brings: ours sets it, TorchRec does not.
    """

    num_rounds: int
    turn_s: float
    clock: str = "wall"
    with_profile: bool = False
    tune_allocator: bool = False


@dataclass
class _Live:
    """One side on this rank, kept between calls."""

    side: Side
    data: Sequence[TrainingBatch]


_LIVE: list[_Live] = []


def agree(rank: int, _world_size: int, case: TrainingCase) -> tuple[float, float]:
    """Both sides on this rank: the largest relative difference of an output, and the largest of a weight.

    Raises:
        TrainingDisagreementError: outputs or updated weights differ.
    """
    warnings.filterwarnings("ignore")  # the peer uses what its dependencies have deprecated
    made = batches(case, rank)
    sides = {name: make(case) for name, make in SIDES.items()}
    return check_agreement(sides, {name: side.prepared(made) for name, side in sides.items()}, case)


def begin(rank: int, _world_size: int, case: TrainingCase, name: str, config: TurnsConfig) -> int:
    """Make a side, which stays on this rank; how many steps a turn should have."""
    warnings.filterwarnings("ignore")
    if config.tune_allocator:
        tune_malloc()
    side = SIDES[name](case)
    live = _Live(side, side.prepared(batches(case, rank)))
    initialize(side.local_weights(), case)
    _LIVE[:] = [live]
    return _num_steps(live.side, live.data, config.turn_s)


def turn(_rank: int, _world_size: int, num_steps: int, clock: str) -> float:
    """Seconds per step of the side that lives on this rank."""
    (live,) = _LIVE
    _turn(live.side, live.data, _NUM_WARM_UP_STEPS, clock)
    return _turn(live.side, live.data, num_steps, clock)


def profiled(_rank: int, _world_size: int) -> list[OperatorShare]:
    """The operators and named spans of a step, the most expensive first."""
    (live,) = _LIVE
    return _profile(live.side, live.data)


def check_agreement(
    sides: Mapping[str, Side], data: Mapping[str, Sequence[TrainingBatch]], case: TrainingCase
) -> tuple[float, float]:
    """Start both sides from the same weights and compare outputs and weights over some steps.

    Returns:
        the largest difference of an output relative to the largest output, and of a weight.

    Raises:
        TrainingDisagreementError: a difference above its tolerance, other shards, or weights that did not move.
    """
    for side in sides.values():
        initialize(side.local_weights(), case)
    before = {name: weight.clone() for name, weight in sides[PEER].local_weights().items()}
    outputs = 0.0
    for i in range(_NUM_CHECKED_STEPS):
        expected, found = (sides[name].in_order(sides[name].step(data[name][i])) for name in (PEER, OURS))
        outputs = max(outputs, _difference(found, expected) / float(expected.abs().max()))
    theirs, ours = sides[PEER].local_weights(), sides[OURS].local_weights()
    if theirs.keys() != ours.keys():
        raise TrainingDisagreementError(f"shards: {OURS} has {sorted(ours)}, {PEER} has {sorted(theirs)}")
    tables = [name for name in theirs if "embedding_bags" in name]
    unmoved = [name for name in tables if _difference(theirs[name], before[name]) < _LEAST_MOVE]
    if unmoved:
        raise TrainingDisagreementError(f"weights: {PEER} did not train {unmoved}")
    weights = max(_difference(ours[name], theirs[name]) for name in theirs)
    if not (outputs <= OUTPUT_TOLERANCE and weights <= WEIGHT_TOLERANCE):
        raise TrainingDisagreementError(
            f"{case.sharding_type}: after {_NUM_CHECKED_STEPS} steps outputs differ by {outputs:.2g} relative and "
            f"weights by {weights:.2g}, expected at most {OUTPUT_TOLERANCE} and {WEIGHT_TOLERANCE}"
        )
    return outputs, weights


def _difference(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max())


def _turn(side: Side, data: Sequence[TrainingBatch], num_steps: int, clock: str) -> float:
    """Seconds per step. All ranks begin together."""
    dist.barrier()
    began = TRAINING_CLOCKS[clock]()
    for i in range(num_steps):
        side.step(data[i % len(data)])
    return (TRAINING_CLOCKS[clock]() - began) / num_steps


def _num_steps(side: Side, data: Sequence[TrainingBatch], turn_s: float) -> int:
    """As many on every rank, for they wait for each other."""
    _turn(side, data, _NUM_WARM_UP_STEPS, "wall")
    slowest = torch.tensor(_turn(side, data, _NUM_WARM_UP_STEPS, "wall"))
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return max(_NUM_WARM_UP_STEPS, round(turn_s / float(slowest)))


def _profile(side: Side, data: Sequence[TrainingBatch]) -> list[OperatorShare]:
    """The operators and named spans of a step, the most expensive first."""
    dist.barrier()
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as recorded:
        for i in range(_NUM_PROFILED_STEPS):
            side.step(data[i % len(data)])
    return shares(recorded.key_averages(), _NUM_PROFILED_STEPS)
