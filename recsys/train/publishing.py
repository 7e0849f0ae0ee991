"""Deltas of a training by ``recsys-train``: a snapshot every few seconds, between two steps, and one at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recsys.train.callbacks import Callback
from recsys.train.config import PUBLISH_EVERY_S

if TYPE_CHECKING:
    from recsys.train.stepping.trainer import Trainer
    from recsys.training import Publisher

# Steps between two questions to rank 0 whether a snapshot is due.
_ASK_EVERY = 8


@dataclass(frozen=True, kw_only=True)
class Publishing:
    """Where deltas go.

    Attributes:
        destination: An address of ``recsys.streams``.
        artifact: The artifact that servers have loaded.
        every_s: Seconds between two deltas.
        log: Called with a line for what an operator should know.
    """

    destination: str
    artifact: Path
    every_s: float = PUBLISH_EVERY_S
    log: Callable[[str], None] = print


class PublishingCallback(Callback):
    """Publishes when it is time. Every rank has one.

    Args:
        publisher: The publisher.
        every_s: Seconds between two snapshots.
        num_ranks: W; with one rank, no rank need be asked.
    """

    def __init__(self, publisher: Publisher, every_s: float, num_ranks: int) -> None:
        self._publisher, self._every_s, self._num_ranks = publisher, every_s, num_ranks
        self._num_batches = 0
        self._last_s = -every_s

    def batch_done(self, num_rows: int) -> None:
        """Take a snapshot, if one is due."""
        del num_rows
        self._num_batches += 1
        if self._num_ranks > 1 and self._num_batches % _ASK_EVERY:
            return
        is_due = time.monotonic() - self._last_s >= self._every_s
        if self._num_ranks == 1 and not is_due:
            return
        if self._publisher.publish(is_due=is_due):
            self._last_s = time.monotonic()


@contextmanager
def published(
    trainer: Trainer, factory: str, arguments: Mapping[str, Any], publishing: Publishing | None
) -> Iterator[Callback]:
    """Publish deltas of a training in the body, and at its end what is left.

    Args:
        trainer: The trainer; from here on it tracks the rows that it touches.
        factory: Its model's factory.
        arguments: The factory's arguments.
        publishing: Where deltas go; None for nowhere.

    Raises:
        ArtifactError: The artifact cannot be read.
    """
    if publishing is None:
        yield Callback()
        return
    from recsys.checkpoint.single_file import empty_model
    from recsys.training import Publisher

    publisher = Publisher(
        trainer.model,
        publishing.artifact,
        publishing.destination,
        optimizer=trainer.optimizer,
        exported=empty_model(factory, arguments),
        log=publishing.log,
    )
    with publisher:
        trainer.touched = publisher.touched
        yield PublishingCallback(publisher, publishing.every_s, trainer.share.world_size)
        if not publisher.finish():
            publishing.log(f"publish: the last changes are not published: {publisher.status.reason}")
