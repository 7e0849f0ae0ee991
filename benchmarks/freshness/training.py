"""What publishing costs a training: steps with and without it, in short turns, one process and one thread.

The publisher's own process competes for the machine's processors as it does in practice.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from benchmarks.freshness.model import ClickStream, OnlineModel, trained_online
from benchmarks.measure.bars import Bar
from benchmarks.measure.processes import StepError
from recsys.training import Publisher

MOST_SLOWER = 1.05
# Of a turn, in which a delta is published.
_TURN_S = 2.0
_POLL_S = 0.05
_NUM_BATCHES = 16
# IDs [2, B] and labels [B].
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class PublishingCost:
    """What was measured.

    Attributes:
        steps_per_s: without publishing, median of the turns.
        slower: time of a step with publishing over that without, median of the pairs of turns.
        slower_thread: the same of the training thread's processor time.
        slower_process: the same of the processor time of all threads of the training.
        num_published: deltas.
        rows: in the last delta.
        snapshot_ms: that the training's thread took for the last snapshot.
        first_s: from the first step to the end of the first snapshot, of all rows, which are copied between steps.
        first_slower: time of a step meanwhile over that without publishing.
        first_pause_ms: the longest time that it took between two steps.
    """

    steps_per_s: float
    slower: float
    slower_thread: float
    slower_process: float
    num_published: int
    rows: int
    snapshot_ms: float
    first_s: float
    first_slower: float
    first_pause_ms: float


@dataclass(frozen=True, kw_only=True)
class _Turn:
    """Seconds of a step: on the clock, of this thread's processor time, and of the process's."""

    clock_s: float
    thread_s: float
    process_s: float


def bars_of(result: PublishingCost) -> list[Bar]:
    """Return the bars of what was measured."""
    return [Bar("a step of training with publishing / without", MOST_SLOWER, result.slower, is_most=True)]


def measure_training(
    folder: Path, num_rows: int, batch_size: int, rounds: int, seconds: float
) -> PublishingCost:
    """Train two equal models with and without publishing, in turns on the same batches.

    Args:
        folder: where artifacts and deltas go.
        num_rows: of each of two tables.
        batch_size: clicks of a step.
        rounds: times that each is trained for some seconds.
        seconds: of a round.
    """
    stream = ClickStream(batch_size, num_users=num_rows // 2, num_items=num_rows // 2)
    with trained_online(num_rows, dim=64) as model:
        alone = OnlineModel(num_rows, dim=64)
        # The same ones each time, and all IDs admitted before: a fuller mapping takes longer.
        batches = [stream.clicks() for _ in range(_NUM_BATCHES)]
        for batch in [*batches, *batches]:
            model.learn(*batch)
            alone.learn(*batch)
        artifact = model.export(folder / "model.artifact")
        with model.publisher(artifact, folder / "deltas") as publisher:
            before = _turn(alone, batches, _for(_TURN_S))
            first = _first(model, batches, publisher)
            first_s, pause_s = time.monotonic() - first[0], publisher.status.snapshot_s
            _finish(publisher)
            num_first = publisher.status.num_published
            pairs = [
                _pair(alone, model, batches, publisher, is_first=bool(number % 2))
                for number in range(max(1, int(rounds * seconds / _TURN_S)))
            ]
            _finish(publisher)
            status = publisher.status

    def slower(of: Callable[[_Turn], float]) -> float:
        return statistics.median(of(beside) / of(without) for without, beside in pairs)

    return PublishingCost(
        steps_per_s=1 / statistics.median(without.clock_s for without, _ in pairs),
        slower=slower(lambda turn: turn.clock_s),
        slower_thread=slower(lambda turn: turn.thread_s),
        slower_process=slower(lambda turn: turn.process_s),
        num_published=status.num_published - num_first,
        rows=status.num_rows,
        snapshot_ms=status.snapshot_s * 1e3,
        first_s=first_s,
        first_slower=first[1].clock_s / before.clock_s,
        first_pause_ms=pause_s * 1e3,
    )


def _finish(publisher: Publisher) -> None:
    if not publisher.finish():
        raise StepError(f"nothing is published: {publisher.status.reason}")


def _for(seconds: float) -> Iterator[bool]:
    """Yield whether it is the first one of some seconds."""
    end = time.monotonic() + seconds
    yield True
    while time.monotonic() < end:
        yield False


def _turn(
    model: OnlineModel, batches: list[Batch], steps: Iterator[bool], publisher: Publisher | None = None
) -> _Turn:
    """Train, and publish from the first step on until a snapshot is taken."""
    number, is_due = 0, True
    started, thread_s, process_s = time.monotonic(), time.thread_time(), time.process_time()
    for _ in steps:
        model.learn(*batches[number % len(batches)])
        number += 1
        if publisher is not None and publisher.publish(is_due=is_due):
            is_due = False
    return _Turn(
        clock_s=(time.monotonic() - started) / number,
        thread_s=(time.thread_time() - thread_s) / number,
        process_s=(time.process_time() - process_s) / number,
    )


def _pair(
    alone: OnlineModel, model: OnlineModel, batches: list[Batch], publisher: Publisher, *, is_first: bool
) -> tuple[_Turn, _Turn]:
    """Return a turn without publishing and one with it, which may be the first of the two."""
    if is_first:
        beside = _turn(model, batches, _for(_TURN_S), publisher)
        return _turn(alone, batches, _for(_TURN_S)), beside
    return _turn(alone, batches, _for(_TURN_S)), _turn(model, batches, _for(_TURN_S), publisher)


def _first(model: OnlineModel, batches: list[Batch], publisher: Publisher) -> tuple[float, _Turn]:
    """Train until all rows are copied; return when that began, and what a step took."""
    while publisher.status.state == "starting":
        time.sleep(_POLL_S)
    started = time.monotonic()

    def steps() -> Iterator[bool]:
        for number in itertools.count():
            if number and publisher.status.state != "copying":
                return
            yield not number

    return started, _turn(model, batches, steps(), publisher)
