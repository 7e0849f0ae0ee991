"""The answer log: what it is offered is written or counted, whatever the disk does."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet

from recsys.inputs.answer_columns import layout_of
from serve.config.settings import AnswerLogConfig, QualityConfig, ServerConfig
from serve.engine.answered import Columns, chosen
from serve.engine.reference.answers import RecordedBlock
from serve.metrics.registry import Metrics
from serve.observe.answers.log import AnswerLog
from serve.observe.observers import Observers
from tests.support.answer_logs import SIGNATURE, answered, write_log

ROOT = Path(__file__).resolve().parents[4]


def test_a_share_of_a_block_is_that_of_its_requests_alone() -> None:
    requests = [("a", [3, 5]), ("b", ["x", "yy"]), ("c", []), ("d", [8]), ("e", ["z", "y", "yyy"])]
    records = [answered(name, items)._replace(draw=i / 10) for i, (name, items) in enumerate(requests)]
    block = RecordedBlock(records)
    columns = block.columns()
    assert chosen(columns, 1.0, SIGNATURE.outputs) is columns
    assert chosen(columns, 0.0, SIGNATURE.outputs) is None
    found = chosen(RecordedBlock(records[::-1]).columns(), 0.25, SIGNATURE.outputs)
    expected = RecordedBlock(records[2::-1]).columns()
    assert found is not None
    _assert_equal(found, expected)


@pytest.mark.parametrize(
    ("age_s", "quality", "wait_s"),
    [(60.0, None, 5.0), (12.0, None, 1.0), (0.001, None, 0.5), (60.0, QualityConfig(), 0.5)],
)
def test_records_wait_for_others_as_their_readers_let_them(
    tmp_path: Path, age_s: float, quality: QualityConfig | None, wait_s: float
) -> None:
    log = AnswerLogConfig(destination=str(tmp_path), max_file_age_s=age_s)
    observers = Observers(ServerConfig(answer_log=log, quality=quality), Metrics())
    assert observers.sampling.answers_wait_s == wait_s
    observers.close()


def test_outputs_of_every_shape_are_written(tmp_path: Path) -> None:
    write_log(tmp_path, [answered("a", [3, 5])])
    (path,) = tmp_path.glob("*.parquet")
    rows = parquet.read_table(path).to_pylist()
    assert [row["output.score"] for row in rows] == [pytest.approx(0), pytest.approx(0.1)]
    assert [row["output.vector"] for row in rows] == [[0, 1], [2, 3]]
    assert [row["output.best"] for row in rows] == [0, 1]
    layout = layout_of(parquet.read_metadata(path).metadata, path.name)
    assert (layout.signature, layout.has_ids, layout.has_texts) == (SIGNATURE, {"user", "item"}, set())


def _assert_equal(found: Any, expected: Any) -> None:
    if isinstance(found, np.ndarray):
        np.testing.assert_array_equal(found, expected)
    elif isinstance(found, str):
        assert found == expected
    else:
        for one, other in zip(found, expected, strict=True):
            _assert_equal(one, other)


def test_texts_that_are_not_utf8_are_written_as_their_ids(tmp_path: Path) -> None:
    record = answered("a", ["x", "good"])
    assert record.message is not None
    block = RecordedBlock(
        [record._replace(message=record.message.replace(b"x", b"\xff", 1)), answered("b", [5])]
    )
    log = AnswerLog(AnswerLogConfig(destination=str(tmp_path)))
    log.offer(block)
    log.close()
    (path,) = tmp_path.glob("*.parquet")
    wrong, good, number = parquet.read_table(path).to_pylist()
    assert (wrong["texts.item"], len(wrong["ids.item"])) == (None, 1)
    assert (good["texts.item"], good["ids.item"]) == (["good"], None)
    assert (number["texts.item"], number["ids.item"]) == (None, [5])


def test_versions_have_files_of_their_own_and_the_oldest_are_deleted(tmp_path: Path) -> None:
    for version in ("1", "2", "3"):
        write_log(tmp_path, [answered("a", [3], version=version)], max_files=2)
    names = sorted(path.name for path in tmp_path.glob("*.parquet"))
    assert len(names) == 2


def test_requests_beyond_the_bound_are_dropped_and_counted(tmp_path: Path) -> None:
    log = AnswerLog(AnswerLogConfig(destination=str(tmp_path), max_waiting_bytes=1000))
    log.offer(RecordedBlock([answered("a", [3]), answered("b", [3])]))
    log.offer(RecordedBlock([answered("c", [3])]))
    log.close()
    assert log.counts() == {"written": 1, "queue_full": 2, "write_failed": 0}


class _SameAgain(RecordedBlock):
    """A block whose columns are made once."""

    @cached_property
    def num_bytes(self) -> int:
        return super().num_bytes

    @cached_property
    def _columns(self) -> Columns:
        return super().columns()

    def columns(self) -> Columns:
        return self._columns


def test_of_a_million_requests_each_is_counted_once(tmp_path: Path) -> None:
    block = _SameAgain([answered(f"visit-{i}", [i], user=i * i) for i in range(4000)])
    num_blocks = 1_000_000 // block.num_requests
    settings = AnswerLogConfig(
        destination=str(tmp_path), max_waiting_bytes=100 * block.num_bytes, max_file_bytes=1 << 24
    )
    log = AnswerLog(settings)
    for _ in range(num_blocks):
        log.offer(block)
    log.close()
    counts = log.counts()
    assert sum(counts.values()) == 1_000_000
    assert counts["written"] >= 100 * block.num_requests
    assert counts["queue_full"] > 0
    rows = sum(parquet.read_metadata(path).num_rows for path in tmp_path.glob("*.parquet"))
    assert rows == counts["written"]


def test_a_slow_disk_drops_requests_and_blocks_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is a pipe that nobody reads: the thread hangs in it."""
    reading, writing = os.pipe()
    is_blocked = threading.Event()

    def sync(_: int) -> None:
        is_blocked.set()
        while os.write(writing, b"\0" * 65536):
            pass

    monkeypatch.setattr(os, "fsync", sync)
    config = AnswerLogConfig(destination=str(tmp_path), max_waiting_bytes=10_000, max_file_bytes=1)
    log = AnswerLog(config)
    log.offer(RecordedBlock([answered("a", [3])]))
    assert is_blocked.wait(60)
    for _ in range(100):
        log.offer(RecordedBlock([answered("b", [3])]))
    assert log.counts()["queue_full"] > 50
    os.close(reading)  # the write fails, as of a disk that is gone
    log.close()
    counts = log.counts()
    assert counts["write_failed"] >= 1
    assert sum(counts.values()) == 101
    os.close(writing)


_FULL = """
    import resource, sys
    from serve.config.settings import AnswerLogConfig
    from serve.observe.answers.log import AnswerLog
    from serve.engine.reference.answers import RecordedBlock
    from tests.support.answer_logs import answered

    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    log = AnswerLog(AnswerLogConfig(destination=sys.argv[1], max_file_bytes=1 << 30))
    log.offer(RecordedBlock([answered(f"{i:x}" * 20, [i, i * 7919]) for i in range(20_000)]))
    log.close()
    print(log.counts())
    log = AnswerLog(AnswerLogConfig(destination=sys.argv[1]))
    log.offer(RecordedBlock([answered("after", [3])]))
    log.close()
    print(log.counts())
"""


def test_a_full_disk_costs_the_file_and_is_counted(tmp_path: Path) -> None:
    script = textwrap.dedent(_FULL)
    command = [sys.executable, "-c", script, str(tmp_path / "log")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    full, after = map(eval, done.stdout.splitlines())
    assert full == {"written": 0, "queue_full": 0, "write_failed": 20_000}
    assert after == {"written": 1, "queue_full": 0, "write_failed": 0}
    (path,) = (tmp_path / "log").iterdir()
    assert parquet.read_table(path).column("request_id").to_pylist() == ["after"]
