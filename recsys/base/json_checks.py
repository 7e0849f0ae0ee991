"""Checks of untrusted JSON: every field is checked, and every error names the field.

``at`` is the path of the object that is read, ``key`` the field in it. A dataclass declares its fields in JSON by its
annotations: see ``read_record``.
"""

from __future__ import annotations

import types
import typing
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache, partial
from typing import Annotated, Any, TypeVar

from recsys.errors import ManifestError, NewerVersionError

T = TypeVar("T")
#: Reads a field: from an object, its key and the object's path.
Reader = Callable[[Any, str, str], Any]
#: Annotates a field that is written, and must be there, even where it has its default.
ALWAYS = "always"


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
    """Return a list of whole numbers of at least 1, each at most what an int64 holds."""
    value = json_field(data, key, at)
    if not isinstance(value, list) or not all(type(v) is int and 1 <= v < 2**63 for v in value):
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


def texts(data: Any, key: str, at: str) -> tuple[str, ...]:
    """Return a list of non-empty texts."""
    items = a_list(data, key, at)
    for place, item in items:
        if not isinstance(item, str) or not item:
            raise ManifestError(f"{place}: got {str(item)[:80]!r}, expected a non-empty text")
    return tuple(item for _, item in items)


def one_of(choices: tuple[str, ...]) -> Reader:
    """Return what reads one of the choices."""
    return partial(choice, choices=choices)


def digits(num_digits: int) -> Reader:
    """Return what reads a text of hexadecimal digits."""
    return partial(hex_digits, num_digits=num_digits)


def read_record(kind: type[T], data: Any, at: str, **given: Any) -> T:
    """Read a dataclass whose annotations say what its fields must be.

    A text is not empty, a whole number is at least 1, an enum has one of its values, a tuple of whole numbers is a
    shape, a mapping is any object, and a dataclass is an object, which its ``from_json`` reads where it has one, or a
    list of them in a tuple. A reader in ``Annotated`` reads another kind. A field with a default may be missing, unless
    it is annotated with ``ALWAYS``.

    Args:
        kind: The dataclass.
        data: The object.
        at: Its path.
        given: The values of fields that are not read.
    """
    values = dict(given)
    for name, reader, may_miss in _declared(typing.cast(Any, kind)):
        if name not in values and not (may_miss and isinstance(data, dict) and name not in data):
            values[name] = reader(data, name, at)
    return kind(**values)


def record(kind: type[T], data: Any, key: str, at: str) -> T:
    """Return a field that is an object as a dataclass; see ``read_record``."""
    return read_record(kind, json_field(data, key, at), f"{at}.{key}")


def record_to_json(one: Any) -> dict[str, Any]:
    """Return plain data that ``read_record`` reads back, without fields that may be missing and have their default."""
    return {
        name: _plain(getattr(one, name))
        for name, default in _defaults(typing.cast(Any, type(one)))
        if default is MISSING or getattr(one, name) != default
    }


def _plain(value: Any) -> Any:
    if hasattr(value, "to_json"):
        return value.to_json()
    if is_dataclass(value):
        return record_to_json(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return dict(value)
    return value.value if isinstance(value, Enum) else value


@cache
def _declared(kind: Any) -> list[tuple[str, Reader, bool]]:
    """Return the name and the reader of each field, and whether it may be missing."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return [
        (one.name, _reader_of(hints[one.name]), _may_miss(one, hints)) for one in fields(kind) if one.init
    ]


@cache
def _defaults(kind: Any) -> list[tuple[str, Any]]:
    """Return the name of each field, and the default that is not written; ``MISSING`` where all values are."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return [
        (one.name, _default(one) if _may_miss(one, hints) else MISSING) for one in fields(kind) if one.init
    ]


def _may_miss(one: Field[Any], hints: dict[str, Any]) -> bool:
    return _default(one) is not MISSING and ALWAYS not in getattr(hints[one.name], "__metadata__", ())


def _default(one: Field[Any]) -> Any:
    return one.default if one.default_factory is MISSING else one.default_factory()


def _reader_of(hint: Any) -> Reader:
    """Return what reads a field of a type."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is Annotated:
        found = next((one for one in arguments[1:] if callable(one)), None)
        return found or _reader_of(arguments[0])
    if typing.get_origin(hint) in (types.UnionType, typing.Union):  # X | None
        return _reader_of(arguments[0])
    if typing.get_origin(hint) is tuple:
        if is_dataclass(arguments[0]):
            return partial(_records, arguments[0])
        return shape if arguments[0] is int else texts
    if typing.get_origin(hint) is Mapping:
        return mapping
    if hasattr(hint, "from_json"):
        return lambda data, key, at: hint.from_json(json_field(data, key, at))
    if is_dataclass(hint):
        return partial(record, typing.cast(Any, hint))
    if issubclass(hint, Enum):
        return partial(_member, hint)
    readers: dict[Any, Reader] = {str: text, int: count, bool: flag}
    return readers[hint]


def _records(kind: Any, data: Any, key: str, at: str) -> tuple[Any, ...]:
    return tuple(read_record(kind, item, place) for place, item in a_list(data, key, at))


def _member(kind: type[Enum], data: Any, key: str, at: str) -> Enum:
    return kind(choice(data, key, at, tuple(one.value for one in kind)))
