"""Lines of the native server's log and its captures are Python's: both are held to the same files.

``cpp_client/tests/observe`` compares the native form of the same records with what is compared here.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from serve.capture_file import CapturedRequest, CaptureReader, header, record, serialized
from serve.log_format import JsonFormatter, TextFormatter
from serve.raw import RawDense, RawRequest, RawSparse

DATA = Path(__file__).parents[2] / "cpp_client" / "tests" / "data" / "observe"
EVIL = 'x"\n{"level": "CRITICAL"}\r\u2028\u202e\x1b[31m\x00\x7f\U000e0001é😀='


def _record() -> logging.LogRecord:
    fields = {
        "model": "dlrm",
        "version": "",
        "request_id": EVIL,
        "num_rows": 3,
        "share": 0.5,
        "ok": True,
        "duration_ms": 0.214,
        "nan": float("nan"),
        "path": "a\\b",
        "quoted": 'a"b',
        "long": "é" * 257,
    }
    own = {"name": "serve.requests", "levelno": logging.WARNING, "levelname": "WARNING", "created": 1.25}
    text = {"msg": f"got {EVIL}", "exc_text": "Traceback:\n  line \x1b\nthe end"}
    return logging.makeLogRecord({**own, **text, **fields})


@pytest.mark.parametrize(
    ("name", "formatter"),
    [("line.json", JsonFormatter()), ("line.txt", TextFormatter())],
    ids=["json", "text"],
)
def test_the_native_log_is_held_to_pythons_lines(name: str, formatter: logging.Formatter) -> None:
    assert formatter.format(_record()) + "\n" == (DATA / name).read_text()


def _captured() -> list[CapturedRequest]:
    raw = RawRequest(
        num_rows=2,
        dense=[RawDense("price", b"\0\0\x80?" * 2)],
        sparse=[RawSparse("user", b"\1\0\0\0" * 2, b"\7" + bytes(15), b"\0\0\0?" * 2)],
        context_dense=[RawDense("", b"")],
        context_sparse=[RawSparse("tags", bytes(4), b"")],
    )
    return [
        CapturedRequest(time_us=5, model="dlrm", version="7", data=serialized(raw)),
        CapturedRequest(time_us=2**40, model="é", version="", data=serialized(RawRequest(num_rows=0))),
    ]


def test_the_native_captures_are_held_to_pythons_files() -> None:
    data = header(1_700_000_000_000_000) + b"".join(map(record, _captured()))
    assert data == (DATA / "requests.capture").read_bytes()
    with CaptureReader(DATA / "requests.capture") as reader:
        assert list(reader) == _captured()
