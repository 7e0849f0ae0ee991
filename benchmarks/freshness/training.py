"""What publishing costs a training: steps with and without it, in turns, one process and one thread.

The publisher's own process competes for the machine's processors as it does in practice.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from benchmarks.freshness.model import ClickStream, OnlineModel, trained_online
from benchmarks.measure.bars import Bar
from benchmarks.measure.processes import StepError
from recsys.training import Publisher

MOST_SLOWER = 1.05
_EVERY_S = 2.0
_NUM_BATCHES = 16
# IDs [2, B] and labels [B].
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class PublishingCost:
    """What was measured.

    Attributes:
        steps_per_s: without publishing, median of the rounds.
        slower: time of a step with publishing over that without, median of the rounds.
        slower_thread: the same of the training thread's processor time.
        num_published: deltas.
        rows: in the last delta.
        snapshot_ms: that the training's thread took for the last snapshot.
    """

    steps_per_s: float
    slower: float
    slower_thread: float
    num_published: int
    rows: int
    snapshot_ms: float


def bars_of(result: PublishingCost) -> list[Bar]:
    """Return the bars of what was measured."""
    return [Bar("a step of training with publishing / without", MOST_SLOWER, result.slower, is_most=True)]


def measure_training(
    folder: Path, num_rows: int, batch_size: int, rounds: int, seconds: float
) -> PublishingCost:
    """Train with and without publishing, in turns.

    Args:
        folder: where artifacts and deltas go.
        num_rows: of each of two tables.
        batch_size: clicks of a step.
        rounds: turns of each.
        seconds: of a turn.
    """
    stream = ClickStream(batch_size, num_users=num_rows // 2, num_items=num_rows // 2)
    with trained_online(num_rows, dim=64) as model:
        # The same ones each time, and all IDs admitted before: a fuller mapping takes longer.
        batches = [stream.clicks() for _ in range(_NUM_BATCHES)]
        for batch in [*batches, *batches]:
            model.learn(*batch)
        artifact = model.export(folder / "model.artifact")
        alone: list[tuple[float, float]] = []
        beside: list[tuple[float, float]] = []
        num_published = 0
        for number in range(rounds):
            if number % 2 == 0:
                alone.append(_steps(model, batches, seconds, None))
            with model.publisher(artifact, folder / "deltas") as publisher:
                _finish(publisher)  # of all rows, once
                before = publisher.status.num_published
                beside.append(_steps(model, batches, seconds, publisher))
                _finish(publisher)
                status = publisher.status
                num_published += status.num_published - before
            if number % 2:
                alone.append(_steps(model, batches, seconds, None))
    ratios = [[b[i] / a[i] for a, b in zip(alone, beside, strict=True)] for i in range(2)]
    return PublishingCost(
        steps_per_s=1 / statistics.median(a for a, _ in alone),
        slower=statistics.median(ratios[0]),
        slower_thread=statistics.median(ratios[1]),
        num_published=num_published,
        rows=status.num_rows,
        snapshot_ms=status.snapshot_s * 1e3,
    )


def _finish(publisher: Publisher) -> None:
    if not publisher.finish():
        raise StepError(f"nothing is published: {publisher.status.reason}")


def _steps(
    model: OnlineModel, batches: Sequence[Batch], seconds: float, publisher: Publisher | None
) -> tuple[float, float]:
    """Return the seconds of a step, on the clock and of this thread's processor time."""
    number = 0
    due_s = started = time.monotonic()
    thread_s = time.thread_time()
    while (now := time.monotonic()) < started + seconds:
        model.learn(*batches[number % len(batches)])
        number += 1
        if publisher is not None and publisher.publish(is_due=now >= due_s):
            due_s = now + _EVERY_S
    return (time.monotonic() - started) / number, (time.thread_time() - thread_s) / number
