"""Formatters of log records: JSON lines, or text.

Records contain data from clients. With any content, a record is one line of JSON, or begins one line of text:
line breaks, control characters and bidirectional controls are escaped, and every field has a maximum length.
"""

from __future__ import annotations

import json
import logging
import math
from datetime import UTC, datetime
from typing import Any

MAX_MESSAGE_CHARS = 8 << 10
MAX_FIELD_CHARS = 256
MAX_EXCEPTION_CHARS = 32 << 10
# Attributes of every record; all others come from `extra`.
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_FIRST = ("time", "level", "logger", "message")


def fields_of(record: logging.LogRecord) -> dict[str, str | int | float | bool]:
    """Return the fields given with ``extra`` as JSON values, without empty strings and Nones.

    Names that begin with an underscore are those of other libraries, which set them on every record, as Ray does.
    """
    fields = {}
    for name, value in vars(record).items():
        if (
            not name.startswith("_")
            and name not in _OWN
            and name not in _FIRST
            and value is not None
            and value != ""
        ):
            fields[name] = _plain(value)
    return fields


def exception_of(record: logging.LogRecord) -> str:
    """Return the traceback, or an empty string; of a long one the end, which holds the error."""
    if record.exc_info and not record.exc_text:
        record.exc_text = logging.Formatter().formatException(record.exc_info)
    text = record.exc_text or ""
    return text if len(text) <= MAX_EXCEPTION_CHARS else "..." + text[3 - MAX_EXCEPTION_CHARS :]


class JsonFormatter(logging.Formatter):
    """Formats a JSON object: time (RFC 3339, UTC, in µs), level, logger, message, fields, exception."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without its line break."""
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": _bounded(record.getMessage(), MAX_MESSAGE_CHARS),
            **fields_of(record),
        }
        exception = exception_of(record)
        if exception:
            line["exception"] = exception
        # ASCII only: no character can end the line or reverse it in a terminal.
        return json.dumps(line, ensure_ascii=True, separators=(", ", ": "))


class TextFormatter(logging.Formatter):
    """Formats text: time, level, logger, message, fields as ``name=value``, then an indented traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without its line break, and the traceback's lines."""
        message = _escaped(_bounded(record.getMessage(), MAX_MESSAGE_CHARS))
        words = [_time(record), record.levelname, f"{record.name}:", message]
        words += [f"{name}={_value(value)}" for name, value in fields_of(record).items()]
        exception = exception_of(record)
        traceback = "".join(f"\n    {_escaped(line)}" for line in exception.splitlines())
        return " ".join(words) + traceback


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _plain(value: Any) -> str | int | float | bool:
    if isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return _bounded(str(value), MAX_FIELD_CHARS)


def _bounded(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _value(value: str | int | float | bool) -> str:
    """Return a field's value, quoted if it is not a single word."""
    text = str(value)
    if text.isprintable() and not set(text) & set(' "=\\'):
        return text
    return '"' + _escaped(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'
