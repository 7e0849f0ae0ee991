"""The answer log: a thread puts records of answered requests together as columns and writes them.

No request waits for it: records go into a bounded queue, and those that find no room are dropped and counted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from recsys.inputs.answer_columns import AnswerLayout
from recsys.inputs.signature import Signature
from serve.config.settings import AnswerLogConfig
from serve.engine.records import Answered
from serve.metrics.counters import ANSWER_RESULTS
from serve.observe.answers.folder import Folder
from serve.observe.answers.key import read_key
from serve.observe.answers.table import SentKinds, table_of
from serve.threads import Worker

_log = logging.getLogger("serve.answers")
_MAX_LISTS = 65536
_COLLECT_S = 0.25
_IDLE_S = 0.25
# Requests that are put together at a time, which bounds the memory of their columns.
_MAX_TOGETHER = 8192
# Python objects of a record, beside its bytes.
_RECORD_BYTES = 600
# Grace period for writing what waits when the process ends.
_GRACE_S = 30.0
_MAX_LAYOUTS = 256
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
        ConfigError: the key or the destination cannot be used.
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
        self._destination = _opened(config, self._count)
        self._records: Worker[list[Answered]] = Worker(
            "answer-log",
            self._write_all,
            max_waiting=_MAX_LISTS,
            max_waiting_bytes=config.max_waiting_bytes,
            max_taken=_MAX_LISTS,
            collect_s=_COLLECT_S,
        )
        self._records.idle_s = _IDLE_S

    def offer(self, records: Sequence[Answered]) -> None:
        """Queue answered requests; never blocks and never raises."""
        share = self._share
        chosen = [one for one in records if one.draw < share]
        num_bytes = sum(_RECORD_BYTES + len(one.message) for one in chosen)
        if chosen and not self._records.put(chosen, num_bytes):
            self._count("queue_full", len(chosen))

    def counts(self) -> dict[str, int]:
        """Return the chosen requests by ``ANSWER_RESULTS``; those that wait for a whole file are in none."""
        with self._lock:
            return dict(self._counts)

    def close(self) -> None:
        """Write the waiting records and finish the files, for half a minute at most; idempotent."""
        if self._records.close(_GRACE_S):
            try:
                self._destination.close()
            except Exception as error:
                self._report(error)

    def _count(self, result: str, number: int) -> None:
        with self._lock:
            self._counts[result] += number

    def _write_all(self, lists: list[list[Answered]]) -> None:
        by_version: dict[tuple[str, str], list[Answered]] = {}
        for records in lists:
            for one in records:
                by_version.setdefault((one.model, one.version), []).append(one)
        for (model, version), records in by_version.items():
            for start in range(0, len(records), _MAX_TOGETHER):
                self._write(model, version, records[start : start + _MAX_TOGETHER])
        try:
            self._destination.tick()
        except Exception as error:
            self._report(error)

    def _write(self, model: str, version: str, records: list[Answered]) -> None:
        is_counted = False
        try:
            layout = self._layout(model, records[-1].signature)
            kinds = self._destination.kinds(model, version, layout)
            batch = table_of(records, layout, self._key, kinds)
            is_counted = True  # from here on by the destination
            self._destination.write(model, version, batch, len(records))
        except Exception as error:
            # Any exception: a bug here must not end the log silently.
            if not is_counted:
                self._count("write_failed", len(records))
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


def _opened(config: AnswerLogConfig, count: object) -> Destination:
    return Folder(config, count)  # type: ignore[arg-type]
