"""Who may want to hear while training runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from recsys.train.metrics import Metrics
from recsys.train.windows import Window


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One pass.

    Attributes:
        number: from 1.
        step: steps done since the training began.
        train_loss: the mean loss during the pass.
        examples_per_second: of all ranks together, during the pass.
        held_out: the metrics after it.
    """

    number: int
    step: int
    train_loss: float
    examples_per_second: float
    held_out: Metrics


class Watcher:
    """What a caller may want to hear while training runs; this one hears nothing."""

    def resumed(self, step: int) -> None:
        """The training goes on from a checkpoint, so many steps after it began."""

    def batch_done(self, num_rows: int) -> None:
        """A step over so many training rows, of all ranks, is done; or a resumed run had done so many."""

    def window_done(self, window: Window) -> None:
        """Some steps were measured."""

    def epoch_done(self, epoch: Epoch) -> None:
        """A pass is done and measured."""


class Watchers(Watcher):
    """Tells each of several."""

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        self._watchers = watchers

    def resumed(self, step: int) -> None:
        for watcher in self._watchers:
            watcher.resumed(step)

    def batch_done(self, num_rows: int) -> None:
        for watcher in self._watchers:
            watcher.batch_done(num_rows)

    def window_done(self, window: Window) -> None:
        for watcher in self._watchers:
            watcher.window_done(window)

    def epoch_done(self, epoch: Epoch) -> None:
        for watcher in self._watchers:
            watcher.epoch_done(epoch)
