"""Publishing: deltas of what a training changes, made and sent by a process beside it.

The training's thread copies the rows that were touched since the last snapshot, and the dense weights. All the rest
(quantizing, comparing with what servers hold, tracing, writing, sending) happens in a process of its own, because the
interpreter's lock would stop the steps. That process is the exporter's (``export.publish``), reached by
``recsys.export``, as this package imports no other.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn

from recsys.artifact.parts import read_manifest
from recsys.base.collectives import group_device
from recsys.base.remote import is_address
from recsys.training.publisher_process import Action, PublisherProcess, PublishStatus
from recsys.training.skeletons import pickled, skeleton_of
from recsys.training.slices import MOST_SLICES, Pace, RowSlices, Slice
from recsys.training.snapshot import Snapshots
from recsys.training.touched import DEFAULT_CONSUMER, TouchedRows
from recsys.training.touched_ids import TouchedIds

_LOGGER = logging.getLogger(__name__)
_CONSUMER = "publisher"


class Publisher:
    """Publishes deltas of a model that is being trained; a context manager.

    The first snapshot holds all rows: they are compared with what the destination's servers hold, so that a training
    that was ended in any way continues the chain of deltas. They are copied in slices between steps; those that are
    touched meanwhile are copied again. Later snapshots hold the rows, and the owners of rows, that changed in between.

    Every rank makes one with the same arguments, and calls ``publish`` and ``finish`` after the same steps.

    Args:
        model: The model; on several ranks, a ``DistributedModelParallel``.
        artifact: The artifact that servers have loaded, made of this model after any amount of training.
        destination: Where deltas go: an address of ``recsys.streams``, such as a folder.
        optimizer: The optimizer of tables that no lookup trains in its backward pass (``TouchedRows``).
        exported: The model as ``recsys-export`` takes it, if that is another than ``model``; it may lie on the meta
            device. Its names are those of ``model``.
        log: Called with a line for what an operator should know; the default is a logger.

    Attributes:
        touched: The rows that were touched; the consumer "default" is free.

    Raises:
        ArtifactError: The artifact cannot be read.
        ValueError: The model has no tables, or cannot be sent to another process.
    """

    def __init__(
        self,
        model: nn.Module,
        artifact: str | os.PathLike[str],
        destination: str | os.PathLike[str],
        *,
        optimizer: torch.optim.Optimizer | None = None,
        exported: nn.Module | None = None,
        log: Callable[[str], None] = _LOGGER.warning,
    ) -> None:
        self._snapshots = Snapshots(model)
        self._process: PublisherProcess | None = None
        if self._snapshots.rank == 0:
            read_manifest(Path(artifact))
            start = {
                "model": pickled(skeleton_of(model) if exported is None else exported),
                "artifact": str(Path(artifact).absolute()),
                "destination": _absolute(destination),
            }
            self._process = PublisherProcess(start, log)
        self.touched = TouchedRows(model, [_CONSUMER, DEFAULT_CONSUMER], optimizer)
        self._ids = TouchedIds(model)
        self._slices: RowSlices | None = None
        self._pace = Pace()
        self._longest_s = 0.0

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def status(self) -> PublishStatus:
        """What became of the deltas so far; on other ranks than 0 always the first status."""
        return PublishStatus() if self._process is None else self._process.status

    def publish(self, *, is_due: bool = True) -> bool:
        """Take a snapshot, if the last one is published; call it between two steps, on every rank.

        It never waits for the destination. While that cannot be used, nothing is copied: the next snapshot holds
        what has changed by then. A snapshot of all rows is taken by several calls, each of which copies so much that
        the training is slowed down by a few percent.

        Args:
            is_due: Whether to take one, for ranks that call it after the same steps but have clocks of their own;
                rank 0 decides.

        Returns:
            Whether a snapshot was taken, wholly.
        """
        if self._process is None:
            return self._do(*self._agreed(Action.NOTHING, 0))
        action = self._process.wanted(is_due=is_due)
        num_slices = 1
        if action == Action.MORE:
            num_slices = 0 if self._process.is_behind else self._pace.num_slices()
        return self._do(*self._agreed(action if num_slices else Action.NOTHING, num_slices))

    def _do(self, action: int, num_slices: int) -> bool:
        """Do what rank 0 says; return whether a snapshot was taken, wholly."""
        if action == Action.NOTHING:
            return False
        started = time.perf_counter()
        self._snapshots.flush()
        if action == Action.EVERYTHING:
            self._longest_s = 0.0
            self._slices = RowSlices(self._snapshots, self.touched, _CONSUMER)
        messages: list[Any] = []
        if self._slices is not None:
            slices = list(self._slices.take(num_slices))
            messages += [message for one in slices for message in self._rows(one)]
            if not self._slices.is_done:
                self._send(messages, "copying")
                seconds = time.perf_counter() - started
                self._pace.copied(slices, seconds)
                self._longest_s = max(self._longest_s, seconds)
                return False
        messages += self._rows([*self.touched.rows(_CONSUMER).items()])
        owned = self._ids.owned(whole=self._slices is not None)
        messages += [("mapping", table, one.ids, one.rows, one.is_whole) for table, one in owned.items()]
        self._send([*messages, ("publish", self._snapshots.dense(without=self._ids.names))], "busy")
        seconds = time.perf_counter() - started
        if self._process is not None:
            self._process.taken(seconds if self._slices is None else max(self._longest_s, seconds))
        self._slices = None
        return True

    def _rows(self, of: Slice) -> list[tuple[Any, ...]]:
        """Return messages with rows; every rank must call it."""
        return [
            ("rows", table, numbers, found)
            for table, numbers in of
            if numbers.numel()
            for found in [self._snapshots.rows(table, numbers)]
        ]

    def finish(self, timeout_s: float = 60.0) -> bool:
        """Publish what has changed up to now, and wait for it; call it on every rank after the last step.

        Args:
            timeout_s: Seconds to wait at most.

        Returns:
            Whether it is published.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            self._wait(deadline)
            is_published = self._take_all(deadline) and self._wait(deadline)
            is_lost = self._process is not None and self._process.is_lost and time.monotonic() < deadline
            if not any(self._agreed(int(is_lost))):
                return is_published

    def _take_all(self, deadline: float) -> bool:
        """Take a snapshot without a break; return whether it was taken."""
        is_taken = False
        while not is_taken:
            wanted = Action.NOTHING
            if self._process is not None and time.monotonic() < deadline:
                wanted = self._process.wanted()
            action, num_slices = self._agreed(wanted, MOST_SLICES)
            if action == Action.NOTHING:
                return False
            is_taken = self._do(action, num_slices)
        return True

    def _wait(self, deadline: float) -> bool:
        """Wait until the last snapshot is published; return whether it is. All ranks wait."""
        done = self._process is not None and self._process.wait(deadline)
        return bool(*self._agreed(int(done)))

    def close(self) -> None:
        """End the process; a delta that it is sending is still sent, for a few seconds. Call ``finish`` before."""
        self.touched.close()
        self._ids.close()
        if self._process is not None:
            self._process.close()

    def _send(self, messages: list[Any], state: str) -> None:
        if self._process is not None:
            self._process.send(messages, state)

    def _agreed(self, *numbers: int) -> list[int]:
        """Return rank 0's numbers."""
        group = self._snapshots.group
        if group is None or self._snapshots.world_size == 1:
            return list(numbers)
        told = torch.tensor(numbers, device=group_device(group))
        dist.broadcast(told, group=group, group_src=0)
        return [int(number) for number in told.tolist()]


def _absolute(address: str | os.PathLike[str]) -> str:
    return str(address) if is_address(str(address)) else str(Path(address).absolute())
