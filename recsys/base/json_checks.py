"""Checks of untrusted JSON: every field is checked, and every error names the field.

``at`` is the path of the object that is read, ``key`` the field in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from recsys.errors import ManifestError, NewerVersionError


def json_field(data: Any, key: str, at: str) -> Any:
    """Return the field, whatever it is.

    Raises:
        ManifestError: The field is missing. All functions here raise this error.
    """
    if not isinstance(data, dict) or key not in data:
        raise ManifestError(f"{at}.{key}: missing")
    return data[key]


def wrong(at: str, key: str, got: Any, expected: str) -> ManifestError:
    """Return the error for a field that is not what it should be."""
    return ManifestError(f"{at}.{key}: got {str(got)[:80]!r}, expected {expected}")


def a_list(data: Any, key: str, at: str) -> list[tuple[str, Any]]:
    """Return a list, each item with its path."""
    items = json_field(data, key, at)
    if not isinstance(items, list):
        raise wrong(at, key, items, "a list")
    return [(f"{at}.{key}[{i}]", item) for i, item in enumerate(items)]


def text(data: Any, key: str, at: str) -> str:
    """Return a non-empty text."""
    value = json_field(data, key, at)
    if not isinstance(value, str) or not value:
        raise wrong(at, key, value, "a non-empty text")
    return value


def hex_digits(data: Any, key: str, at: str, num_digits: int) -> str:
    """Return a text of hexadecimal digits in lower case."""
    value = text(data, key, at)
    if len(value) != num_digits or set(value) - set("0123456789abcdef"):
        raise wrong(at, key, value, f"{num_digits} hexadecimal digits")
    return value


def mapping(data: Any, key: str, at: str) -> dict[str, Any]:
    """Return an object."""
    value = json_field(data, key, at)
    if not isinstance(value, dict):
        raise wrong(at, key, value, "an object")
    return value


def choice(data: Any, key: str, at: str, choices: tuple[str, ...]) -> str:
    """Return one of the choices."""
    value = text(data, key, at)
    if value not in choices:
        raise wrong(at, key, value, "one of " + ", ".join(choices))
    return value


def known_fields(data: Any, at: str, known: Collection[str]) -> None:
    """Check that an object has no other fields than these."""
    if not isinstance(data, dict):
        raise ManifestError(f"{at}: got {type(data).__name__}, expected an object")
    unknown = sorted(str(key)[:80] for key in set(data) - set(known))
    if unknown:
        raise ManifestError(
            f"{at}: got unknown fields {unknown[:5]}, expected some of {', '.join(sorted(known))}"
        )


def whole(data: Any, key: str, at: str, *, least: int = 0) -> int:
    """Return a whole number of at least ``least``, and at most what an int64 holds."""
    value = json_field(data, key, at)
    if type(value) is not int or not least <= value < 2**63:
        raise wrong(at, key, value, f"a whole number of at least {least}")
    return value


def count(data: Any, key: str, at: str) -> int:
    """Return a whole number of at least 1."""
    return whole(data, key, at, least=1)


def check_format_version(data: Any, newest: int, at: str) -> None:
    """Check that ``format_version`` is not above the newest that this release knows.

    Raises:
        NewerVersionError: A later release wrote it.
    """
    version = count(data, "format_version", at)
    if version > newest:
        raise NewerVersionError(
            f"{at}: got format version {version}, expected at most {newest}; install a newer release"
        )


def flag(data: Any, key: str, at: str) -> bool:
    """Return a field that is true or false."""
    value = json_field(data, key, at)
    if not isinstance(value, bool):
        raise wrong(at, key, value, "true or false")
    return value


def shape(data: Any, key: str, at: str) -> tuple[int, ...]:
    """Return a list of whole numbers of at least 1."""
    value = json_field(data, key, at)
    if not isinstance(value, list) or not all(type(v) is int and v >= 1 for v in value):
        raise wrong(at, key, value, "a list of whole numbers of at least 1")
    return tuple(value)


def check_once(names: Sequence[str], at: str) -> None:
    """Check that no name occurs twice.

    Raises:
        ManifestError: A name occurs twice.
    """
    doubled = sorted(name for name, times in Counter(names).items() if times > 1)
    if doubled:
        raise ManifestError(f"{at}: got {doubled[:8]} more than once, expected each once")
