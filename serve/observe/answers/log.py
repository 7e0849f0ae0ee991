"""The answer log: a thread puts records of answered requests together as columns and writes them.

No request waits for it: records go into a bounded queue, and those that find no room are dropped and counted.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from recsys.inputs.answer_columns import AnswerLayout
from recsys.inputs.signature import Signature
from recsys.streams.address import KafkaAddress, parse_stream_address
from serve.config.settings import AnswerLogConfig
from serve.engine.answered_columns import Part, is_native, part_of
from serve.engine.records import Answered
from serve.metrics.counters import ANSWER_RESULTS
from serve.observe.answers.folder import Folder
from serve.observe.answers.key import read_key
from serve.observe.answers.table import SentKinds, table_of
from serve.observe.answers.topic import Topic
from serve.threads import Worker

_log = logging.getLogger("serve.answers")
_MAX_PARTS = 65536
_COLLECT_S = 0.25
_IDLE_S = 0.25
# Parts that are put together at a time; max_waiting_bytes bounds them, too.
_MAX_TOGETHER = 1024
# Grace period for writing what waits when the process ends.
_GRACE_S = 30.0
_MAX_LAYOUTS = 256
# The thread's nice value on Linux: beside a busy thread of serving it gets a tenth of a processor.
_NICE = 10
# Interval of lines about failures.
_REPORT_S = 60.0


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
        self._destination = self._opened(config)
        self._parts: Worker[Part] = Worker(
            "answer-log",
            self._write_all,
            max_waiting=_MAX_PARTS,
            max_waiting_bytes=config.max_waiting_bytes,
            max_taken=_MAX_PARTS,
            collect_s=_COLLECT_S,
        )
        self._parts.idle_s = _IDLE_S

    def offer(self, records: Sequence[Answered]) -> None:
        """Queue answered requests of one version; never blocks and never raises."""
        part = part_of(records, self._share)
        if part is not None and not self._parts.put(part, part.num_bytes):
            self._count("queue_full", part.num_requests)

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
        if not config.is_kafka:
            return Folder(config, self._count)
        address = parse_stream_address(config.destination)
        assert isinstance(address, KafkaAddress)
        return Topic(config, address, self._count, self._report)

    def _count(self, result: str, number: int) -> None:
        with self._lock:
            self._counts[result] += number

    def _write_all(self, parts: list[Part]) -> None:
        self._step_back()
        by_version: dict[tuple[str, str], list[Part]] = {}
        for part in parts:
            waiting = by_version.setdefault((part.model, part.version), [])
            if waiting and (waiting[-1].signature is not part.signature or len(waiting) >= _MAX_TOGETHER):
                self._write(waiting)
                waiting.clear()
            waiting.append(part)
        for waiting in by_version.values():
            self._write(waiting)
        try:
            self._destination.tick()
        except Exception as error:
            self._report(error)

    def _step_back(self) -> None:
        """Give serving the precedence over this thread, unless it works with the interpreter's lock."""
        if not self._is_behind:
            self._is_behind = True
            if is_native():
                with contextlib.suppress(OSError, AttributeError):
                    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)

    def _write(self, parts: list[Part]) -> None:
        """Write requests of one version."""
        is_counted = False
        first, num_requests = parts[0], sum(part.num_requests for part in parts)
        try:
            layout = self._layout(first.model, first.signature)
            kinds = self._destination.kinds(first.model, first.version, layout)
            batch = table_of(parts, layout, self._key, kinds)
            is_counted = True  # from here on by the destination
            self._destination.write(first.model, first.version, batch, num_requests)
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
