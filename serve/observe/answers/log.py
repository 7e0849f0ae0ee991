"""The answer log: a thread puts records of answered requests together as columns and writes them.

No request waits for it: records go into a bounded queue, and those that find no room are dropped and counted.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from typing import NamedTuple, Protocol

import pyarrow as pa

from recsys.inputs.answer_columns import AnswerLayout
from recsys.inputs.signature import Signature
from recsys.kernels.operators import delta_packer
from serve.config.settings import AnswerLogConfig
from serve.engine.answered import AnsweredBlock, chosen, num_chosen
from serve.metrics.counters import ANSWER_RESULTS
from serve.observe.answers.folder import Folder
from serve.observe.answers.key import read_key
from serve.observe.answers.table import SentKinds, VersionNames, table_of
from serve.observe.answers.topic import Topic
from serve.threads import Worker

_log = logging.getLogger("serve.answers")
_MAX_PARTS = 65536
_COLLECT_S = 0.25
_IDLE_S = 0.25
# Grace period for writing what waits when the process ends.
_GRACE_S = 30.0
_MAX_LAYOUTS = 256
# The thread's nice value on Linux: beside a busy thread of serving it gets a tenth of a processor.
_NICE = 10
# Interval of lines about failures.
_REPORT_S = 60.0


class _Part(NamedTuple):
    """A block of requests, and how many of them are chosen."""

    block: AnsweredBlock
    num_requests: int


class Destination(Protocol):
    """Where rows go; belongs to the log's thread."""

    def kinds(self, model: str, version: str, layout: AnswerLayout) -> SentKinds:
        """Return what collects how the next rows were sent; call it before ``write``."""
        ...

    def write(self, model: str, version: str, batch: pa.RecordBatch, num_requests: int) -> None:
        """Write rows of whole requests."""
        ...

    def tick(self) -> None:
        """Do what is due; called several times a second."""
        ...

    def close(self) -> None:
        """Write all that waits."""
        ...


class AnswerLog:
    """The log of answers. ``offer`` and ``counts`` may be called from any thread.

    Args:
        config: what to write, and where.

    Raises:
        ConfigError: the key cannot be used.
        StreamError: a property of Kafka is wrong.
        OSError: the folder or the key's file cannot be used.
    """

    def __init__(self, config: AnswerLogConfig) -> None:
        self._share = config.share
        self._left_out, self._hashed = frozenset(config.leave_out), frozenset(config.hash)
        self._key = b"" if config.hash_key_file is None else read_key(config.hash_key_file)
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(ANSWER_RESULTS, 0)
        self._layouts: dict[Signature, AnswerLayout] = {}
        self._reported_s = -_REPORT_S
        self._is_behind = False
        # Arrow's own allocator gives memory back between batches, and the next one pays for new pages.
        pa.set_memory_pool(pa.system_memory_pool())
        delta_packer()  # loads the native kernels now, not beside the first requests
        self._destination = self._opened(config)
        self._parts: Worker[_Part] = Worker(
            "answer-log",
            self._write_all,
            max_waiting=_MAX_PARTS,
            max_waiting_bytes=config.max_waiting_bytes,
            max_taken=_MAX_PARTS,
            collect_s=_COLLECT_S,
        )
        self._parts.idle_s = _IDLE_S

    def offer(self, block: AnsweredBlock) -> None:
        """Queue answered requests of one version; never blocks and never raises."""
        if not block.has_inputs:
            return
        num_requests = num_chosen(block, self._share)
        if num_requests and not self._parts.put(_Part(block, num_requests), block.num_bytes):
            self._count("queue_full", num_requests)

    def counts(self) -> dict[str, int]:
        """Return the chosen requests by ``ANSWER_RESULTS``; those that wait for a whole file are in none."""
        with self._lock:
            return dict(self._counts)

    def close(self) -> None:
        """Write the waiting records and finish the files, for half a minute at most; idempotent."""
        if self._parts.close(_GRACE_S):
            try:
                self._destination.close()
            except Exception as error:
                self._report(error)

    def _opened(self, config: AnswerLogConfig) -> Destination:
        topic = config.topic
        if topic is None:
            return Folder(config, self._count)
        return Topic(config, topic, self._count, self._report)

    def _count(self, result: str, number: int) -> None:
        with self._lock:
            self._counts[result] += number

    def _write_all(self, parts: list[_Part]) -> None:
        self._step_back()
        for part in parts:
            self._write(part)
        try:
            self._destination.tick()
        except Exception as error:
            self._report(error)

    def _step_back(self) -> None:
        """Give serving the precedence over this thread."""
        if not self._is_behind:
            self._is_behind = True
            with contextlib.suppress(OSError, AttributeError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)

    def _write(self, part: _Part) -> None:
        is_counted = False
        block, num_requests = part
        try:
            layout = self._layout(block.model, block.signature)
            columns = chosen(block.columns(), self._share, block.signature.outputs)
            assert columns is not None
            kinds = self._destination.kinds(block.model, block.version, layout)
            names = VersionNames(block.model, block.version)
            batch = table_of(columns, names, layout, self._key, kinds)
            is_counted = True  # from here on by the destination
            self._destination.write(block.model, block.version, batch, num_requests)
        except Exception as error:
            # Any exception: a bug here must not end the log silently.
            if not is_counted:
                self._count("write_failed", num_requests)
            self._report(error)

    def _layout(self, model: str, signature: Signature) -> AnswerLayout:
        layout = self._layouts.get(signature)
        if layout is None:
            if len(self._layouts) >= _MAX_LAYOUTS:
                self._layouts.clear()
            layout = AnswerLayout(
                signature=signature, left_out=self._left_out, hashed=self._hashed
            ).of_signature()
            self._layouts[signature] = layout
            for option, names in (
                ("leave_out", self._left_out - layout.left_out),
                ("hash", self._hashed - layout.hashed),
            ):
                if names:
                    _log.warning(
                        "answer_log.%s: got %s, which model %r does not have; check the spelling, since what is not "
                        "named is written as it is",
                        option,
                        ", ".join(map(repr, sorted(names))),
                        model,
                    )
        return layout

    def _report(self, error: Exception) -> None:
        now_s = time.monotonic()
        if now_s - self._reported_s < _REPORT_S:
            return
        self._reported_s = now_s
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)[:200]
        _log.error(
            "answers could not be written: %s: %s; serving goes on, and the requests are counted as write_failed",
            type(error).__name__,
            reason,
        )
