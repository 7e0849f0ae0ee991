"""librdkafka's properties: ours, and those of the user, such as SASL's and TLS's, which no log and no error shows.

The user's come from a file (``?config=FILE`` in the address, or ``RECSYS_KAFKA_CONFIG``) with ``name=value`` in each
line, and from variables of the environment: ``RECSYS_KAFKA_SASL_PASSWORD`` is ``sasl.password``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from recsys.streams.address import KafkaAddress
from recsys.streams.interface import StreamError

_ENV = "RECSYS_KAFKA_"
_ENV_FILE = _ENV + "CONFIG"
# Lines of librdkafka itself: each error comes to the callbacks, too, and is told once there.
_QUIET = logging.getLogger("recsys.streams.librdkafka")
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False
_HIDDEN = "***"
_MAX_TEXT = 300


def settings(
    address: KafkaAddress, ours: Mapping[str, object], on_error: Callable[[Any], None]
) -> dict[str, Any]:
    """Return the properties of a client; ours take precedence over the user's.

    Args:
        address: the brokers, and where the user's are.
        ours: those that the code relies on.
        on_error: is called with a ``KafkaError`` where no call reports it.

    Raises:
        StreamError: the file cannot be read, or a line of it is no property.
    """
    return {
        **user_properties(address.config),
        "bootstrap.servers": address.brokers,
        "error_cb": on_error,
        "logger": _QUIET,
        "log.connection.close": False,
        **ours,
    }


def user_properties(path: Path | None) -> dict[str, str]:
    """Return the properties of the file and of the environment.

    Raises:
        StreamError: the file cannot be read, or a line of it is no property.
    """
    found: dict[str, str] = {}
    if path is None and os.environ.get(_ENV_FILE):
        path = Path(os.environ[_ENV_FILE])
    if path is not None:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise StreamError(
                f"kafka: the file of config cannot be read ({type(error).__name__}); expected lines name=value"
            ) from None
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            name, mark, value = text.partition("=")
            if not mark or not name.strip():
                raise StreamError(f"kafka: line {number} of the file of config: expected name=value")
            found[name.strip()] = value.strip()
    for variable, value in os.environ.items():
        if variable.startswith(_ENV) and variable != _ENV_FILE:
            found[variable.removeprefix(_ENV).lower().replace("_", ".")] = value
    return found


def opened(make: Callable[[dict[str, Any]], Any], properties: dict[str, Any]) -> Any:
    """Return a client of librdkafka.

    Raises:
        StreamError: a property is wrong. No value of the user's stands in the text.
    """
    from confluent_kafka import KafkaException

    try:
        return make(properties)
    except (KafkaException, TypeError, ValueError) as error:
        text = _said(error)
        for value in sorted(
            {str(v) for v in properties.values() if isinstance(v, str)}, key=len, reverse=True
        ):
            if len(value) > 1 and value != properties["bootstrap.servers"]:
                text = text.replace(value, _HIDDEN)
        raise StreamError(f"kafka: a property is wrong: {text[:_MAX_TEXT]}") from None


def _said(error: Exception) -> str:
    first = error.args[0] if error.args else error
    return str(first.str()) if hasattr(first, "str") else str(error)


def text_of(error: Any) -> str:
    """Return what a ``KafkaError`` says."""
    return f"{error.str()} ({error.name()})"[:_MAX_TEXT]
