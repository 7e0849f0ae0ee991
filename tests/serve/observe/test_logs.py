"""The log: lines that can be parsed whatever clients send, and that nobody waits for."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serve.config.settings import LogConfig
from serve.engine.records import EndedRequest, read_traceparent, trace_id_of
from serve.observe.log_format import JsonFormatter, TextFormatter
from serve.observe.logs import LogWriter, RequestLog, log_counts, set_up_logging, shut_down_logging
from tests.support.serve.queues import Clock

ROOT = Path(__file__).parents[3]
EVIL = 'x"\n{"level": "CRITICAL"}\r\u2028\u202e\x1b[31m\x00\ud800='
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def record(message: str = "hello", level: int = logging.INFO, **fields: Any) -> logging.LogRecord:
    return logging.makeLogRecord(
        {"name": "serve", "levelno": level, "levelname": "INFO", "msg": message, **fields}
    )


def parsed(line: str) -> dict[str, Any]:
    assert "\n" not in line
    fields: dict[str, Any] = json.loads(line)
    return fields


# Lines.


def test_json_has_time_level_logger_message_and_fields() -> None:
    made = record(created=1.25, model="dlrm", num_rows=3, share=0.5, ok=True, _ray_timestamp_ns=7)
    line = parsed(JsonFormatter().format(made))
    assert line == {
        "time": "1970-01-01T00:00:01.250000Z",
        "level": "INFO",
        "logger": "serve",
        "message": "hello",
        "model": "dlrm",
        "num_rows": 3,
        "share": 0.5,
        "ok": True,
    }
    assert list(line)[:4] == ["time", "level", "logger", "message"]


def test_json_holds_what_clients_send_and_is_one_line_of_ascii() -> None:
    line = JsonFormatter().format(record(f"got {EVIL}", request_id=EVIL))
    assert line.isascii()
    assert line.isprintable()
    assert parsed(line)["request_id"] == EVIL
    assert parsed(line)["level"] == "INFO"


def test_text_is_one_line_whatever_clients_send() -> None:
    line = TextFormatter().format(record(f"got {EVIL}", request_id=EVIL, model="dlrm"))
    assert line.isprintable()
    assert line.endswith("model=dlrm")
    assert r"request_id=\"" not in line
    assert r'request_id="x\"\n{\"level\": \"CRITICAL\"}\r\u2028\u202e\x1b[31m\x00\ud800="' in line


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()], ids=["json", "text"])
def test_lines_are_bounded(formatter: logging.Formatter) -> None:
    line = formatter.format(record("m" * 10**6, request_id="r" * 10**6))
    assert "r" * 253 + "..." in line
    assert "m" * 8000 in line
    assert len(line) < 9000


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), [1], {"a": 1}, b"\xff"])
def test_values_that_json_has_not_become_text(value: object) -> None:
    line = parsed(JsonFormatter().format(record(value=value)))
    assert line["value"] == str(value)


def failed() -> logging.LogRecord:
    try:
        raise RuntimeError(f"bad {EVIL}")
    except RuntimeError:
        return record("a batch failed", exc_info=sys.exc_info())


def test_an_exception_is_one_field() -> None:
    exception = parsed(JsonFormatter().format(failed()))["exception"]
    assert exception.startswith("Traceback")
    assert 'raise RuntimeError(f"bad {EVIL}")' in exception


def test_lines_of_an_exception_cannot_be_taken_for_records() -> None:
    first, *others = TextFormatter().format(failed()).split("\n")
    assert first.endswith("serve: a batch failed")
    assert others[0] == "    Traceback (most recent call last):"
    assert all(line.startswith("    ") and line.isprintable() for line in others)


def test_of_a_long_traceback_the_end_is_kept() -> None:
    try:
        raise RuntimeError("x" * 100_000 + " the end")
    except RuntimeError:
        line = JsonFormatter().format(record("failed", exc_info=sys.exc_info()))
    assert len(line) < 40_000
    assert parsed(line)["exception"].endswith("the end")


# The writer.


class GatedStream(io.StringIO):
    """Takes nothing until the gate opens."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.gate = threading.Event(), threading.Event()

    def write(self, text: str) -> int:
        self.reached.set()
        assert self.gate.wait(60)
        return super().write(text)


def test_nobody_waits_for_a_slow_reader_and_what_is_lost_is_told() -> None:
    stream = GatedStream()
    writer = LogWriter(stream, JsonFormatter(), max_waiting=10)
    writer.handle(record("first"))
    assert stream.reached.wait(60)
    for i in range(25):
        writer.handle(record(str(i)))
    assert writer.num_dropped == 15
    stream.gate.set()
    writer.close()
    messages = [parsed(line)["message"] for line in stream.getvalue().splitlines()]
    assert messages == [
        "first",
        "15 log records were lost: they came faster than they could be written",
        *(str(i) for i in range(10)),
    ]


def test_records_are_what_they_were_when_they_were_logged() -> None:
    stream = GatedStream()
    writer = LogWriter(stream, JsonFormatter())
    rows = [1]
    writer.handle(record("rows %s", args=(rows,)))
    rows.append(2)
    stream.gate.set()
    writer.close()
    assert parsed(stream.getvalue().strip())["message"] == "rows [1]"


def test_arguments_that_do_not_fit_lose_no_record() -> None:
    stream = io.StringIO()
    writer = LogWriter(stream, JsonFormatter())
    writer.handle(record("%d rows", args=("many",)))
    writer.close()
    assert parsed(stream.getvalue().strip())["message"].startswith("'%d rows' (its arguments do not fit")


def test_a_stream_that_is_gone_ends_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w", buffering=1) as stream:
        writer = LogWriter(stream, JsonFormatter())
        writer.handle(record("first"))
        writer.handle(record("second"))
        writer.close()
        assert writer.num_dropped >= 2
        with pytest.raises(BrokenPipeError):
            stream.close()


def test_a_process_whose_log_nobody_reads_ends_all_the_same() -> None:
    script = """
        import logging, sys
        from serve.config.settings import LogConfig
        from serve.observe.logs import log_counts, set_up_logging
        set_up_logging(LogConfig(as_json=True))
        for i in range(20_000):
            logging.getLogger("serve").info("%d %s", i, "x" * 200)
        print("done", log_counts()["dropped"] > 0, flush=True)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read() == "done True\n"  # to its end; stderr is full by then
        assert process.wait(60) == 0


# Set up.


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield root
    shut_down_logging()
    root.setLevel(level)
    root.handlers[:] = handlers


def test_set_up_replaces_what_was_set_up_before(root_logger: logging.Logger) -> None:
    root_logger.addHandler(logging.StreamHandler())
    first, second = io.StringIO(), io.StringIO()
    set_up_logging(LogConfig(), first)
    logging.getLogger("serve").info("one")
    set_up_logging(LogConfig(as_json=True), second)
    logging.getLogger("serve").info("two", extra={"model": "dlrm"})
    logging.getLogger("serve").debug("too small")
    assert log_counts() == {"dropped": 0}
    shut_down_logging()
    shut_down_logging()
    assert re.fullmatch(r"\S+Z INFO serve: one\n", first.getvalue())
    line = parsed(second.getvalue().strip())
    assert (line["message"], line["model"]) == ("two", "dlrm")
    assert not any(isinstance(handler, LogWriter) for handler in root_logger.handlers)


@pytest.mark.usefixtures("root_logger")
def test_what_packages_tell_the_root_logger_is_left_out() -> None:
    stream = io.StringIO()
    set_up_logging(LogConfig(), stream)
    logging.getLogger().info("Successfully loaded: 'fbgemm_gpu_py.so'")
    logging.getLogger().warning("no such operator")
    shut_down_logging()
    assert re.fullmatch(r"\S+Z WARNING root: no such operator\n", stream.getvalue())


# Requests.


def lines_of(config: LogConfig, outcomes: list[str]) -> list[dict[str, Any]]:
    stream = io.StringIO()
    set_up_logging(LogConfig(as_json=True), stream)
    log = RequestLog(config, Clock())
    for outcome in outcomes:
        done(log, outcome)
    shut_down_logging()
    return [parsed(line) for line in stream.getvalue().splitlines()]


def done(log: RequestLog, outcome: str, num_left_out: int = 0) -> None:
    if not log.takes(outcome, num_left_out):
        return
    log.write(
        EndedRequest(
            model="dlrm",
            version="7",
            request_id=EVIL,
            protocol="recsys",
            outcome=outcome,
            code="OK" if outcome == "ok" else "INTERNAL",
            num_rows=3,
            started_s=5.0,
            ended_s=5.0123456,
            reason="" if outcome == "ok" else "the model failed",
            trace_parent=TRACE,
        )
    )


@pytest.mark.usefixtures("root_logger")
@pytest.mark.parametrize(
    ("requests", "expected"),
    [("none", []), ("errors", ["invalid", "failed"]), ("all", ["ok", "invalid", "failed"])],
)
def test_requests_get_the_lines_that_were_asked_for(requests: str, expected: list[str]) -> None:
    lines = lines_of(LogConfig(requests=requests), ["ok", "invalid", "failed"])
    assert [line["outcome"] for line in lines] == expected
    levels = {"ok": "INFO", "invalid": "WARNING", "failed": "ERROR"}
    assert [line["level"] for line in lines] == [levels[outcome] for outcome in expected]


@pytest.mark.usefixtures("root_logger")
def test_a_requests_line_says_all_of_it() -> None:
    line = lines_of(LogConfig(requests="all"), ["failed"])[0]
    del line["time"]
    assert line == {
        "level": "ERROR",
        "logger": "serve.requests",
        "message": "request",
        "model": "dlrm",
        "version": "7",
        "request_id": EVIL,
        "protocol": "recsys",
        "outcome": "failed",
        "code": "INTERNAL",
        "num_rows": 3,
        "duration_ms": 12.346,
        "reason": "the model failed",
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
    }


@pytest.mark.usefixtures("root_logger")
def test_a_flood_of_refusals_is_no_flood_of_lines() -> None:
    stream = io.StringIO()
    set_up_logging(LogConfig(as_json=True), stream)
    clock = Clock()
    log = RequestLog(LogConfig(), clock)
    for _ in range(1000):
        done(log, "rejected")
    clock.now_s = 1.5
    done(log, "rejected")
    done(log, "rejected")
    shut_down_logging()
    lines = [parsed(line) for line in stream.getvalue().splitlines()]
    assert len(lines) == 102
    assert [line.get("left_out") for line in lines[-2:]] == [900, None]


@pytest.mark.usefixtures("root_logger")
def test_what_the_engine_has_left_out_is_counted_too() -> None:
    stream = io.StringIO()
    set_up_logging(LogConfig(as_json=True), stream)
    clock = Clock()
    log = RequestLog(LogConfig(), clock)
    for _ in range(101):
        done(log, "rejected", num_left_out=5)
    clock.now_s = 1.5
    done(log, "rejected", num_left_out=7)
    shut_down_logging()
    lines = [parsed(line) for line in stream.getvalue().splitlines()]
    assert len(lines) == 101
    # Each line counts those before it; the one that had no line itself is counted with its own.
    assert [line["left_out"] for line in lines[-2:]] == [5, 1 + 5 + 7]


# traceparent


def test_a_traceparent_is_read() -> None:
    parent = read_traceparent(TRACE)
    assert parent is not None
    assert parent == (0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7, True)
    unsampled = read_traceparent(TRACE[:-2] + "00")
    assert unsampled is not None
    assert not unsampled.is_sampled
    later = read_traceparent("01" + TRACE[2:] + "-more")
    assert later is not None
    assert trace_id_of(TRACE) == "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00",
        "ff" + TRACE[2:],
        TRACE + "-more",
        TRACE.upper(),
        TRACE.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32),
        TRACE.replace("00f067aa0ba902b7", "0" * 16),
        TRACE + "\n",
        "01" + TRACE[2:] + "-" + "x" * 1000,
        "٠٠" + TRACE[2:],
    ],
)
def test_a_traceparent_that_breaks_the_standard_is_none(header: str) -> None:
    assert read_traceparent(header) is None
    assert trace_id_of(header) == ""
